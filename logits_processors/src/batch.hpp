// The constrained rows of an engine's batch: their machines, their masks, and the work on them.
//
// Where a request stands is a function of its output alone. Each row has the tokens of its output; what is new is given to
// its machine, and where the output is not what it was, the machine begins again. Nothing is counted per call.

#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "logits.hpp"
#include "machine.hpp"
#include "memory.hpp"
#include "pool.hpp"

namespace constraints {

class Batch {
  public:
    /// The memory that `masks` of `capacity` rows need, in 32-bit words: first the row of each mask, then the masks.
    static std::size_t memory_words(std::uint32_t vocabulary, std::size_t capacity);

    /// `memory` (of `memory_words`, aligned to 64 bytes) is the caller's and outlives the batch; without it the batch has
    /// its own. `threads` as in Pool.
    Batch(std::uint32_t vocabulary, std::size_t capacity, unsigned threads, std::uint32_t* memory = nullptr);
    ~Batch();
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;

    /// The row gets a new request, whatever was in it. Without a machine it is one without a constraint.
    /// Returns the place of its mask. Throws std::length_error if more rows are constrained than there is room for.
    std::optional<std::size_t> put(std::size_t row, std::unique_ptr<Machine> machine, std::vector<Token> ends);
    void remove(std::size_t row);
    void move(std::size_t from, std::size_t to);
    void swap(std::size_t one, std::size_t other);

    /// Where the mask of a row is, if it has a constraint. It stays there when the row moves.
    [[nodiscard]] std::optional<std::size_t> place_of(std::size_t row) const;

    /// The rows that have a constraint, in the order of their masks' places.
    struct Constrained {
        std::size_t row;
        std::size_t place;
    };
    [[nodiscard]] std::vector<Constrained> constrained() const;

    /// Brings what is known of a place closer to the processor: rows are many, and between two steps a model was computed.
    void prefetch(std::size_t place) const {
        const Slot& slot = slots_[place];
        __builtin_prefetch(&slot, 1);
        __builtin_prefetch(&slot.mask, 1);
    }
    /// After `prefetch`, once that is there.
    void prefetch_machine(std::size_t place) const {
        const Slot& slot = slots_[place];
        __builtin_prefetch(slot.output.data() + slot.output.size(), 1);
        __builtin_prefetch(slot.machine.get(), 1);
    }

    /// What is known of the output at a mask's place.
    [[nodiscard]] std::span<const Token> output(std::size_t place) const;

    /// The output has this token more.
    void append(std::size_t place, Token token) {
        wait();
        Slot& slot = slots_[place];
        slot.output.push_back(token);
        slot.last = token;
        slot.is_current = false;
        slot.machine->prefetch(token);
    }

    /// The output has its first `kept` tokens only.
    void cut(std::size_t place, std::size_t kept);

    /// Begins to compute the masks of all rows whose output has changed, and returns.
    void start();

    /// Waits until all started masks are there, and computes those that are not. The memory is written by the threads of
    /// a start and in here, and at no other time.
    void finish();

    /// `finish`, and then writes all masks. Rows without a constraint are not touched. Throws std::length_error if the
    /// logits have fewer rows than the batch, std::invalid_argument if they have another number of columns.
    void apply(const Logits& logits);

    /// The caller's memory as it is copied to a device: after `finish`, its first `used_words` words. A place that no row has is
    /// marked by the row -1.
    [[nodiscard]] const std::uint32_t* memory() const { return memory_; }
    /// The mask at a place, after `finish`.
    [[nodiscard]] std::span<const std::uint32_t> mask(std::size_t place) const { return slots_[place].mask.words(); }
    [[nodiscard]] std::size_t used_places() const;
    [[nodiscard]] std::size_t used_words() const { return masks_begin_ + used_places() * stride_; }
    /// Where in the memory the masks begin, and how far they are apart, in words.
    [[nodiscard]] std::size_t masks_begin() const { return masks_begin_; }
    [[nodiscard]] std::size_t stride() const { return stride_; }

    [[nodiscard]] std::uint32_t vocabulary() const { return vocabulary_; }
    [[nodiscard]] std::uint64_t dead_ends() const { return dead_ends_.load(std::memory_order_relaxed); }
    [[nodiscard]] unsigned threads() const { return pool_.threads(); }

  private:
    /// What a step needs of a row is in its first two cache lines.
    struct alignas(64) Slot {
        std::unique_ptr<Machine> machine;
        std::vector<Token> output;
        /// How much of the output the machine has had.
        std::size_t consumed = 0;
        /// That of the output, so that it need not be fetched.
        Token last = 0;
        bool must_reset = false;
        bool is_current = false;
        alignas(64) MaskRow mask;
        std::vector<Token> ends;
    };

    void wait() {
        if (is_started_) join();
    }
    void join();
    void begin(Pool::Wake wake);
    void release(std::size_t row);
    /// Those of the pending ones.
    void compute_masks(std::size_t first, std::size_t last);
    /// Gives the machine what is new of the output.
    static void consume(Slot& slot);
    /// After `consume`.
    void compute(Slot& slot);

    std::uint32_t vocabulary_;
    std::size_t stride_;
    std::size_t masks_begin_;
    Memory own_memory_;
    std::uint32_t* memory_;
    std::vector<Slot> slots_;
    /// The place of each row's mask, or -1.
    std::vector<int> places_;
    /// Whether the rows of the masks in the memory are those of now.
    bool is_memory_labelled_ = false;
    std::vector<std::size_t> pending_;
    bool is_started_ = false;
    std::atomic<std::uint64_t> dead_ends_ = 0;
    // Last: its threads end first.
    Pool pool_;
};

}  // namespace constraints
