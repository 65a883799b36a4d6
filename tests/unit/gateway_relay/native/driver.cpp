// What the sanitizers watch: broken bytes of every kind through the translation, the parsers of requests and responses, and
// answers that were asked for; streams that begin, end, are stopped from another thread, lose their client or their upstream,
// all at once; connections that threads share. Without an argument of its own it always does the same; the exit code is 0
// unless something is wrong.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "relay.hpp"
#include "request.hpp"
#include "response.hpp"
#include "upstreams.hpp"

namespace {

using namespace relay;

const Frame kFrame{"<", ">"};

void require(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "%s does not hold\n", what);
    std::exit(1);
}

std::string chunk(const std::string& body) {
    char line[32];
    std::snprintf(line, sizeof line, "%zx\r\n", body.size());
    return line + body + "\r\n";
}

std::string event(const std::string& text) {
    return "data: {\"model_name\":\"m\",\"text_output\":\"" + text +
           "\",\"finish_reason\":\"None\",\"num_input_tokens\":3,\"num_output_tokens\":1}\n\n";
}

std::string broken(std::string bytes, std::mt19937& random) {
    for (unsigned breaks = random() % 4 + 1; breaks > 0 && !bytes.empty(); --breaks) {
        const std::size_t at = random() % bytes.size();
        switch (random() % 4) {
            case 0: bytes[at] = static_cast<char>(random()); break;
            case 1: bytes.erase(at, random() % 8 + 1); break;
            case 2: bytes.insert(at, bytes.substr(at, random() % 8 + 1)); break;
            default: bytes[at] ^= static_cast<char>(1u << random() % 8);
        }
    }
    return bytes;
}

std::string noise(std::mt19937& random) {
    std::string bytes(random() % 64, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    return bytes;
}

/// Every prefix, and many broken copies; each in memory of exactly its size.
void translate_broken() {
    std::mt19937 random(1);
    const std::vector<std::string> bodies = {
        event("abc"), event("\\u00e9\\ud83d\\ude00\\n\\/\\\""), event("\xe6\x97\xa5\xf0\x9f\x8e\x89\xc3\xa9") + event(""),
        "data: {\"error\":\"x\"}\n\n", "data: {}\n\n", "", "data: ",
    };
    const auto both = [](const std::string& bytes) {
        const std::vector<char> exact(bytes.begin(), bytes.end());
        const std::string_view view(exact.data(), exact.size());
        std::string out;
        Counts counts;
        translate(view, kFrame, out, counts);
        const Chunk found = chunk_at(view);
        require(found.size <= view.size(), "a chunk within its bytes");
    };
    for (const std::string& body : bodies) {
        for (const std::string& whole : {body, chunk(body)}) {
            for (std::size_t length = 0; length <= whole.size(); ++length) both(whole.substr(0, length));
            for (int i = 0; i < 20000 && !whole.empty(); ++i) {
                both(broken(whole, random));
            }
        }
    }
}

constexpr std::string_view kPath = "/v1/chat/completions";
constexpr std::size_t kLongest = 4096;

bool is_within(std::string_view part, std::string_view whole) {
    return part.empty() || (part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size());
}

/// What was found lies in the bytes that were given. True where something was.
bool read_body(std::string_view body) {
    request::Chat chat;
    if (!request::read_chat(body, chat)) return false;
    require(chat.before.data() == body.data(), "the form begins with the body");
    require(chat.after.data() + chat.after.size() == body.data() + body.size(), "the form ends with the body");
    require(!chat.messages.empty() && chat.messages.size() <= request::kMostMessages, "as many messages as are read");
    for (const request::Message& message : chat.messages) {
        require(is_within(message.role, body) && is_within(message.content, body), "a message within its body");
        // In memory of exactly its size too.
        const std::vector<char> content(message.content.begin(), message.content.end());
        const std::string text = request::unescaped({content.data(), content.size()});
        require(text.size() <= content.size(), "no text is longer than it is written");
        require(message.is_escaped || text == message.content, "a text without escapes stands as it is");
    }
    return true;
}

request::Verdict read_request(const std::string& bytes) {
    const std::vector<char> exact(bytes.begin(), bytes.end());
    const std::string_view data(exact.data(), exact.size());
    request::Head head;
    const request::Verdict verdict = request::read_head(data, kPath, kLongest, head);
    if (verdict == request::Verdict::kFound) {
        require(is_within(head.body, data), "a body within its request");
        for (const auto& [name, value] : head.headers) {
            require(!name.empty() && is_within(value, data), "a header within its request");
        }
        const std::vector<char> body(head.body.begin(), head.body.end());
        read_body({body.data(), body.size()});
    }
    return verdict;
}

std::string request_with(const std::string& body) {
    return "POST " + std::string(kPath) + " HTTP/1.1\r\nHost: h:1\r\nX-Empty:\r\nConnection: keep-alive\r\n" +
           "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

/// Every prefix, and many broken copies, some of them cut off, of whole requests and of bodies by themselves.
void read_requests() {
    std::mt19937 random(3);
    const std::vector<std::string> bodies = {
        "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}",
        "{\"a\":{\"messages\":[1,[],{}],\"b\":\"]}\\\"\\\\\"},\"n\":-1.5e3 , \"messages\" : [ {\"role\":\"system\","
        "\"content\":\"\\u00e9\\ud83d\\ude00\\n\\/\\\"\\u0000\\ud7ff\"} , {\"content\":\"\xe6\x97\xa5\xf0\x9f\x8e\x89\",\"role\":"
        "\"assistant\"} ] , \"stream\":true}\n",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"\\u0041\\ud83c\\udf89\"}],\"tools\":[{\"a\":null}]}",
    };
    unsigned found = 0, bodies_found = 0;
    const auto body_by_itself = [&](const std::string& bytes) {
        const std::vector<char> exact(bytes.begin(), bytes.end());
        bodies_found += read_body({exact.data(), exact.size()});
    };
    for (const std::string& body : bodies) {
        const std::string whole = request_with(body);
        require(read_request(whole) == request::Verdict::kFound, "a whole request is found");
        require(read_body(body), "a whole body is found");
        for (std::size_t length = 0; length < whole.size(); ++length) {
            require(read_request(whole.substr(0, length)) != request::Verdict::kFound, "a prefix is no request");
        }
        for (std::size_t length = 0; length < body.size(); ++length) body_by_itself(body.substr(0, length));
        for (int i = 0; i < 20000; ++i) {
            const std::string bytes = broken(whole, random), text = broken(body, random);
            found += read_request(bytes) == request::Verdict::kFound;
            read_request(bytes.substr(0, random() % (bytes.size() + 1)));
            // With a head that says how long it is.
            read_request(request_with(text));
            body_by_itself(text);
            body_by_itself(text.substr(0, random() % (text.size() + 1)));
            read_request(noise(random));
            body_by_itself("{\"messages\":[" + noise(random));
        }
    }
    require(found > 0 && bodies_found > 0, "some broken requests are read all the same");
    // Deep, and many.
    body_by_itself("{\"a\":" + std::string(1000000, '[') + std::string(1000000, ']') + ",\"messages\":[]}");
    std::string many = "{\"messages\":[";
    for (std::size_t i = 0; i <= request::kMostMessages; ++i) many += "{\"role\":\"user\",\"content\":\"\"},";
    many.back() = ']';
    require(!read_body(many + "}"), "more messages than are read");
}

/// What comes of bytes that come in these parts.
struct Parsed {
    std::vector<std::string> events;
    std::string error_body;
    int status = 0;
    bool is_done = false, is_reusable = false, is_between = false, is_wrong = false, ends = false;

    bool operator==(const Parsed&) const = default;
};

template <typename Next>
Parsed parse(std::string_view bytes, response::Limits limits, Next next) {
    response::Parser parser(limits);
    Parsed outcome;
    try {
        while (!bytes.empty()) {
            const std::size_t size = std::min<std::size_t>(next(), bytes.size());
            const std::vector<char> exact(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
            parser.feed({exact.data(), exact.size()});
            require(parser.error_body.size() <= limits.event, "no error body past the limit");
            bytes.remove_prefix(size);
        }
    } catch (const response::ProtocolError&) {
        // What came ahead of the mistake depends on the cuts.
        outcome.is_wrong = true;
        return outcome;
    }
    outcome.events = parser.events;
    outcome.error_body = parser.error_body;
    outcome.status = parser.status;
    outcome.is_done = parser.done;
    outcome.is_reusable = parser.reusable;
    outcome.is_between = parser.is_between_chunks();
    try {
        parser.eof();
        outcome.ends = true;
        require(parser.done, "the end of the connection ends the response");
    } catch (const response::ProtocolError&) {
        require(!parser.done, "a response that has ended stays so");
    }
    return outcome;
}

/// Every prefix, and many broken copies, some of them cut off; at once and in parts, for limits that are met and that
/// are not.
void parse_responses() {
    std::mt19937 random(4);
    const std::string ok = "HTTP/1.1 200 OK\r\n", end = "\r\n\r\n";
    const std::string chunks = chunk(event("a")) + chunk(event("b") + event("c").substr(0, 20)) + chunk(event("c").substr(20));
    const std::vector<std::string> responses = {
        ok + "Content-Type: text/event-stream\r\nTransfer-Encoding: chunked" + end + chunks + "0\r\nX: y\r\n\r\n",
        ok + "Content-Length: " + std::to_string(event("d").size()) + end + event("d"),
        ok + "Connection: close" + end + event("e") + "data: f",
        "HTTP/1.1 100 Continue" + end + "HTTP/1.1 400 Bad Request\r\nContent-Length: 13" + end + "{\"error\":\"x\"}",
        "HTTP/1.0 503 X\r\ntransfer-encoding: chunked" + end + "3;a=b\r\nabc\r\n0\r\n\r\n",
    };
    const auto all = [](const std::string& bytes, response::Limits limits) {
        return parse(bytes, limits, [&] { return bytes.size(); });
    };
    unsigned right = 0, wrong = 0;
    const auto both = [&](const std::string& bytes) {
        const response::Limits wide{1 << 20, 1 << 20}, narrow{40, 60};
        const Parsed at_once = all(bytes, wide);
        (at_once.is_wrong ? wrong : right) += 1;
        require(parse(bytes, wide, [] { return 1u; }) == at_once, "the same for single bytes");
        require(parse(bytes, wide, [&] { return random() % 30 + 1; }) == at_once, "the same for any parts");
        all(bytes, narrow);
        parse(bytes, narrow, [&] { return random() % 30 + 1; });
    };
    for (const std::string& whole : responses) {
        const Parsed outcome = all(whole, {1 << 20, 1 << 20});
        require(!outcome.is_wrong && outcome.ends, "a whole response is understood");
        for (std::size_t length = 0; length <= whole.size(); ++length) both(whole.substr(0, length));
        for (int i = 0; i < 5000; ++i) {
            const std::string bytes = broken(whole, random);
            both(bytes);
            both(bytes.substr(0, random() % (bytes.size() + 1)));
            both(noise(random));
            both(ok + "Transfer-Encoding: chunked" + end + noise(random));
        }
    }
    require(right > 0 && wrong > 0, "some broken responses are understood, and some are not");
    for (const char* size : {"ffffffffffffffff", "fffffffffffffffe", "10000000000000000", "-1", "+1", "0x1", "", " ", "00000000"}) {
        both(ok + "Transfer-Encoding: chunked" + end + size + "\r\nab\r\n");
    }
    for (const char* size : {"18446744073709551615", "18446744073709551616", "-1", "+1", "", " ", "00"}) {
        both(ok + "Content-Length: " + size + end + "ab");
    }
}

struct Pair {
    int here;
    int there;

    Pair() {
        int both[2];
        require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, both) == 0, "a pair of sockets");
        here = both[0];
        there = both[1];
    }
};

/// Many streams, each with a course of its own, started and stopped by one thread while the relay moves them.
void run_streams() {
    std::mt19937 random(2);
    Relay relay({0.001, 0.01});
    std::atomic<bool> is_over{false};
    std::vector<std::uint64_t> ended;
    // Whoever looks at the counters does so while they change.
    for (int round = 0; round < 30; ++round) {
        struct Open {
            Pair upstream, client;
            std::shared_ptr<Stream> stream;
            std::size_t sent = 0;
            bool is_stopped = false;
        };
        std::vector<Open> open(40);
        for (Open& one : open) {
            const int small = 4096;
            setsockopt(one.client.there, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
            one.stream = relay.start(one.upstream.there, one.client.there, kFrame, 0.0);
        }
        std::thread client([&] {
            std::vector<char> bytes(65536);
            while (!is_over) {
                for (std::size_t i = 0; i < open.size(); i += 2) {
                    if (recv(open[i].client.here, bytes.data(), bytes.size(), MSG_DONTWAIT) < 0) std::this_thread::yield();
                }
            }
        });
        for (int step = 0; step < 4000; ++step) {
            Open& one = open[random() % open.size()];
            const std::string whole = random() % 50 == 0 ? chunk("data: {}\n\n") : chunk(event(std::string(random() % 600, 'a')));
            const std::size_t cut = random() % (whole.size() + 1);
            if (one.sent == 0 && send(one.upstream.here, whole.data(), cut, MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(cut)) {
                if (send(one.upstream.here, whole.data() + cut, whole.size() - cut, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
                    one.sent = 1;
                }
            }
            static_cast<void>(one.stream->tokens.load());
            static_cast<void>(one.stream->is_held.load());
            switch (random() % 400) {
                case 0:
                    relay.stop(*one.stream);
                    one.is_stopped = true;
                    break;
                case 1: shutdown(one.upstream.here, SHUT_WR); break;
                case 2: shutdown(one.client.here, SHUT_RDWR); break;
                default: break;
            }
            if (step % 16 == 0) {
                for (const std::uint64_t number : relay.ended()) ended.push_back(number);
            }
        }
        for (Open& one : open) {
            const Outcome outcome = relay.stop(*one.stream);
            require(!one.is_stopped || outcome.rest.empty(), "the outcome is for the first");
        }
        is_over = true;
        client.join();
        is_over = false;
        for (Open& one : open) {
            for (const int socket : {one.upstream.here, one.upstream.there, one.client.here, one.client.there}) close(socket);
        }
    }
    require(!ended.empty(), "some streams ended by themselves");
}

/// A relay that is gone before its streams.
void outlive() {
    Pair upstream, client;
    std::shared_ptr<Stream> stream;
    {
        Relay relay({});
        stream = relay.start(upstream.there, client.there, kFrame, 0.0);
    }
    const std::string bytes = chunk(event("a"));
    require(send(upstream.here, bytes.data(), bytes.size(), 0) > 0, "sent");
    stream.reset();
    for (const int socket : {upstream.here, upstream.there, client.here, client.there}) close(socket);
}

const Script kScript{
    "HTTP/1.1 200 OK\r\n\r\n", "",
    std::make_shared<const Telling>(Telling{"[", "<", ">", "(", ")", "{", "}", "]"})};
constexpr std::string_view kRequest = "POST / HTTP/1.1\r\n\r\n";
const std::string kHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

std::string last_event(const std::string& reason) {
    return "data: {\"text_output\":\"z\",\"finish_reason\":\"" + reason + "\",\"num_output_tokens\":1}\n\n";
}

std::string answer(unsigned tokens) {
    std::string bytes = kHead + chunk(event(""));
    for (; tokens > 0; --tokens) bytes += chunk(event("ab"));
    return bytes + chunk(last_event("length")) + "0\r\n\r\n";
}

/// Anything that comes of a Triton; most of it is an answer.
std::string any_answer(std::mt19937& random) {
    const std::string whole = answer(random() % 10);
    switch (random() % 16) {
        case 0: return broken(whole, random);
        case 1: return whole.substr(0, random() % whole.size());
        case 2: return kHead + noise(random);
        case 3: return "HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\n{}";
        case 4: return kHead + chunk(event("a")) + chunk(last_event("abort")) + "0\r\n\r\n";
        case 5: return kHead + chunk(last_event("stop") + event("b")) + "0\r\n\r\n";
        case 6: return whole + noise(random);
        case 7: return kHead + chunk(event(std::string(60000, 'y'))) + chunk(last_event("stop")) + "0\r\n\r\n";
        default: return whole;
    }
}

class Triton {
  public:
    Triton() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t size = sizeof address;
        auto* const any = reinterpret_cast<sockaddr*>(&address);
        require(bind(socket_, any, size) == 0 && listen(socket_, 512) == 0, "a port to listen at");
        require(getsockname(socket_, any, &size) == 0, "its number");
        port = std::to_string(ntohs(address.sin_port));
    }
    ~Triton() {
        close(socket_);
        for (const int one : idle_) close(one);
    }

    /// A connection with a request on it, which is the caller's; -1 where there is none within some milliseconds.
    int next(int milliseconds) {
        std::vector<pollfd> all{{socket_, POLLIN, 0}};
        for (const int one : idle_) all.push_back({one, POLLIN, 0});
        if (poll(all.data(), all.size(), milliseconds) <= 0) return -1;
        for (std::size_t i = 1; i < all.size(); ++i) {
            if (all[i].revents == 0) continue;
            idle_.erase(std::find(idle_.begin(), idle_.end(), all[i].fd));
            char bytes[kRequest.size()];
            if (recv(all[i].fd, bytes, sizeof bytes, MSG_DONTWAIT) == sizeof bytes) return all[i].fd;
            close(all[i].fd);
        }
        if (all[0].revents != 0) keep(accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC));
        return -1;
    }

    /// It may carry another request.
    void keep(int connection) { idle_.push_back(connection); }

    std::string port;

  private:
    const int socket_;
    std::vector<int> idle_;
};

std::string received(int socket) {
    std::string all;
    char bytes[4096];
    for (ssize_t size; (size = recv(socket, bytes, sizeof bytes, MSG_DONTWAIT)) > 0;) all.append(bytes, static_cast<std::size_t>(size));
    return all;
}

int lowest_descriptor() {
    const int number = fcntl(STDERR_FILENO, F_DUPFD, 0);
    close(number);
    return number;
}

/// Every prefix of an answer, broken copies, and whatever else may come, cut anywhere; one after the other.
void ask_one_by_one() {
    std::mt19937 random(5);
    const int before = lowest_descriptor();
    unsigned finished = 0, left = 0;
    {
        Triton triton;
        Relay relay({0.001});
        const auto upstreams = std::make_shared<Upstreams>("127.0.0.1", triton.port, 1);
        const auto ask = [&](const std::string& bytes) {
            Pair client;
            const auto stream = relay.ask(upstreams, kRequest, client.there, kScript);
            if (relay.is_due()) relay.flush();
            int connection = -1;
            while (connection < 0) connection = triton.next(1000);
            bool has_ended = false;
            const auto turn = [&] {
                for (const std::uint64_t number : relay.poll()) has_ended = has_ended || number == stream->number;
                for (const std::uint64_t number : relay.ended()) has_ended = has_ended || number == stream->number;
            };
            const std::size_t cut = random() % (bytes.size() + 1);
            for (const std::string& part : {bytes.substr(0, cut), bytes.substr(cut)}) {
                require(send(connection, part.data(), part.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(part.size()), "sent");
                turn();
            }
            if (!has_ended && !stream->is_finished) shutdown(connection, SHUT_WR);
            while (!has_ended) turn();
            Outcome outcome = relay.stop(*stream);
            const std::string got = received(client.here) + outcome.unsent;
            require(got.empty() != outcome.is_begun, "the client has what was begun");
            require((outcome.socket == nullptr) == outcome.is_finished, "a connection is kept or left");
            if (outcome.is_finished) {
                ++finished;
                require(outcome.rest.empty() && got.ends_with("]\r\n0\r\n\r\n"), "all is told");
                triton.keep(connection);
            } else {
                ++left;
                close(connection);
            }
            close(client.here);
            close(client.there);
            return outcome.is_finished;
        };
        const std::string whole = answer(6);
        for (std::size_t length = 0; length < whole.size(); ++length) {
            require(!ask(whole.substr(0, length)), "a prefix is no answer");
        }
        require(ask(whole), "an answer is told");
        for (int i = 0; i < 1500; ++i) {
            ask(broken(answer(random() % 6), random));
            ask(any_answer(random));
        }
    }
    require(finished > 0 && left > 0, "some are told, and some are left");
    require(lowest_descriptor() == before, "all is closed");
}

/// Two relays, each moved by a thread of its own and by whoever asks, who share connections; others stop their streams.
void ask_at_once() {
    const int before = lowest_descriptor();
    {
        Triton triton;
        const auto upstreams = std::make_shared<Upstreams>("127.0.0.1", triton.port, 8);
        std::atomic<int> asking{2};
        std::atomic<unsigned> finished{0}, stopped{0};
        std::thread serving([&] {
            std::mt19937 random(6);
            std::vector<std::pair<int, std::string>> begun;
            while (asking > 0) {
                const int connection = triton.next(1);
                if (connection >= 0) begun.emplace_back(connection, any_answer(random));
                if (begun.empty()) continue;
                const std::size_t at = random() % begun.size();
                auto& [socket, bytes] = begun[at];
                const std::string part = bytes.substr(0, random() % 400 + 1);
                const bool is_gone = send(socket, part.data(), part.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0;
                bytes.erase(0, part.size());
                if (!is_gone && !bytes.empty() && random() % 100 != 0) continue;
                // Some that are whole are ended all the same.
                if (!bytes.empty() || random() % 4 == 0) {
                    close(socket);
                } else {
                    triton.keep(socket);
                }
                begun.erase(begun.begin() + static_cast<std::ptrdiff_t>(at));
            }
            for (const auto& [socket, bytes] : begun) close(socket);
        });
        const auto ask = [&](unsigned seed) {
            std::mt19937 random(seed);
            Relay relay({0.001, 0.01});
            struct Open {
                Pair client;
                std::shared_ptr<Stream> stream;
                std::atomic<bool> is_over{false};
            };
            std::mutex mutex;
            std::vector<std::unique_ptr<Open>> open;
            std::atomic<bool> is_over{false};
            const auto stop = [&](Open& one) {
                const Outcome outcome = relay.stop(*one.stream);
                if (outcome.is_finished) ++finished;
                ++stopped;
                one.is_over = true;
            };
            std::thread stopping([&, seed] {
                std::mt19937 random(seed + 100);
                while (!is_over) {
                    {
                        const std::lock_guard lock(mutex);
                        if (!open.empty()) {
                            Open& one = *open[random() % open.size()];
                            static_cast<void>(one.stream->tokens + one.stream->is_held + one.stream->is_connecting);
                            if (random() % 64 == 0) stop(one);
                            if (random() % 8 != 0) received(one.client.here);
                        }
                        upstreams->close_idle(random() % 100 == 0 ? 0 : 1);
                    }
                    std::this_thread::yield();
                }
            });
            for (int step = 0; step < 3000; ++step) {
                std::vector<std::uint64_t> numbers = relay.poll();
                for (const std::uint64_t number : relay.ended()) numbers.push_back(number);
                if (relay.is_due() && random() % 4 != 0) relay.flush();
                const std::lock_guard lock(mutex);
                for (const auto& one : open) {
                    if (std::find(numbers.begin(), numbers.end(), one->stream->number) != numbers.end()) stop(*one);
                }
                std::erase_if(open, [&](const auto& one) {
                    if (!one->is_over) return false;
                    close(one->client.here);
                    close(one->client.there);
                    return true;
                });
                if (open.size() < 24) {
                    auto one = std::make_unique<Open>();
                    if (random() % 4 == 0) {
                        const int small = 4096;
                        setsockopt(one->client.there, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
                    }
                    one->stream = relay.ask(upstreams, kRequest, one->client.there, kScript);
                    if (random() % 32 == 0) shutdown(one->client.here, SHUT_RDWR);
                    open.push_back(std::move(one));
                }
            }
            is_over = true;
            stopping.join();
            // Some while the thread still moves them, and some when it does not.
            for (std::size_t i = 0; i < open.size(); ++i) {
                if (i == open.size() / 2) relay.close();
                stop(*open[i]);
                close(open[i]->client.here);
                close(open[i]->client.there);
            }
            if (seed == 7) upstreams->close();
            --asking;
        };
        std::thread other(ask, 8);
        ask(7);
        other.join();
        serving.join();
        require(finished > 0 && stopped > finished, "some are told, and some are not");
    }
    require(lowest_descriptor() == before, "all is closed");
}

/// What nobody listens to, and a request that outlives its relay.
void ask_nobody() {
    std::string port;
    Pair client;
    {
        Triton gone;
        port = gone.port;
    }
    const auto upstreams = std::make_shared<Upstreams>("127.0.0.1", port, 1);
    Relay relay({});
    const auto never = relay.ask(upstreams, kRequest, client.there, kScript);
    relay.flush();
    while (relay.ended().empty()) std::this_thread::yield();
    require(relay.stop(*never).socket == nullptr, "no connection");
    Triton triton;
    std::shared_ptr<Stream> stream;
    {
        Relay brief({});
        stream = brief.ask(std::make_shared<Upstreams>("127.0.0.1", triton.port, 1), kRequest, client.there, kScript);
    }
    stream.reset();
    close(client.here);
    close(client.there);
}

}  // namespace

int main() {
    translate_broken();
    read_requests();
    parse_responses();
    run_streams();
    outlive();
    ask_one_by_one();
    ask_at_once();
    ask_nobody();
}
