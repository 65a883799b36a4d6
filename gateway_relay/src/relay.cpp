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
/// Of requests that come at once so many are asked at once; the rest is the thread's.
constexpr std::size_t kAtOnce = 32;
/// Whoever asks wakes the thread once for so many requests: that costs as much as a quarter of one.
constexpr std::size_t kTogether = 4;

/// Of the descriptors that are no stream's: that which ends the thread, and that which tells it of `asked_`.
constexpr std::uint64_t kQuit = 0, kAsked = 1;

void ring(int event) {
    const std::uint64_t one = 1;
    // It cannot fail but for a counter that is full, which rings as well.
    [[maybe_unused]] const ssize_t written = write(event, &one, sizeof one);
}

void answer_ring(int event) {
    std::uint64_t rung = 0;
    [[maybe_unused]] const ssize_t size = read(event, &rung, sizeof rung);
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

std::shared_ptr<Stream> Relay::start(int upstream, int client, Frame frame, double last) {
    auto stream =
        std::make_shared<Stream>(++last_number_, epoll_, upstream, client, std::move(frame), last, bounds_);
    {
        // Ahead of its first step, for which it is looked for there.
        const std::lock_guard lock(mutex_);
        streams_.emplace(stream->number, stream);
    }
    try {
        stream->begin();
    } catch (...) {
        stop(*stream);
        throw;
    }
    return stream;
}

std::shared_ptr<Stream> Relay::ask(
    std::shared_ptr<Upstreams> upstreams, std::string_view request, int client, Script script) {
    Upstreams::Socket kept = upstreams->take();
    const bool is_own = kept != nullptr && unflushed_ < kAtOnce;
    auto stream = std::make_shared<Stream>(
        ++last_number_, is_own ? own_epoll_ : epoll_, std::move(upstreams), std::move(kept), request, client,
        std::move(script), bounds_);
    bool is_due = false;
    {
        const std::lock_guard lock(mutex_);
        streams_.emplace(stream->number, stream);
        if (!is_own) {
            asked_.push_back(stream);
            is_due = ++unrung_ == kTogether;
        }
    }
    if (is_due) wake();
    if (is_own) {
        ++unflushed_;
        if (stream->ask()) have_ended({stream->number});
    }
    return stream;
}

void Relay::flush() {
    unflushed_ = 0;
    if (unrung_ != 0) wake();
}

void Relay::wake() {
    unrung_ = 0;
    ring(asked_event_.number());
}

Outcome Relay::stop(Stream& stream) {
    {
        const std::lock_guard lock(mutex_);
        streams_.erase(stream.number);
    }
    return stream.stop();
}

std::vector<std::uint64_t> Relay::ended() {
    answer_ring(ended_event_.number());
    const std::lock_guard lock(mutex_);
    return std::exchange(ended_, {});
}

std::vector<std::uint64_t> Relay::poll() {
    std::array<epoll_event, 64> events;
    const int count = epoll_wait(own_epoll_->number(), events.data(), static_cast<int>(events.size()), 0);
    std::vector<std::uint64_t> numbers;
    unflushed_ = 0;
    if (count <= 0) return numbers;
    for (const auto& stream : found({events.data(), static_cast<std::size_t>(count)})) {
        bool has_ended = stream->step(own_workspace_);
        if (!has_ended && stream->tokens.load(std::memory_order_relaxed) >= kShort) has_ended = stream->move_to(epoll_);
        if (has_ended) numbers.push_back(stream->number);
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
    bool has_more = false;
    for (;;) {
        const int count =
            epoll_wait(epoll_->number(), events.data(), static_cast<int>(events.size()), has_more ? 0 : -1);
        if (count < 0) continue;
        const std::span<const epoll_event> ready(events.data(), static_cast<std::size_t>(count));
        const auto has = [&ready](std::uint64_t number) {
            return std::any_of(ready.begin(), ready.end(), [number](const auto& one) { return one.data.u64 == number; });
        };
        if (has(kQuit)) return;
        if (has(kAsked)) answer_ring(asked_event_.number());
        std::vector<std::uint64_t> ended;
        for (const auto& stream : found(ready))
            if (stream->step(workspace)) ended.push_back(stream->number);
        has_more = ask_some(ended);
        if (!ended.empty()) have_ended(ended);
    }
}

/// A few at a time: others wait. Adds those of them that have `ended`; true if there are more.
bool Relay::ask_some(std::vector<std::uint64_t>& ended) {
    constexpr std::size_t kSome = 16;
    Streams streams;
    bool has_more = false;
    {
        const std::lock_guard lock(mutex_);
        for (; !asked_.empty() && streams.size() < kSome; asked_.pop_front())
            streams.push_back(std::move(asked_.front()));
        has_more = !asked_.empty();
        // What is here now it need not be told of.
        unrung_ = 0;
    }
    for (const auto& stream : streams)
        if (stream->ask()) ended.push_back(stream->number);
    return has_more;
}

void Relay::have_ended(const std::vector<std::uint64_t>& numbers) {
    {
        const std::lock_guard lock(mutex_);
        ended_.insert(ended_.end(), numbers.begin(), numbers.end());
        for (const std::uint64_t number : numbers) streams_.erase(number);
    }
    ring(ended_event_.number());
}

/// Those of the streams whose `events` these are that nobody has stopped.
Relay::Streams Relay::found(std::span<const epoll_event> events) {
    Streams streams;
    streams.reserve(events.size());
    const std::lock_guard lock(mutex_);
    for (const epoll_event& event : events)
        if (const auto one = streams_.find(event.data.u64); one != streams_.end()) streams.push_back(one->second);
    return streams;
}

}  // namespace relay
