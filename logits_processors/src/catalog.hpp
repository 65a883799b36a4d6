// A catalogue: the token sequences that an output may be, as a compact trie in a file that is mapped, not read.
//
// The file, in little-endian, is a Header followed by three parts:
//   blocks         32-bit words. A node with children is a block: one word with the number of children and, in its top bit,
//                  whether an entry ends here; where there are many children, what they are as a mask, which is the number
//                  of its cells that are not zero and each Cell; and the children in the order of their tokens, each a
//                  label and a pointer. A label is a token and, in its top two bits, the child's Kind. Blocks come after
//                  those of their children; the root is the last one.
//   continuations  32-bit words: the tokens with which entries go on where others end, in order.
//   tails          3 bytes a token: how an entry goes on that shares the rest of its way with no other one. The last token
//                  of a tail has the top bit set.

#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "mask.hpp"
#include "values.hpp"

namespace constraints {

using Fingerprint = std::array<std::uint8_t, 32>;

/// Why a file is no catalogue that can be used; without its path.
struct CatalogError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Header {
    std::array<char, 8> magic;
    std::uint32_t version;
    std::uint32_t vocabulary;
    std::uint64_t file_size;
    /// Of the whole file with this field as zero.
    std::uint64_t checksum;
    /// Of the tokenizer that made the entries' tokens.
    Fingerprint fingerprint;
    std::uint64_t entries;
    std::uint64_t block_words;
    std::uint64_t continuations;
    std::uint64_t tail_bytes;
};
static_assert(sizeof(Header) == 96);

inline constexpr std::array<char, 8> kMagic = {'L', 'P', 'C', 'A', 'T', 'L', 'G', '\n'};
inline constexpr std::uint32_t kVersion = 3;
inline constexpr std::uint32_t kLargestVocabulary = 1u << 23;
inline constexpr std::uint32_t kEntryEnds = 1u << 31;

/// What a child is: a node with a block of its own; the end of an entry and nothing more; or the start of a tail.
enum class Kind : std::uint32_t { inner = 0, leaf = 1, tail = 2 };
inline constexpr std::uint32_t kKindShift = 30;
inline constexpr std::uint32_t kLabelToken = (1u << kKindShift) - 1;

/// From so many children on, a block has cells.
inline constexpr std::size_t kManyChildren = 32;
/// In words.
inline constexpr std::size_t kCellSize = sizeof(Cell) / 4;

struct Child {
    std::uint32_t label;
    /// To the place of a block or of a tail.
    std::uint32_t pointer;

    [[nodiscard]] Token token() const { return label & kLabelToken; }
    [[nodiscard]] Kind kind() const { return static_cast<Kind>(label >> kKindShift); }
};

/// The children's tokens as a mask without the cells that are zero.
std::vector<Cell> cells_of(std::span<const Child> children);

/// Of bytes that are a multiple of 4 long but for the last call's.
class Checksum {
  public:
    void add(std::span<const std::byte> bytes);
    [[nodiscard]] std::uint64_t value() const;

  private:
    std::array<std::uint64_t, 4> lanes_ = {1, 2, 3, 4};
};

/// A node that has children.
struct Block {
    std::uint32_t place;
    bool entry_ends;
    std::span<const Child> children;
    /// The children's tokens as a mask, if they are many.
    std::span<const Cell> cells;

    /// The child with that token, or the number of children.
    [[nodiscard]] std::size_t find(Token token) const;
};

class Catalog {
  public:
    /// Maps the file and checks all of it, so that no later access can leave it. Throws CatalogError.
    explicit Catalog(const std::string& path);
    ~Catalog();
    Catalog(const Catalog&) = delete;
    Catalog& operator=(const Catalog&) = delete;

    [[nodiscard]] const Header& header() const { return *reinterpret_cast<const Header*>(data_); }
    [[nodiscard]] Block root() const { return block(root_); }
    [[nodiscard]] Block block(std::uint32_t place) const;

    /// The block's child with that token, or the number of its children. The root, which most rows come by and which has
    /// most children, is not searched.
    [[nodiscard]] std::size_t child(const Block& block, Token token) const;

    /// Brings the block or the tail at a place closer to the processor, which will read it soon.
    void prefetch_block(std::uint32_t place) const {
        __builtin_prefetch(block_begin(place));
        // A small block may reach into a second cache line.
        __builtin_prefetch(block_begin(place) + 12);
    }
    void prefetch_tail(std::uint32_t place) const { __builtin_prefetch(tail_begin(place)); }
    [[nodiscard]] const std::uint32_t* block_begin(std::uint32_t place) const { return &blocks_[place]; }
    [[nodiscard]] const std::uint8_t* tail_begin(std::uint32_t place) const { return &tails_[place]; }

    /// The token at a place of the tails, and whether it is the last one.
    [[nodiscard]] std::pair<Token, bool> tail(std::uint32_t place) const;
    static constexpr std::uint32_t kTailToken = 3;

    /// The tokens of the root's children as a mask, for the vocabulary of the file.
    [[nodiscard]] std::span<const std::uint32_t> root_mask() const { return root_mask_; }

    /// The same mask; of each word also how many of the root's children have their tokens before it. `child` looks here first.
    struct Ranked {
        std::uint32_t word;
        std::uint32_t before;
    };
    [[nodiscard]] std::span<const Ranked> root_ranks() const { return root_ranks_; }

    /// Whether an entry goes on with this token where another one ends.
    [[nodiscard]] bool continues_with(Token token) const;

    [[nodiscard]] bool contains(std::span<const Token> tokens) const;

  private:
    void check_header() const;
    void check_structure();

    const std::byte* data_ = nullptr;
    std::size_t size_ = 0;
    std::span<const std::uint32_t> blocks_;
    std::span<const std::uint32_t> continuations_;
    std::span<const std::uint8_t> tails_;
    std::uint32_t root_ = 0;
    std::vector<std::uint32_t> root_mask_;
    std::vector<Ranked> root_ranks_;
};

inline Block Catalog::block(std::uint32_t place) const {
    const std::size_t children = blocks_[place] & ~kEntryEnds;
    const std::uint32_t* words = &blocks_[place] + 1;
    std::span<const Cell> cells;
    if (children >= kManyChildren) {
        cells = {reinterpret_cast<const Cell*>(words + 1), *words};
        words += 1 + kCellSize * cells.size();
    }
    return {place, (blocks_[place] & kEntryEnds) != 0, {reinterpret_cast<const Child*>(words), children}, cells};
}

inline std::pair<Token, bool> Catalog::tail(std::uint32_t place) const {
    const std::uint32_t high = tails_[place + 2];
    return {tails_[place] | std::uint32_t{tails_[place + 1]} << 8 | (high & 0x7f) << 16, (high & 0x80) != 0};
}

}  // namespace constraints
