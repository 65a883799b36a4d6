// A source of prepared bytes over HTTP/1.1: one thread, epoll, no meaning. What it says, it reads from its standard
// input (`script.py` writes it): answers that are always the same, and streams, token by token.
//
// usage: upstream HOST PORT < script
//
// The script is a list of
//   answer METHOD PATH LENGTH\n    and LENGTH bytes, a whole HTTP response
//   stream PATH INTERVAL COUNT LENGTH\n    and LENGTH bytes, what precedes the first token; then, COUNT times,
//     NEXT LAST\n    and NEXT bytes, the token where others follow, and LAST bytes, the token as the end of its answer
// and ends with `end\n`. INTERVAL is in microseconds; 0: all tokens leave at once. An answer has as many tokens as the
// last max_tokens (or max_completion_tokens) in the request's body says, COUNT at most; nothing else of it is looked at.
// The first token leaves with what precedes it. Each later one is a write of its own, never sooner than half an interval
// after the one before, and each stream has its own phase; a reader that is slow holds up nobody but itself.
//
// GET /upstream/stats tells what it did and what it cost. It ends when its standard input does.

#include <netdb.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <queue>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace {

constexpr std::size_t kReadBytes = 64 * 1024;
constexpr std::size_t kMaxRequestBytes = 64 * 1024 * 1024;
constexpr int kEvents = 256;
constexpr std::int64_t kSecond = 1'000'000'000;

std::int64_t now() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * kSecond + time.tv_nsec;
}

[[noreturn]] void fail(const std::string& sentence) {
    std::cerr << "upstream: " << sentence << std::endl;
    std::exit(1);
}

// The bytes of one stream. `nexts` holds what precedes the first token and every token where others follow, so that any
// run of tokens is one range; `ends[k]` is where the first k tokens end in it.
struct Stream {
    std::int64_t interval = 0;
    std::string nexts;
    std::vector<std::size_t> ends;
    std::vector<std::string> lasts;

    std::size_t tokens() const { return lasts.size(); }
};

struct Script {
    std::unordered_map<std::string, std::string> answers;  // By "METHOD PATH".
    std::unordered_map<std::string, Stream> streams;       // By path.
};

std::string read_bytes(std::istream& input, std::size_t length) {
    std::string bytes(length, '\0');
    if (!input.read(bytes.data(), static_cast<std::streamsize>(length))) fail("the script is cut off.");
    return bytes;
}

Stream read_stream(std::istream& input, std::int64_t interval, std::size_t count, std::size_t length) {
    Stream stream;
    stream.interval = interval * 1000;
    stream.nexts = read_bytes(input, length);
    stream.ends.push_back(length);
    for (std::size_t token = 0; token < count; ++token) {
        std::size_t next = 0, last = 0;
        if (!(input >> next >> last) || input.get() != '\n') fail("the script's token has no lengths.");
        stream.nexts += read_bytes(input, next);
        stream.ends.push_back(stream.nexts.size());
        stream.lasts.push_back(read_bytes(input, last));
    }
    return stream;
}

Script read_script(std::istream& input) {
    Script script;
    std::string kind, method, path;
    while (input >> kind && kind != "end") {
        if (kind == "answer") {
            std::size_t length = 0;
            if (!(input >> method >> path >> length) || input.get() != '\n') fail("the script's answer has no length.");
            script.answers[method + " " + path] = read_bytes(input, length);
        } else if (kind == "stream") {
            std::int64_t interval = 0;
            std::size_t count = 0, length = 0;
            if (!(input >> path >> interval >> count >> length) || input.get() != '\n' || count == 0)
                fail("the script's stream has no lengths.");
            script.streams[path] = read_stream(input, interval, count, length);
        } else {
            fail("the script has an entry of an unknown kind.");
        }
    }
    if (kind != "end") fail("the script is cut off.");
    return script;
}

// The number behind the last max_tokens of a body, whether it is JSON or JSON inside a string of JSON.
std::size_t asked_tokens(std::string_view body, std::size_t most) {
    std::size_t end = body.size();
    while (end > 0) {
        const void* found = memrchr(body.data(), '_', end);
        if (found == nullptr) break;
        end = static_cast<std::size_t>(static_cast<const char*>(found) - body.data());
        const std::string_view before = body.substr(0, end);
        if (!body.substr(end).starts_with("_tokens") || !(before.ends_with("max") || before.ends_with("max_completion")))
            continue;
        const std::size_t at = body.find_first_not_of("\\\": ", end + std::strlen("_tokens"));
        std::size_t count = 0;
        if (at != std::string_view::npos) std::from_chars(body.data() + at, body.data() + body.size(), count);
        if (count > 0) return std::min(count, most);
    }
    return most;
}

struct Head {
    std::string_view method, path;
    std::size_t length = 0;
    bool keep_alive = true;
    bool is_good = false;
};

bool same_name(std::string_view line, std::string_view lower) {
    return line.size() > lower.size() && line[lower.size()] == ':' &&
           std::equal(lower.begin(), lower.end(), line.begin(), [](char a, char b) { return a == (b | 0x20); });
}

Head parse_head(std::string_view text) {
    Head head;
    std::size_t end = text.find("\r\n");
    const std::string_view line = text.substr(0, end);
    const std::size_t first = line.find(' '), second = line.rfind(' ');
    if (first == std::string_view::npos || second <= first) return head;
    head.method = line.substr(0, first);
    head.path = line.substr(first + 1, second - first - 1);
    head.path = head.path.substr(0, head.path.find('?'));
    head.keep_alive = line.ends_with("HTTP/1.1");
    head.is_good = true;
    while (end < text.size()) {
        const std::size_t begin = end + 2;
        end = std::min(text.find("\r\n", begin), text.size());
        const std::string_view field = text.substr(begin, end - begin);
        const std::string_view value = field.substr(std::min(field.find(':') + 1, field.size()));
        if (same_name(field, "content-length")) {
            const std::size_t at = std::min(value.find_first_not_of(' '), value.size());
            std::from_chars(value.data() + at, value.data() + value.size(), head.length);
        } else if (same_name(field, "connection")) {
            if (value.find("close") != std::string_view::npos) head.keep_alive = false;
        } else if (same_name(field, "transfer-encoding")) {
            head.is_good = false;
        }
    }
    return head;
}

struct Connection {
    int fd = -1;
    std::uint64_t number = 0;  // Tells it from the one that had this descriptor before.
    std::string received;
    std::size_t searched = 0;
    // The answer under way: `stream` or `answer`, of which `sent` bytes have left.
    const Stream* stream = nullptr;
    std::string answer;
    std::size_t tokens = 0, released = 0, sent = 0;
    std::int64_t due = 0;
    bool keep_alive = true;
    bool is_busy = false;
    bool waits_for_room = false;
};

struct Timer {
    std::int64_t due;
    int fd;
    std::uint64_t number;
    bool operator<(const Timer& other) const { return due > other.due; }  // The earliest on top.
};

struct Stats {
    std::uint64_t requests = 0, tokens = 0, late = 0, gone = 0;
    std::size_t open = 0, busy = 0, most_busy = 0;
};

class Server {
   public:
    Server(Script script, int listener) : script_(std::move(script)), listener_(listener), epoll_(epoll_create1(0)) {
        watch(listener_, EPOLLIN, EPOLL_CTL_ADD);
        watch(STDIN_FILENO, EPOLLIN | EPOLLRDHUP, EPOLL_CTL_ADD);
    }

    void run() {
        epoll_event events[kEvents];
        while (true) {
            timespec wait{};
            if (!timers_.empty()) {
                const std::int64_t left = std::max<std::int64_t>(timers_.top().due - now(), 0);
                wait = {left / kSecond, left % kSecond};
            }
            const int count = epoll_pwait2(epoll_, events, kEvents, timers_.empty() ? nullptr : &wait, nullptr);
            if (count < 0 && errno != EINTR) fail(std::string("waiting failed: ") + std::strerror(errno) + ".");
            for (int at = 0; at < count; ++at) {
                const int fd = events[at].data.fd;
                if (fd == STDIN_FILENO) {
                    char ignored[64];
                    if (read(STDIN_FILENO, ignored, sizeof ignored) <= 0) return;
                } else if (fd == listener_) {
                    accept_all();
                } else {
                    serve(fd, events[at].events);
                }
            }
            send_due();
        }
    }

   private:
    void watch(int fd, std::uint32_t what, int operation) {
        epoll_event event{};
        event.events = what;
        event.data.fd = fd;
        epoll_ctl(epoll_, operation, fd, &event);
    }

    void accept_all() {
        int fd = 0;
        while ((fd = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
            const int on = 1;
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            const auto place = static_cast<std::size_t>(fd);
            if (place >= connections_.size()) connections_.resize(place + 1);
            auto connection = std::make_unique<Connection>();
            connection->fd = fd;
            connection->number = ++last_number_;
            connections_[place] = std::move(connection);
            ++stats_.open;
            watch(fd, EPOLLIN | EPOLLRDHUP, EPOLL_CTL_ADD);
        }
    }

    void serve(int fd, std::uint32_t events) {
        Connection* connection = connections_[static_cast<std::size_t>(fd)].get();
        if (connection == nullptr) return;
        if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) {
            drop(*connection);
            return;
        }
        if (events & EPOLLOUT) {
            if (!flush(*connection)) return;
            answer_next(*connection);
            if (connections_[static_cast<std::size_t>(fd)] == nullptr) return;
        }
        if (events & EPOLLIN) receive(*connection);
    }

    void receive(Connection& connection) {
        char buffer[kReadBytes];
        const ssize_t count = recv(connection.fd, buffer, sizeof buffer, 0);
        if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (count <= 0 || connection.received.size() > kMaxRequestBytes) {
            drop(connection);
            return;
        }
        connection.received.append(buffer, static_cast<std::size_t>(count));
        answer_next(connection);
    }

    // Answers the requests that are whole, as far as their answers can leave now.
    void answer_next(Connection& connection) {
        while (!connection.is_busy) {
            const std::size_t end = connection.received.find("\r\n\r\n", connection.searched);
            if (end == std::string::npos) {
                connection.searched = std::max<std::size_t>(connection.received.size(), 3) - 3;
                return;
            }
            connection.searched = end;
            const Head head = parse_head(std::string_view(connection.received).substr(0, end));
            const std::size_t whole = end + 4 + head.length;
            if (head.is_good && connection.received.size() < whole) return;
            begin(connection, head, std::string_view(connection.received).substr(end + 4, head.length));
            connection.received.erase(0, head.is_good ? whole : connection.received.size());
            connection.searched = 0;
            if (!flush(connection)) return;
        }
    }

    void begin(Connection& connection, const Head& head, std::string_view body) {
        ++stats_.requests;
        stats_.most_busy = std::max(stats_.most_busy, ++stats_.busy);
        connection.is_busy = true;
        connection.keep_alive = head.is_good && head.keep_alive;
        connection.sent = 0;
        const auto stream = script_.streams.find(std::string(head.path));
        if (head.is_good && head.method == "POST" && stream != script_.streams.end()) {
            connection.stream = &stream->second;
            connection.tokens = asked_tokens(body, connection.stream->tokens());
            connection.released = connection.stream->interval == 0 ? connection.tokens : 1;
            stats_.tokens += connection.released;
            if (connection.released < connection.tokens) {
                // Phases that no two streams share.
                phase_ = std::fmod(phase_ + 0.6180339887498949, 1.0);
                const double wait = (0.5 + phase_) * static_cast<double>(connection.stream->interval);
                connection.due = now() + static_cast<std::int64_t>(wait);
                timers_.push({connection.due, connection.fd, connection.number});
            }
            return;
        }
        connection.stream = nullptr;
        const auto answer = script_.answers.find(std::string(head.method) + " " + std::string(head.path));
        if (!head.is_good)
            connection.answer = plain("400 Bad Request", "{\"error\":\"only requests with a Content-Length are read\"}");
        else if (answer != script_.answers.end())
            connection.answer = answer->second;
        else if (head.path == "/upstream/stats")
            connection.answer = plain("200 OK", stats());
        else
            connection.answer = plain("404 Not Found", "{\"error\":\"Not Found\"}");
    }

    void send_due() {
        if (timers_.empty()) return;
        const std::int64_t time = now();
        while (!timers_.empty() && timers_.top().due <= time) {
            const Timer timer = timers_.top();
            timers_.pop();
            Connection* connection = connections_[static_cast<std::size_t>(timer.fd)].get();
            if (connection == nullptr || connection->number != timer.number) continue;
            const std::int64_t interval = connection->stream->interval;
            if (time - timer.due > interval / 2) ++stats_.late;
            ++stats_.tokens;
            if (++connection->released < connection->tokens) {
                connection->due = std::max(timer.due + interval, time + interval / 2);
                timers_.push({connection->due, timer.fd, timer.number});
            }
            if (!connection->waits_for_room && flush(*connection)) answer_next(*connection);
        }
    }

    // Sends what may leave; false where the connection is gone.
    bool flush(Connection& connection) {
        while (connection.is_busy) {
            iovec parts[2];
            const std::size_t count = pending(connection, parts);
            if (count == 0) {
                if (connection.stream != nullptr && connection.released < connection.tokens) break;
                return finish(connection);
            }
            msghdr message{};
            message.msg_iov = parts;
            message.msg_iovlen = count;
            const ssize_t sent = sendmsg(connection.fd, &message, MSG_NOSIGNAL);
            if (sent < 0 && errno == EAGAIN) {
                set_waiting(connection, true);
                return true;
            }
            if (sent < 0 && errno != EINTR) {
                drop(connection);
                return false;
            }
            connection.sent += static_cast<std::size_t>(std::max<ssize_t>(sent, 0));
        }
        set_waiting(connection, false);
        return true;
    }

    // What may leave and has not, in as many parts as it returns.
    std::size_t pending(const Connection& connection, iovec* parts) const {
        const auto part = [&parts](const std::string& bytes, std::size_t from, std::size_t to) -> std::size_t {
            if (from >= to) return 0;
            *parts++ = {const_cast<char*>(bytes.data()) + from, to - from};
            return 1;
        };
        if (connection.stream == nullptr) return part(connection.answer, connection.sent, connection.answer.size());
        const Stream& stream = *connection.stream;
        if (connection.released < connection.tokens)
            return part(stream.nexts, connection.sent, stream.ends[connection.released]);
        const std::size_t end = stream.ends[connection.tokens - 1];
        const std::string& last = stream.lasts[connection.tokens - 1];
        return part(stream.nexts, connection.sent, end) + part(last, std::max(connection.sent, end) - end, last.size());
    }

    bool finish(Connection& connection) {
        set_waiting(connection, false);
        connection.is_busy = false;
        --stats_.busy;
        if (connection.keep_alive) return true;
        close_now(connection);
        return false;
    }

    void drop(Connection& connection) {
        if (connection.is_busy) {
            --stats_.busy;
            ++stats_.gone;
        }
        close_now(connection);
    }

    void close_now(Connection& connection) {
        const int fd = connection.fd;
        --stats_.open;
        connections_[static_cast<std::size_t>(fd)].reset();
        close(fd);
    }

    void set_waiting(Connection& connection, bool waits) {
        if (connection.waits_for_room == waits) return;
        connection.waits_for_room = waits;
        watch(connection.fd, EPOLLIN | EPOLLRDHUP | (waits ? EPOLLOUT : 0u), EPOLL_CTL_MOD);
    }

    static std::string plain(std::string_view status, std::string_view body) {
        return "HTTP/1.1 " + std::string(status) + "\r\nContent-Type: application/json\r\nContent-Length: " +
               std::to_string(body.size()) + "\r\n\r\n" + std::string(body);
    }

    std::string stats() const {
        rusage usage{};
        getrusage(RUSAGE_SELF, &usage);
        const auto microseconds = [](const timeval& time) { return time.tv_sec * 1'000'000 + time.tv_usec; };
        char text[512];
        std::snprintf(text, sizeof text,
                      "{\"requests\":%llu,\"tokens\":%llu,\"late_tokens\":%llu,\"left_by_client\":%llu,"
                      "\"connections\":%zu,\"streams\":%zu,\"most_streams\":%zu,\"cpu_microseconds\":%lld}",
                      static_cast<unsigned long long>(stats_.requests), static_cast<unsigned long long>(stats_.tokens),
                      static_cast<unsigned long long>(stats_.late), static_cast<unsigned long long>(stats_.gone),
                      stats_.open, stats_.busy - 1, stats_.most_busy,
                      static_cast<long long>(microseconds(usage.ru_utime) + microseconds(usage.ru_stime)));
        return text;
    }

    Script script_;
    int listener_, epoll_;
    std::vector<std::unique_ptr<Connection>> connections_;  // By descriptor.
    std::priority_queue<Timer> timers_;
    std::uint64_t last_number_ = 0;
    double phase_ = 0;
    Stats stats_;
};

int listen_on(const char* host, const char* port) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE;
    const std::string where = std::string(host) + ":" + port;
    if (const int error = getaddrinfo(host, port, &hints, &found); error != 0)
        fail("cannot listen on " + where + ": " + gai_strerror(error) + ".");
    const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    const int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, 4096) != 0)
        fail("cannot listen on " + where + ": " + std::strerror(errno) + ".");
    sockaddr_storage bound{};
    socklen_t length = sizeof bound;
    getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &length);
    char number[NI_MAXSERV];
    getnameinfo(reinterpret_cast<sockaddr*>(&bound), length, nullptr, 0, number, sizeof number, NI_NUMERICSERV);
    freeaddrinfo(found);
    std::cout << "listening on " << host << ":" << number << std::endl;
    return fd;
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 3) fail("usage: upstream HOST PORT < script");
    rlimit files{};
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    std::ios::sync_with_stdio(false);
    Script script = read_script(std::cin);
    Server(std::move(script), listen_on(arguments[1], arguments[2])).run();
    return 0;
}
