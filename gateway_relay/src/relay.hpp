// The thread that moves all streams, and what other threads ask of it.

#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

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

    /// From here on neither socket of a stream is touched. What came of it is for the first caller.
    Outcome stop(Stream& stream);

    /// A descriptor that can be read when streams have ended by themselves.
    [[nodiscard]] int ended_descriptor() const { return ended_event_.number(); }

    /// The numbers of those since the last call. They are to be stopped all the same.
    std::vector<std::uint64_t> ended();

    /// Ends the thread: no stream moves any more.
    void close();

  private:
    void run();
    std::shared_ptr<Stream> find(std::uint64_t number);

    const Bounds bounds_;
    const Stream::Epoll epoll_;
    const Descriptor ended_event_;
    const Descriptor quit_event_;
    std::mutex mutex_;
    std::uint64_t last_number_ = 0;
    std::unordered_map<std::uint64_t, std::shared_ptr<Stream>> streams_;
    std::vector<std::uint64_t> ended_;
    std::thread thread_;
};

}  // namespace relay
