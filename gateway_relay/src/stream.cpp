#include "stream.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <ctime>
#include <utility>

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

namespace relay {

namespace {

/// What one step may read: with the longest chunks that come of it, what a client that does not read costs.
constexpr std::size_t kReadAtOnce = 16 * 1024;
/// Room for a size line: sixteen digits and its end.
constexpr std::size_t kSizeLine = 18;

double monotonic_seconds() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

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
    if (!wait_for(upstream_, EPOLLIN)) throw std::system_error(errno, std::generic_category(), "epoll_ctl");
}

Stream::~Stream() { stop(); }

bool Stream::step(Workspace& workspace) {
    const std::lock_guard lock(mutex_);
    switch (state_) {
        case State::kReads: return read(workspace);
        case State::kWrites: return write(std::string(std::move(outcome_.unsent)));
        case State::kEnded: break;
    }
    return false;
}

Outcome Stream::stop() {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kEnded) end();
    return std::exchange(outcome_, {});
}

bool Stream::read(Workspace& workspace) {
    const ssize_t size = recv(upstream_, workspace.in.data(), workspace.in.size(), MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
    // The end and a failure are found once more by whoever reads next.
    if (size <= 0) return end();
    const double now = monotonic_seconds();
    std::string_view bytes(workspace.in.data(), static_cast<std::size_t>(size));
    const bool is_joined = !partial_.empty();
    if (is_joined) bytes = partial_.append(bytes);
    Counts counts;
    workspace.out.assign(kSizeLine, ' ');
    const std::size_t before = bytes.size();
    std::size_t taken = 0;
    for (;;) {
        const Chunk chunk = chunk_at(bytes.substr(taken));
        if (chunk.state == Chunk::State::kPartial) break;
        if (chunk.state == Chunk::State::kStrange || !translate(chunk.body, frame_, workspace.out, counts)) {
            // All of what came at once: then it is counted at once, too.
            if (!is_joined) partial_.assign(bytes);
            return end();
        }
        taken += chunk.size;
        if (taken == before) break;
    }
    if (is_joined) {
        partial_.erase(0, taken);
    } else {
        partial_.assign(bytes.substr(taken));
    }
    count(counts, now);
    return workspace.out.size() > kSizeLine && write(chunk_of(workspace.out));
}

bool Stream::write(std::string_view bytes) {
    ssize_t sent = send(client_->number(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) return end();
    sent = std::max<ssize_t>(sent, 0);
    outcome_.unsent.assign(bytes.substr(static_cast<std::size_t>(sent)));
    const State next = outcome_.unsent.empty() ? State::kReads : State::kWrites;
    if (next == state_) return false;
    // One of the two at a time: a socket whose peer is gone would be ready for ever.
    forget();
    state_ = next;
    is_held = next == State::kWrites;
    const bool can_wait = is_held ? wait_for(client_->number(), EPOLLOUT) : wait_for(upstream_, EPOLLIN);
    return !can_wait && end();
}

void Stream::count(const Counts& counts, double now) {
    if (counts.prompt != 0) outcome_.counts.prompt = counts.prompt;
    if (counts.answer == 0) return;
    const double gap = now - outcome_.last;
    const double each = gap / static_cast<double>(counts.answer);
    const auto bucket = std::lower_bound(bounds_->begin(), bounds_->end(), each) - bounds_->begin();
    outcome_.tally[static_cast<std::size_t>(bucket)] += counts.answer;
    outcome_.gap_sum += gap;
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
    return true;
}

bool Stream::wait_for(int socket, std::uint32_t events) const {
    epoll_event event{};
    event.events = events;
    event.data.u64 = number;
    return epoll_ctl(epoll_->number(), EPOLL_CTL_ADD, socket, &event) == 0;
}

void Stream::forget() const {
    epoll_ctl(epoll_->number(), EPOLL_CTL_DEL, state_ == State::kReads ? upstream_ : client_->number(), nullptr);
}

}  // namespace relay
