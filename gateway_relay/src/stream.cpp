#include "stream.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <utility>

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "clock.hpp"
#include "http.hpp"

namespace relay {

namespace {

/// What one step may read: with the longest chunks that come of it, what a client that does not read costs.
constexpr std::size_t kReadAtOnce = 16 * 1024;
/// Room for a size line: sixteen digits and its end.
constexpr std::size_t kSizeLine = 18;

constexpr std::string_view kLastChunk = "0\r\n\r\n";
constexpr std::size_t kLongestHead = 4 * 1024;

bool is_later() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

/// `out`, whose first `kSizeLine` bytes are free, as one chunk of HTTP/1.1.
std::string_view chunk_of(std::string& out) {
    std::array<char, kSizeLine> line{};
    const auto written = std::to_chars(line.data(), line.data() + kSizeLine - 2, out.size() - kSizeLine, 16);
    const auto digits = static_cast<std::size_t>(written.ptr - line.data());
    const std::size_t begin = kSizeLine - 2 - digits;
    std::copy_n(line.data(), digits, out.begin() + static_cast<std::ptrdiff_t>(begin));
    out[kSizeLine - 2] = '\r';
    out[kSizeLine - 1] = '\n';
    out += "\r\n";
    return std::string_view(out).substr(begin);
}

}  // namespace

Workspace::Workspace() : in(kReadAtOnce) {}

Stream::Stream(std::uint64_t number, Epoll epoll, int upstream, int client, Frame frame, double last, Bounds bounds)
    : number(number),
      epoll_(std::move(epoll)),
      upstream_(upstream),
      client_(std::in_place, fcntl(client, F_DUPFD_CLOEXEC, 0), "fcntl"),
      frame_(std::move(frame)),
      bounds_(std::move(bounds)) {
    outcome_.tally.resize(bounds_->size() + 1);
    outcome_.last = last;
}

Stream::Stream(
    std::uint64_t number, Epoll epoll, std::shared_ptr<Upstreams> upstreams, Upstreams::Socket kept,
    std::string_view request, int client, Script script, Bounds bounds)
    : number(number),
      epoll_(std::move(epoll)),
      ask_(Ask{std::move(upstreams), std::move(kept), std::move(script), std::string(request), monotonic_seconds()}),
      upstream_(ask_->socket == nullptr ? -1 : ask_->socket->number()),
      client_(std::in_place, fcntl(client, F_DUPFD_CLOEXEC, 0), "fcntl"),
      frame_{ask_->script.identity + ask_->script.telling->before, ask_->script.telling->after},
      bounds_(std::move(bounds)) {
    outcome_.tally.resize(bounds_->size() + 1);
    is_connecting = ask_->socket == nullptr;
}

Stream::~Stream() { stop(); }

void Stream::begin() {
    const std::lock_guard lock(mutex_);
    if (!go_on()) throw std::system_error(errno, std::generic_category(), "epoll_ctl");
}

bool Stream::ask() {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kEnded) return false;
    if (ask_->socket == nullptr) {
        try {
            ask_->socket = ask_->upstreams->connect();
        } catch (const std::system_error&) {
            return end();
        }
        upstream_ = ask_->socket->number();
    }
    return !(send_request(std::string(std::move(ask_->unsent))) && go_on()) && end();
}

bool Stream::step(Workspace& workspace) {
    const std::lock_guard lock(mutex_);
    switch (state_) {
        case State::kSends: return !(send_request(std::string(std::move(ask_->unsent))) && go_on()) && end();
        case State::kReads: return read(workspace);
        case State::kWrites: return write(std::string(std::move(outcome_.unsent)));
        case State::kNew:
        case State::kEnded: break;
    }
    return false;
}

bool Stream::move_to(const Epoll& epoll) {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kEnded) return false;
    forget();
    epoll_ = epoll;
    return !wait_for(std::exchange(state_, State::kNew)) && end();
}

Outcome Stream::stop() {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kEnded) {
        end();
        outcome_.socket.reset();
    }
    return std::exchange(outcome_, {});
}

bool Stream::send_request(std::string_view request) {
    const ssize_t sent = send(upstream_, request.data(), request.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    // A socket that is not connected yet takes nothing, and says so as one whose buffer is full does.
    if (sent < 0 && !is_later()) {
        // Else the peer may have said why it takes no more.
        ask_->unsent.clear();
        return !is_connecting;
    }
    if (sent >= 0 && is_connecting) {
        is_connecting = false;
        outcome_.connect_seconds = monotonic_seconds() - ask_->since;
    }
    ask_->unsent.assign(request.substr(static_cast<std::size_t>(std::max<ssize_t>(sent, 0))));
    return true;
}

bool Stream::go_on() { return wait_for(ask_ && !ask_->unsent.empty() ? State::kSends : State::kReads); }

bool Stream::read(Workspace& workspace) {
    const ssize_t size = recv(upstream_, workspace.in.data(), workspace.in.size(), MSG_DONTWAIT);
    if (size < 0 && is_later()) return false;
    // The end and a failure are found once more by whoever reads next.
    if (size <= 0) return end();
    const double now = monotonic_seconds();
    std::string_view bytes(workspace.in.data(), static_cast<std::size_t>(size));
    const bool is_joined = !partial_.empty();
    if (is_joined) bytes = partial_.append(bytes);
    const auto keep = [&](std::string_view left) {
        if (is_joined) {
            partial_.erase(0, partial_.size() - left.size());
        } else {
            partial_.assign(left);
        }
    };
    if (ask_ && !outcome_.has_head && !read_head(bytes)) {
        const bool is_strange = bytes.empty() || bytes.size() > kLongestHead;
        if (!is_joined) partial_.assign(workspace.in.data(), static_cast<std::size_t>(size));
        return is_strange && end();
    }
    Counts counts;
    std::string reason = outcome_.reason;
    bool has_all = false;
    workspace.out.assign(kSizeLine, ' ');
    if (ask_ && !outcome_.is_begun) workspace.out.append(ask_->script.identity).append(ask_->script.telling->begin);
    std::string_view left = bytes;
    while (!left.empty()) {
        if (!reason.empty() && kLastChunk.starts_with(left.substr(0, kLastChunk.size()))) {
            has_all = left == kLastChunk;
            if (has_all) left = {};
            if (left.size() <= kLastChunk.size()) break;
        }
        const Chunk chunk = chunk_at(left);
        if (chunk.state == Chunk::State::kPartial) break;
        if (chunk.state == Chunk::State::kStrange ||
            !translate(chunk.body, frame_, workspace.out, counts, ask_ ? &reason : nullptr)) {
            // All of what came at once: then it is counted at once, too.
            keep(bytes);
            return end();
        }
        left.remove_prefix(chunk.size);
    }
    const bool has_events = left.size() < bytes.size();
    keep(left);
    if (!has_events) return false;
    count(counts, now);
    outcome_.reason = std::move(reason);
    if (has_all) finish(workspace.out);
    outcome_.is_finished = is_finished = has_all;
    if (workspace.out.size() == kSizeLine) return false;
    if (!ask_) return write(chunk_of(workspace.out));
    std::string out;
    if (!outcome_.is_begun) {
        out = ask_->script.head;
        outcome_.is_begun = true;
        outcome_.head_at = now;
    }
    out += chunk_of(workspace.out);
    if (has_all) out += kLastChunk;
    return write(out);
}

/// Takes the head of an answer off `bytes`. False where that has not come completely; `bytes` are empty then if it is not
/// what the head of a stream is.
bool Stream::read_head(std::string_view& bytes) {
    constexpr std::string_view kStatus = "HTTP/1.1 200 ", kEnd = "\r\n\r\n";
    constexpr std::string_view kKeepAlive = "\r\nconnection: keep-alive\r\n";
    const std::size_t end = bytes.find(kEnd);
    if (end == std::string_view::npos) {
        if (bytes.substr(0, kStatus.size()) != kStatus.substr(0, bytes.size())) bytes = {};
        return false;
    }
    const std::string lines = http::lower(bytes.substr(0, end + 2));
    const auto has = [&lines](std::string_view line) { return lines.find(line) != std::string::npos; };
    // Of a stream whose end closes the connection, or is told by its length, nothing is known here.
    const std::size_t connection = lines.find("\r\nconnection");
    const bool is_kept = connection == std::string::npos ||
                         (lines.compare(connection, kKeepAlive.size(), kKeepAlive) == 0 &&
                          lines.find("\r\nconnection", connection + 1) == std::string::npos);
    if (!bytes.starts_with(kStatus) || !has("\r\ntransfer-encoding: chunked\r\n") || has("\r\ncontent-length") ||
        !is_kept) {
        bytes = {};
        return false;
    }
    bytes.remove_prefix(end + kEnd.size());
    outcome_.has_head = true;
    return true;
}

/// What is told when all has come; `outcome_` has counted it.
void Stream::finish(std::string& out) const {
    const std::string& identity = ask_->script.identity;
    const Telling& telling = *ask_->script.telling;
    out.append(identity).append(telling.finish_before);
    out += '"';
    out += outcome_.reason;
    out += '"';
    out += telling.finish_after;
    if (!telling.usage_before.empty()) {
        const auto [answer, prompt] = outcome_.counts;
        out.append(identity).append(telling.usage_before);
        out += "{\"prompt_tokens\":" + std::to_string(prompt) + ",\"completion_tokens\":" + std::to_string(answer) +
               ",\"total_tokens\":" + std::to_string(prompt + answer) + '}';
        out += telling.usage_after;
    }
    out += telling.end;
}

bool Stream::write(std::string_view bytes) {
    ssize_t sent = send(client_->number(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && !is_later()) return end();
    sent = std::max<ssize_t>(sent, 0);
    outcome_.unsent.assign(bytes.substr(static_cast<std::size_t>(sent)));
    // What a slow client has not taken of the end, its connection keeps for it.
    if (outcome_.is_finished) return end();
    const State next = outcome_.unsent.empty() ? State::kReads : State::kWrites;
    is_held = next == State::kWrites;
    return !wait_for(next) && end();
}

void Stream::count(const Counts& counts, double now) {
    if (counts.prompt != 0) outcome_.counts.prompt = counts.prompt;
    if (counts.answer == 0) return;
    if (outcome_.last == 0) {
        outcome_.first = now;
    } else {
        const double gap = now - outcome_.last;
        const double each = gap / static_cast<double>(counts.answer);
        const auto bucket = std::lower_bound(bounds_->begin(), bounds_->end(), each) - bounds_->begin();
        outcome_.tally[static_cast<std::size_t>(bucket)] += counts.answer;
        outcome_.gap_sum += gap;
    }
    outcome_.last = now;
    outcome_.counts.answer += counts.answer;
    tokens.store(outcome_.counts.answer, std::memory_order_relaxed);
}

bool Stream::end() {
    forget();
    client_.reset();
    state_ = State::kEnded;
    is_held = false;
    outcome_.rest = std::move(partial_);
    if (!ask_) return true;
    if (outcome_.is_finished) {
        ask_->upstreams->give_back(std::move(ask_->socket));
    } else if (!is_connecting) {
        outcome_.socket = std::move(ask_->socket);
    }
    ask_.reset();
    return true;
}

/// Of the two sockets one at a time: one whose peer is gone would be ready for ever.
bool Stream::wait_for(State state) {
    if (state == state_) return true;
    forget();
    state_ = state;
    epoll_event event{};
    event.events = state == State::kReads ? EPOLLIN : EPOLLOUT;
    event.data.u64 = number;
    return epoll_ctl(epoll_->number(), EPOLL_CTL_ADD, awaited(), &event) == 0;
}

void Stream::forget() const {
    if (state_ != State::kNew && state_ != State::kEnded) epoll_ctl(epoll_->number(), EPOLL_CTL_DEL, awaited(), nullptr);
}

}  // namespace relay
