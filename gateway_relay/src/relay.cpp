#include "relay.hpp"

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

/// Of the descriptor that ends the thread; streams are numbered from 1.
constexpr std::uint64_t kQuit = 0;

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
      quit_event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd") {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = kQuit;
    if (epoll_ctl(epoll_->number(), EPOLL_CTL_ADD, quit_event_.number(), &event) != 0) {
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

template <typename... Arguments>
std::shared_ptr<Stream> Relay::add(const Stream::Epoll& epoll, Arguments&&... arguments) {
    auto stream = std::make_shared<Stream>(++last_number_, epoll, std::forward<Arguments>(arguments)..., bounds_);
    {
        const std::lock_guard lock(mutex_);
        streams_.emplace(stream->number, stream);
    }
    // Not before: the thread looks for it there as soon as its first step is due.
    try {
        stream->begin();
    } catch (...) {
        stop(*stream);
        throw;
    }
    return stream;
}

std::shared_ptr<Stream> Relay::start(int upstream, int client, Frame frame, double last) {
    return add(epoll_, upstream, client, std::move(frame), last);
}

std::shared_ptr<Stream> Relay::ask(
    std::shared_ptr<Upstreams> upstreams, std::string_view request, int client, Frame frame, Script script) {
    return add(own_epoll_, std::move(upstreams), request, client, std::move(frame), std::move(script));
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
        bool has_ended = false;
        for (int i = 0; i < count; ++i) {
            const std::uint64_t number = events[static_cast<std::size_t>(i)].data.u64;
            if (number == kQuit) return;
            const auto stream = find(number);
            if (stream == nullptr || !stream->step(workspace)) continue;
            has_ended = true;
            const std::lock_guard lock(mutex_);
            ended_.push_back(number);
            streams_.erase(number);
        }
        if (has_ended) ring(ended_event_.number());
    }
}

std::shared_ptr<Stream> Relay::find(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    const auto found = streams_.find(number);
    return found == streams_.end() ? nullptr : found->second;
}

}  // namespace relay
