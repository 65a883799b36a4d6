// Makes the file of a catalogue out of the tokens of its entries.

#pragma once

#include <span>
#include <string>
#include <vector>

#include "catalog.hpp"

namespace constraints {

class CatalogBuilder {
  public:
    CatalogBuilder(std::uint32_t vocabulary, Fingerprint fingerprint);

    /// Longest entry, in tokens: building and checking go as deep as the longest common start.
    static constexpr std::size_t kLongestEntry = 1024;

    /// Adds one entry. Throws CatalogError if it is empty, too long or has tokens outside the vocabulary.
    void add(std::span<const Token> tokens);

    /// Writes the file, first under another name beside it, then renamed: whoever has the old one mapped keeps it.
    /// Returns how many entries it has: equal ones are one. Throws CatalogError. The builder is empty afterwards.
    std::uint64_t write(const std::string& path);

  private:
    struct Entry {
        /// Some tokens behind those with which all entries begin, each plus one, so that most comparisons touch nothing
        /// else.
        std::uint64_t start = 0;
        std::uint64_t place;
        std::uint32_t length;
    };
    struct Node {
        Kind kind;
        std::uint32_t pointer;
    };

    [[nodiscard]] std::span<const Token> tokens_of(const Entry& entry) const;
    void sort();
    [[nodiscard]] std::uint64_t start_of(const Entry& entry) const;
    Node build(std::size_t first, std::size_t last, std::size_t depth);
    std::uint32_t add_tail(std::span<const Token> tokens);

    std::uint32_t vocabulary_;
    Fingerprint fingerprint_;
    std::vector<Token> tokens_;
    std::vector<Entry> entries_;
    /// With how many tokens all entries begin that are the same.
    std::size_t common_ = kLongestEntry;
    std::vector<std::uint32_t> blocks_;
    std::vector<std::uint8_t> tails_;
    std::vector<bool> continuations_;
};

}  // namespace constraints
