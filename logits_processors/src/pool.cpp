#include "pool.hpp"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace constraints {

namespace {

constexpr std::chrono::microseconds kLong{200};

cpu_set_t all_processors() {
    cpu_set_t all;
    CPU_ZERO(&all);
    // More than there are: the kernel takes those that the container has.
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) CPU_SET(cpu, &all);
    return all;
}

}  // namespace

Pool::Pool(unsigned threads) {
    // Signals are for the threads of the process whose pool this is.
    sigset_t all, before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    for (unsigned index = 1; index < threads; ++index) {
        helpers_.emplace_back([this] { help(); });
        ::pthread_setname_np(helpers_.back().native_handle(), "constraints");
        const cpu_set_t all = all_processors();
        ::pthread_setaffinity_np(helpers_.back().native_handle(), sizeof(all), &all);
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Pool::~Pool() {
    {
        const std::lock_guard lock(mutex_);
        is_ending_ = true;
        is_open_ = false;
    }
    started_.notify_all();
    for (auto& helper : helpers_) helper.join();
}

void Pool::start(std::size_t count, std::size_t share, Work work, Wake wake) {
    {
        const std::lock_guard lock(mutex_);
        work_ = std::move(work);
        count_ = count;
        share_ = share;
        next_.store(0, std::memory_order_relaxed);
        failure_ = nullptr;
        is_open_ = true;
        ++generation_;
    }
    is_waking_due_ = wake == Wake::if_long;
    if (wake == Wake::now) wake_helpers();
}

void Pool::leave_processor() {
    const int own = ::sched_getcpu();
    if (own < 0 || own == left_) return;
    left_ = own;
    cpu_set_t others = all_processors();
    CPU_CLR(own, &others);
    // Where there is no other one this does nothing.
    for (auto& helper : helpers_) ::pthread_setaffinity_np(helper.native_handle(), sizeof(others), &others);
}

void Pool::wake_helpers() {
    leave_processor();
    // No more than there is work for.
    for (std::size_t wanted = std::min((count_ + share_ - 1) / share_, helpers_.size()); wanted > 0; --wanted) started_.notify_one();
}

void Pool::join() {
    const auto begin = std::chrono::steady_clock::now();
    while (take_share()) {
        if (is_waking_due_ && std::chrono::steady_clock::now() - begin > kLong) {
            is_waking_due_ = false;
            wake_helpers();
        }
    }
    std::unique_lock lock(mutex_);
    is_open_ = false;
    finished_.wait(lock, [this] { return active_ == 0; });
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void Pool::help() {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    while (true) {
        started_.wait(lock, [&] { return is_ending_ || (is_open_ && generation_ != seen); });
        if (is_ending_) return;
        seen = generation_;
        ++active_;
        lock.unlock();
        while (take_share()) {
        }
        lock.lock();
        if (--active_ == 0) finished_.notify_one();
    }
}

/// Does the next few tasks; false if there are none left.
bool Pool::take_share() {
    const std::size_t first = next_.fetch_add(share_, std::memory_order_relaxed);
    if (first >= count_) return false;
    try {
        work_(first, std::min(first + share_, count_));
    } catch (...) {
        const std::lock_guard lock(mutex_);
        failure_ = std::current_exception();
    }
    return true;
}

}  // namespace constraints
