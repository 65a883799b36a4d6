// All streams, and who moves them: a thread, or for as long as an answer that was asked for here is short, whoever asked.
// To wake the thread costs more than a short answer does, but less than a new connection, or than many answers at once.

#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include <sys/epoll.h>

#include "descriptor.hpp"
#include "stream.hpp"

namespace relay {

class Relay {
  public:
    /// `bounds` as of `Bounds`. Throws std::system_error.
    explicit Relay(std::vector<double> bounds);
    ~Relay();
    Relay(const Relay&) = delete;
    Relay& operator=(const Relay&) = delete;

    /// From now on what comes from `upstream` goes to `client`, in chunks of HTTP/1.1 with an event for each text.
    ///
    /// Both are sockets that do not block. `client` is duplicated; `upstream` must stay open until the stream is stopped,
    /// stand between two chunks, and be read by nobody else. `last` is when the last tokens came, in seconds of the
    /// monotonic clock. Throws std::system_error.
    std::shared_ptr<Stream> start(int upstream, int client, Frame frame, double last);

    /// Asks one of `upstreams` with `request`, and tells the answer to `client`, as for `start`. What the thread is to ask
    /// it may not hear of before `flush`. Throws std::system_error.
    std::shared_ptr<Stream> ask(
        std::shared_ptr<Upstreams> upstreams, std::string_view request, int client, Script script);

    /// Whether there is something to `flush`.
    [[nodiscard]] bool is_due() const { return unrung_ != 0; }

    /// No more comes at once: tells the thread what it is to ask.
    void flush();

    /// From here on neither socket of a stream is touched. What came of it is for the first caller.
    Outcome stop(Stream& stream);

    /// A descriptor that can be read when streams have ended by themselves.
    [[nodiscard]] int ended_descriptor() const { return ended_event_.number(); }

    /// The numbers of those since the last call. They are to be stopped all the same.
    std::vector<std::uint64_t> ended();

    /// A descriptor that can be read when `poll` has something to do.
    [[nodiscard]] int poll_descriptor() const { return own_epoll_->number(); }

    /// Moves the streams that were asked for and are not the thread's yet. The numbers of those that have ended, which are
    /// to be stopped all the same. Does not wait.
    std::vector<std::uint64_t> poll();

    /// Ends the thread: none of its streams moves any more.
    void close();

  private:
    using Streams = std::vector<std::shared_ptr<Stream>>;

    void run();
    void wake();
    bool ask_some(std::vector<std::uint64_t>& ended);
    void have_ended(const std::vector<std::uint64_t>& numbers);
    Streams found(std::span<const epoll_event> events);

    const Bounds bounds_;
    const Stream::Epoll epoll_;
    const Stream::Epoll own_epoll_;
    Workspace own_workspace_;
    const Descriptor ended_event_;
    const Descriptor quit_event_;
    const Descriptor asked_event_;
    std::mutex mutex_;
    /// 0 and 1 are no streams'.
    std::atomic<std::uint64_t> last_number_ = 1;
    std::unordered_map<std::uint64_t, std::shared_ptr<Stream>> streams_;
    std::vector<std::uint64_t> ended_;
    /// Those that the thread is to ask.
    std::deque<std::shared_ptr<Stream>> asked_;
    /// How many of these came since it was told of any.
    std::atomic<std::size_t> unrung_ = 0;
    /// How many came since the last `flush`, or `poll`, that the thread was not to ask.
    std::size_t unflushed_ = 0;
    std::thread thread_;
};

}  // namespace relay
