// One stream on its way from Triton's socket to the client's: reading, translating, writing, counting. It belongs to the
// relay's thread while it runs; `stop`, from another thread, takes it away between two of its steps.
//
// It either carries on with an answer that others have begun, on their connection to Triton, or it asks for one itself and
// tells it from the head to the end. Whatever it does not understand it leaves to who takes it over: all of a read, or
// what has come of a chunk.

#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "descriptor.hpp"
#include "event.hpp"
#include "telling.hpp"
#include "upstreams.hpp"

namespace relay {

/// The upper bounds of the buckets of inter-token latency, in seconds, ascending.
using Bounds = std::shared_ptr<const std::vector<double>>;

/// How one answer is told: behind the `head` of HTTP, in events that begin with its `identity`.
struct Script {
    std::string head;
    std::string identity;
    std::shared_ptr<const Telling> telling;
};

/// What was relayed, and what is left for whoever goes on.
struct Outcome {
    /// What came from Triton and was not relayed, from the beginning of a chunk on; of an answer that was asked for here
    /// and whose head is not `has_head`, from its beginning on.
    std::string rest;
    /// The end of what must still be written to the client, ahead of anything else.
    std::string unsent;
    Counts counts;
    /// Of the tokens' times between them, as `Bounds` has buckets, and one more; their sum in seconds.
    std::vector<std::int64_t> tally;
    double gap_sum = 0;
    /// When the last tokens came, in seconds of the monotonic clock; 0 before any.
    double last = 0;

    // Of one that was asked for here.

    /// The connection of a request that was sent and whose answer is not over: for who goes on. Of one that is not
    /// finished and has ended by itself there is none where it could not be made.
    Upstreams::Socket socket;
    bool has_head = false;
    /// The head and the first event are with the client, or in `unsent`.
    bool is_begun = false;
    /// All of the answer is with the client, or in `unsent`.
    bool is_finished = false;
    /// That it took to make the connection; 0 for one that was kept.
    double connect_seconds = 0;
    /// When the first event came, and the first tokens.
    double head_at = 0, first = 0;
    /// Why the engine has ended it; empty before.
    std::string reason;
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

    /// Waits with `epoll`, under `number`, once it was told to `begin`; the rest as of `Relay::start`. Throws
    /// std::system_error.
    Stream(std::uint64_t number, Epoll epoll, int upstream, int client, Frame frame, double last, Bounds bounds);

    /// Sends `request` once it was told to `ask`, on a `kept` connection of `upstreams` or a new one, and tells the answer
    /// by `script`, as of `Relay::ask`. Throws std::system_error.
    Stream(
        std::uint64_t number, Epoll epoll, std::shared_ptr<Upstreams> upstreams, Upstreams::Socket kept,
        std::string_view request, int client, Script script, Bounds bounds);
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    /// Throws std::system_error.
    void begin();

    /// In place of `begin`, for one that asks. True if that cannot be, and the stream has ended.
    bool ask();

    /// What can be done now that a socket is ready. True if it was the last step: `stop` says how it stands.
    bool step(Workspace& workspace);

    /// Waits with another epoll from now on. True if that cannot be, and the stream has ended.
    bool move_to(const Epoll& epoll);

    /// From here on neither socket is touched. What came of it, whether it had ended or not, for the first caller. A
    /// request of its own that had not is given up.
    Outcome stop();

    const std::uint64_t number;
    /// Tokens so far.
    std::atomic<std::int64_t> tokens{0};
    /// Whether it waits for the client to read.
    std::atomic<bool> is_held{false};
    /// Whether there is no connection yet.
    std::atomic<bool> is_connecting{false};
    /// Whether all has come of what it asked for: from here on the client may have all of the answer, and ask again.
    std::atomic<bool> is_finished{false};

  private:
    enum class State { kNew, kSends, kReads, kWrites, kEnded };

    /// A request of its own.
    struct Ask {
        std::shared_ptr<Upstreams> upstreams;
        Upstreams::Socket socket;
        Script script;
        std::string unsent;
        double since;
    };

    bool send_request(std::string_view request);
    bool go_on();
    bool read(Workspace& workspace);
    bool read_head(std::string_view& bytes);
    void finish(std::string& out) const;
    bool write(std::string_view bytes);
    bool wait_for(State state);
    void forget() const;
    int awaited() const { return state_ == State::kWrites ? client_->number() : upstream_; }
    void count(const Counts& counts, double now);
    bool end();

    std::mutex mutex_;
    Epoll epoll_;
    std::optional<Ask> ask_;
    int upstream_;
    /// A duplicate, until the end: the server may close its own at any time.
    std::optional<Descriptor> client_;
    const Frame frame_;
    const Bounds bounds_;
    State state_ = State::kNew;
    /// The beginning of a chunk that is not complete.
    std::string partial_;
    Outcome outcome_;
};

}  // namespace relay
