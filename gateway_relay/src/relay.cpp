#include "relay.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <system_error>
#include <utility>

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace relay {

namespace {

/// From so many tokens on an answer is the thread's.
constexpr std::int64_t kShort = 4;

/// Of the descriptors that are no stream's: that which ends the thread, and that which tells it of `asked_`.
constexpr std::uint64_t kQuit = 0, kAsked = 1;

void ring(int event) {
    const std::uint64_t one = 1;
    // It cannot fail but for a counter that is full, which rings as well.
    [[maybe_unused]] const ssize_t written = write(event, &one, sizeof one);
}

}  // namespace

Relay::Relay(std::vector<double> bounds)
    : bounds_(std::make_shared<const std::vector<double>>(std::move(bounds))),
      epoll_(std::make_shared<const Descriptor>(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      own_epoll_(std::make_shared<const Descriptor>(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      ended_event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd"),
      quit_event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd"),
      asked_event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd") {
    for (const auto& [rings, number] : {std::pair(&quit_event_, kQuit), std::pair(&asked_event_, kAsked)}) {
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.u64 = number;
        if (epoll_ctl(epoll_->number(), EPOLL_CTL_ADD, rings->number(), &event) != 0)
            throw std::system_error(errno, std::generic_category(), "epoll_ctl");
    }
    // Signals are for the interpreter's own threads.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        thread_ = std::thread([this] { run(); });
    } catch (...) {
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        throw;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Relay::~Relay() { close(); }

void Relay::add(const std::shared_ptr<Stream>& stream) {
    const std::lock_guard lock(mutex_);
    streams_.emplace(stream->number, stream);
}

/// Once it is in the table, where it is looked for as soon as its first step is due.
void Relay::begin(Stream& stream) {
    try {
        stream.begin();
    } catch (...) {
        stop(stream);
        throw;
    }
}

std::shared_ptr<Stream> Relay::start(int upstream, int client, Frame frame, double last) {
    auto stream =
        std::make_shared<Stream>(++last_number_, epoll_, upstream, client, std::move(frame), last, bounds_);
    add(stream);
    begin(*stream);
    return stream;
}

std::shared_ptr<Stream> Relay::ask(
    std::shared_ptr<Upstreams> upstreams, std::string_view request, int client, Frame frame, Script script) {
    Upstreams::Socket kept = upstreams->take();
    const bool is_kept = kept != nullptr;
    auto stream = std::make_shared<Stream>(
        ++last_number_, is_kept ? own_epoll_ : epoll_, std::move(upstreams), std::move(kept), request, client,
        std::move(frame), std::move(script), bounds_);
    add(stream);
    if (is_kept) {
        begin(*stream);
        return stream;
    }
    bool is_first = false;
    {
        const std::lock_guard lock(mutex_);
        is_first = asked_.empty();
        asked_.push_back(stream->number);
    }
    if (is_first) ring(asked_event_.number());
    return stream;
}

Outcome Relay::stop(Stream& stream) {
    {
        const std::lock_guard lock(mutex_);
        streams_.erase(stream.number);
    }
    return stream.stop();
}

std::vector<std::uint64_t> Relay::ended() {
    std::uint64_t rung = 0;
    [[maybe_unused]] const ssize_t size = read(ended_event_.number(), &rung, sizeof rung);
    const std::lock_guard lock(mutex_);
    return std::exchange(ended_, {});
}

std::vector<std::uint64_t> Relay::poll() {
    std::array<epoll_event, 64> events;
    const int count = epoll_wait(own_epoll_->number(), events.data(), static_cast<int>(events.size()), 0);
    std::vector<std::uint64_t> numbers;
    for (int i = 0; i < count; ++i) {
        const std::uint64_t number = events[static_cast<std::size_t>(i)].data.u64;
        const auto stream = find(number);
        if (stream == nullptr) continue;
        bool has_ended = stream->step(own_workspace_);
        if (!has_ended && stream->tokens.load(std::memory_order_relaxed) >= kShort) has_ended = stream->move_to(epoll_);
        if (has_ended) numbers.push_back(number);
    }
    return numbers;
}

void Relay::close() {
    if (!thread_.joinable()) return;
    ring(quit_event_.number());
    thread_.join();
}

void Relay::run() {
    pthread_setname_np(pthread_self(), "relay");
    Workspace workspace;
    std::array<epoll_event, 256> events;
    for (;;) {
        const int count = epoll_wait(epoll_->number(), events.data(), static_cast<int>(events.size()), -1);
        bool some_ended = false;
        for (int i = 0; i < count; ++i) {
            const std::uint64_t number = events[static_cast<std::size_t>(i)].data.u64;
            if (number == kQuit) return;
            if (number == kAsked) {
                some_ended = connect() || some_ended;
            } else if (const auto stream = find(number); stream != nullptr && stream->step(workspace)) {
                has_ended(number);
                some_ended = true;
            }
        }
        if (some_ended) ring(ended_event_.number());
    }
}

/// For those that need a connection, a few at a time: others wait. True if any of them has ended.
bool Relay::connect() {
    constexpr std::size_t kAtOnce = 16;
    std::vector<std::uint64_t> numbers;
    {
        const std::lock_guard lock(mutex_);
        const std::size_t count = std::min(asked_.size(), kAtOnce);
        numbers.assign(asked_.begin(), asked_.begin() + static_cast<std::ptrdiff_t>(count));
        asked_.erase(asked_.begin(), asked_.begin() + static_cast<std::ptrdiff_t>(count));
        if (asked_.empty()) {
            std::uint64_t rung = 0;
            [[maybe_unused]] const ssize_t size = read(asked_event_.number(), &rung, sizeof rung);
        }
    }
    bool some_ended = false;
    for (const std::uint64_t number : numbers) {
        const auto stream = find(number);
        if (stream == nullptr || !stream->connect()) continue;
        has_ended(number);
        some_ended = true;
    }
    return some_ended;
}

void Relay::has_ended(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    ended_.push_back(number);
    streams_.erase(number);
}

std::shared_ptr<Stream> Relay::find(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    const auto found = streams_.find(number);
    return found == streams_.end() ? nullptr : found->second;
}

}  // namespace relay
