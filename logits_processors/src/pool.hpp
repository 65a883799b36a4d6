// Threads for work that is many small independent tasks: started without waiting, joined by a caller who helps.

#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace constraints {

class Pool {
  public:
    /// `threads` counts the caller's own; with 1 there are no others, and all is done in `join`.
    ///
    /// The others may run on every processor of the container but the caller's: vLLM binds its worker to the processors
    /// of its own threads, and a thread would inherit that; and one that is woken often takes the processor of the one
    /// that wakes it, instead of an idle one, so that both take turns.
    explicit Pool(unsigned threads);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    /// When the other threads are woken, which costs tens of microseconds: at the start, or only once the caller, in
    /// `join`, has been at it for much longer than that.
    enum class Wake { now, if_long };

    /// Does the tasks from `first` up to, but not including, `last`.
    using Work = std::function<void(std::size_t first, std::size_t last)>;

    /// Begins the tasks 0 to `count - 1`, in any order; a thread takes `share` at a time, since taking costs too. Must be
    /// joined before the next start.
    void start(std::size_t count, std::size_t share, Work work, Wake wake);

    /// Helps, and returns when all tasks of the last start are done. Throws what a task threw.
    void join();

    [[nodiscard]] unsigned threads() const { return static_cast<unsigned>(helpers_.size()) + 1; }

  private:
    void help();
    bool take_share();
    void wake_helpers();
    void leave_processor();

    std::mutex mutex_;
    std::condition_variable started_, finished_;
    Work work_;
    std::size_t count_ = 0;
    std::size_t share_ = 1;
    std::atomic<std::size_t> next_ = 0;
    std::uint64_t generation_ = 0;
    bool is_open_ = false;
    bool is_waking_due_ = false;
    bool is_ending_ = false;
    unsigned active_ = 0;
    /// The processor that is left to the caller; -1 if none is yet.
    int left_ = -1;
    std::exception_ptr failure_;
    std::vector<std::thread> helpers_;
};

}  // namespace constraints
