// One stream on its way from Triton's socket to the client's: reading, translating, writing, counting. It belongs to the
// relay's thread while it runs; `stop`, from another thread, takes it away between two of its steps.

#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "descriptor.hpp"
#include "event.hpp"

namespace relay {

/// The upper bounds of the buckets of inter-token latency, in seconds, ascending.
using Bounds = std::shared_ptr<const std::vector<double>>;

/// What was relayed, and what is left for whoever goes on.
struct Outcome {
    /// What came from Triton and was not relayed, from the beginning of a chunk on.
    std::string rest;
    /// The end of what must still be written to the client, ahead of anything else.
    std::string unsent;
    Counts counts;
    /// Of the tokens' times between them, as `Bounds` has buckets, and one more; their sum in seconds.
    std::vector<std::int64_t> tally;
    double gap_sum = 0;
    /// When the last tokens came, in seconds of the monotonic clock.
    double last = 0;
};

/// What all streams share while one of them takes a step: only the relay's thread uses it.
struct Workspace {
    std::vector<char> in;
    std::string out;

    Workspace();
};

class Stream {
  public:
    using Epoll = std::shared_ptr<const Descriptor>;

    /// Waits with `epoll` from now on, under `number`; the rest as of `Relay::start`. Throws std::system_error.
    Stream(std::uint64_t number, Epoll epoll, int upstream, int client, Frame frame, double last, Bounds bounds);
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    /// What can be done now that a socket is ready. True if it was the last step: `stop` says how it stands.
    bool step(Workspace& workspace);

    /// From here on neither socket is touched. What came of it, whether it had ended or not, for the first caller.
    Outcome stop();

    const std::uint64_t number;
    /// Tokens so far.
    std::atomic<std::int64_t> tokens{0};
    /// Whether it waits for the client to read.
    std::atomic<bool> is_held{false};

  private:
    enum class State { kReads, kWrites, kEnded };

    bool read(Workspace& workspace);
    bool write(std::string_view bytes);
    bool wait_for(int socket, std::uint32_t events) const;
    void forget() const;
    void count(const Counts& counts, double now);
    bool end();

    std::mutex mutex_;
    const Epoll epoll_;
    const int upstream_;
    /// A duplicate, until the end: the server may close its own at any time.
    std::optional<Descriptor> client_;
    const Frame frame_;
    const Bounds bounds_;
    State state_ = State::kReads;
    /// The beginning of a chunk that is not complete.
    std::string partial_;
    Outcome outcome_;
};

}  // namespace relay
