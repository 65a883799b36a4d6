// The mask of one row: which tokens may come next, one bit each in packed 32-bit words.
//
// A row remembers which of its cells, of four words each, are not what they were filled with, so that the next mask costs
// by the tokens that a machine names, not by the vocabulary.

#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "values.hpp"

namespace constraints {

/// So many words of a mask as one wide store has.
struct Cell {
    static constexpr std::uint32_t kWords = 4;
    static constexpr std::uint32_t kTokens = 32 * kWords;

    std::uint32_t index;
    /// How many tokens of the same set are in the cells before it.
    std::uint32_t before;
    std::array<std::uint32_t, kWords> words;

    bool operator==(const Cell&) const = default;
};

/// Which cells of a mask are not what it was filled with. A few of them, and any that lie together, take no memory elsewhere.
class TouchedCells {
  public:
    void add(std::uint32_t cell) {
        if (size_ < kFew) {
            few_[size_] = cell;
        } else {
            if (size_ == kFew) many_.assign(few_.begin(), few_.end());
            many_.push_back(cell);
        }
        ++size_;
    }

    /// Into an empty set: cells in order.
    void add(std::span<const Cell> cells) {
        if (cells.empty()) return;
        const std::uint32_t begin = cells.front().index, end = cells.back().index + 1;
        if (end - begin <= 2 * cells.size()) {
            run_begin_ = begin;
            run_end_ = end;
        } else {
            for (const Cell& cell : cells) add(cell.index);
        }
    }

    void clear() { size_ = run_begin_ = run_end_ = 0; }

    [[nodiscard]] std::size_t size() const { return size_ + (run_end_ - run_begin_); }

    /// Whether a cell is one of them. Of many, not all are looked at: `maybe`.
    enum class Has { yes, no, maybe };
    [[nodiscard]] Has has(std::uint32_t cell) const {
        if (size_ > kFew) return many_.back() == cell ? Has::yes : Has::maybe;
        for (std::uint32_t place = 0; place < size_; ++place)
            if (few_[place] == cell) return Has::yes;
        return run_begin_ <= cell && cell < run_end_ ? Has::yes : Has::no;
    }

    /// Calls `each` with every cell, with some more than once.
    template <typename Each>
    void for_each(Each each) const {
        const std::uint32_t* cells = size_ <= kFew ? few_.data() : many_.data();
        for (std::uint32_t place = 0; place < size_; ++place) each(cells[place]);
        for (std::uint32_t cell = run_begin_; cell < run_end_; ++cell) each(cell);
    }

  private:
    static constexpr std::uint32_t kFew = 5;

    std::uint32_t size_ = 0;
    std::array<std::uint32_t, kFew> few_ = {};
    std::uint32_t run_begin_ = 0;
    std::uint32_t run_end_ = 0;
    /// All of them, if they are more than a few; without the run.
    std::vector<std::uint32_t> many_;
};

class MaskRow {
  public:
    MaskRow() = default;

    /// `words` holds `words_for(vocabulary)` words and the rest of their last cell, which this row alone writes from now
    /// on. `must_own`: its mask must be in them whatever it is, since they are read elsewhere.
    MaskRow(std::uint32_t* words, std::uint32_t vocabulary, bool must_own)
        : words_(words), vocabulary_(vocabulary), must_own_(must_own) {}

    static constexpr std::uint32_t words_for(std::uint32_t vocabulary) { return (vocabulary + 31) / 32; }

    /// Fetches what the next `forbid_all` or `allow_all` will write.
    void prefetch() const {
        touched_.for_each([&](std::uint32_t cell) { __builtin_prefetch(words_ + Cell::kWords * cell, 1); });
    }

    /// Nothing is allowed but what `allow` names.
    void forbid_all() { refill(0); }

    /// All is allowed but what `forbid` names.
    void allow_all() { refill(~std::uint32_t{0}); }

    /// A token outside the vocabulary stays forbidden: the row has no place for it.
    void allow(Token token) {
        if (token >= vocabulary_) return;
        const std::uint32_t before = touch(token / 32), after = before | std::uint32_t{1} << (token % 32);
        allowed_ += before != after;
        words_[token / 32] = after;
    }

    void forbid(Token token) {
        if (token >= vocabulary_) return;
        const std::uint32_t before = touch(token / 32), after = before & ~(std::uint32_t{1} << (token % 32));
        allowed_ -= before != after;
        words_[token / 32] = after;
    }

    /// After `forbid_all`: allows the `count` tokens of these cells, which are in order and inside the vocabulary.
    void allow_cells(std::span<const Cell> cells, std::uint32_t count) {
        for (const Cell& cell : cells) std::copy_n(cell.words.begin(), Cell::kWords, words_ + Cell::kWords * cell.index);
        touched_.add(cells);
        allowed_ = count;
    }

    /// After `forbid_all`: allows a prepared set with `count` tokens, all inside the vocabulary. The words of the set must
    /// stay as they are until the next mask: where they can be, they are the mask, and nothing is copied.
    void allow_set(std::span<const std::uint32_t> set, std::uint32_t count) {
        allowed_ = count;
        if (must_own_ || set.size() != words_for(vocabulary_))
            own(set);
        else
            shared_ = set.data();
    }

    [[nodiscard]] std::uint32_t allowed() const { return allowed_; }
    [[nodiscard]] std::uint32_t vocabulary() const { return vocabulary_; }
    [[nodiscard]] std::span<const std::uint32_t> words() const {
        return {shared_ == nullptr ? words_ : shared_, words_for(vocabulary_)};
    }

    /// Whether all cells but those of `touched` allow everything.
    [[nodiscard]] bool allows_the_rest() const { return fill_ != 0 && !dense_; }
    /// The cells that differ from the others, if they are known: there are few.
    [[nodiscard]] bool is_sparse() const { return !dense_ && shared_ == nullptr; }
    [[nodiscard]] const TouchedCells& touched() const { return touched_; }

  private:
    /// A copy of shared words, to be changed.
    void own(std::span<const std::uint32_t> set) {
        std::copy(set.begin(), set.end(), words_);
        shared_ = nullptr;
        touched_.clear();
        dense_ = true;
    }

    /// Of a word that will be written: what it is.
    std::uint32_t touch(std::uint32_t index) {
        if (shared_ != nullptr) own(words());
        if (dense_) return words_[index];
        const std::uint32_t cell = index / Cell::kWords;
        const auto has = touched_.has(cell);
        if (has != TouchedCells::Has::yes) touched_.add(cell);
        // Not read where it is known, since it is far away.
        return has == TouchedCells::Has::no && index < vocabulary_ / 32 ? fill_ : words_[index];
    }

    void refill(std::uint32_t fill) {
        const std::uint32_t size = words_for(vocabulary_);
        shared_ = nullptr;
        if (dense_ || fill != fill_ || touched_.size() > size / Cell::kWords / 4) {
            fill_ = fill;
            std::fill_n(words_, size, fill);
        } else {
            touched_.for_each([&](std::uint32_t cell) { std::fill_n(words_ + Cell::kWords * cell, Cell::kWords, fill); });
        }
        // The last word may have bits that are no tokens.
        if (fill != 0 && vocabulary_ % 32 != 0) words_[size - 1] = fill & ((std::uint32_t{1} << (vocabulary_ % 32)) - 1);
        dense_ = false;
        touched_.clear();
        allowed_ = fill == 0 ? 0 : vocabulary_;
    }

    // In one cache line.
    std::uint32_t* words_ = nullptr;
    std::uint32_t vocabulary_ = 0;
    std::uint32_t fill_ = 0;
    std::uint32_t allowed_ = 0;
    // What the words hold is unknown until the first refill.
    bool dense_ = true;
    bool must_own_ = false;
    const std::uint32_t* shared_ = nullptr;
    TouchedCells touched_;
};

}  // namespace constraints
