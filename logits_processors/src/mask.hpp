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

    std::uint32_t index;
    std::array<std::uint32_t, kWords> words;

    bool operator==(const Cell&) const = default;
};

class MaskRow {
  public:
    MaskRow() = default;

    /// `words` holds `words_for(vocabulary)` words and the rest of their last cell, which this row alone writes from now
    /// on. `must_own`: its mask must be in them whatever it is, since they are read elsewhere.
    MaskRow(std::uint32_t* words, std::uint32_t vocabulary, bool must_own)
        : words_(words), vocabulary_(vocabulary), must_own_(must_own) {}

    static constexpr std::uint32_t words_for(std::uint32_t vocabulary) { return (vocabulary + 31) / 32; }

    /// Nothing is allowed but what `allow` names.
    void forbid_all() { refill(0); }

    /// All is allowed but what `forbid` names.
    void allow_all() { refill(~std::uint32_t{0}); }

    /// A token outside the vocabulary stays forbidden: the row has no place for it.
    void allow(Token token) {
        if (token >= vocabulary_) return;
        std::uint32_t& word = touch(token / 32);
        const std::uint32_t bit = std::uint32_t{1} << (token % 32);
        allowed_ += (word & bit) == 0;
        word |= bit;
    }

    void forbid(Token token) {
        if (token >= vocabulary_) return;
        std::uint32_t& word = touch(token / 32);
        const std::uint32_t bit = std::uint32_t{1} << (token % 32);
        allowed_ -= (word & bit) != 0;
        word &= ~bit;
    }

    /// After `forbid_all`: allows the `count` tokens of these cells, which are in order and inside the vocabulary.
    void allow_cells(std::span<const Cell> cells, std::uint32_t count) {
        touched_.resize(cells.size());
        for (std::size_t place = 0; place < cells.size(); ++place) {
            const Cell& cell = cells[place];
            std::copy_n(cell.words.begin(), Cell::kWords, words_ + Cell::kWords * cell.index);
            touched_[place] = cell.index;
        }
        allowed_ = count;
    }

    /// After `forbid_all`: allows a prepared set with `count` tokens, all inside the vocabulary. The words of the set must
    /// stay as they are until the next mask: where they can be, they are the mask, and nothing is copied.
    void allow_set(std::span<const std::uint32_t> set, std::uint32_t count) {
        shared_ = set;
        allowed_ = count;
        if (must_own_ || set.size() != words_for(vocabulary_)) own();
    }

    [[nodiscard]] std::uint32_t allowed() const { return allowed_; }
    [[nodiscard]] std::uint32_t vocabulary() const { return vocabulary_; }
    [[nodiscard]] std::span<const std::uint32_t> words() const {
        return shared_.empty() ? std::span<const std::uint32_t>(words_, words_for(vocabulary_)) : shared_;
    }

    /// Whether all cells but those of `touched` allow everything.
    [[nodiscard]] bool allows_the_rest() const { return fill_ != 0 && !dense_; }
    /// The cells that differ from the others, if they are known: there are few.
    [[nodiscard]] bool is_sparse() const { return !dense_ && shared_.empty(); }
    [[nodiscard]] const std::vector<std::uint32_t>& touched() const { return touched_; }

  private:
    /// A copy of the shared words, to be changed.
    void own() {
        std::copy(shared_.begin(), shared_.end(), words_);
        shared_ = {};
        touched_.clear();
        dense_ = true;
    }

    std::uint32_t& touch(std::uint32_t index) {
        if (!shared_.empty()) own();
        const std::uint32_t cell = index / Cell::kWords;
        if (!dense_ && (touched_.empty() || touched_.back() != cell)) touched_.push_back(cell);
        return words_[index];
    }

    void refill(std::uint32_t fill) {
        const std::uint32_t size = words_for(vocabulary_);
        shared_ = {};
        if (dense_ || fill != fill_ || touched_.size() > size / Cell::kWords / 4) {
            fill_ = fill;
            std::fill_n(words_, size, fill);
        } else {
            for (const std::uint32_t cell : touched_) std::fill_n(words_ + Cell::kWords * cell, Cell::kWords, fill);
        }
        // The last word may have bits that are no tokens.
        if (vocabulary_ % 32 != 0) words_[size - 1] = fill & ((std::uint32_t{1} << (vocabulary_ % 32)) - 1);
        dense_ = false;
        touched_.clear();
        allowed_ = fill == 0 ? 0 : vocabulary_;
    }

    std::uint32_t* words_ = nullptr;
    std::uint32_t vocabulary_ = 0;
    std::uint32_t fill_ = 0;
    std::uint32_t allowed_ = 0;
    // What the words hold is unknown until the first refill.
    bool dense_ = true;
    bool must_own_ = false;
    std::span<const std::uint32_t> shared_;
    std::vector<std::uint32_t> touched_;
};

}  // namespace constraints
