#include "catalog_builder.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <system_error>

namespace constraints {

namespace {

constexpr std::size_t kMostWords = ~std::uint32_t{0};

void write_all(int file, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
        const ssize_t written = ::write(file, bytes.data(), std::min(bytes.size(), std::size_t{1} << 30));
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) throw CatalogError("cannot be written (" + std::system_category().message(errno) + ")");
        bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
}

}  // namespace

CatalogBuilder::CatalogBuilder(std::uint32_t vocabulary, Fingerprint fingerprint)
    : vocabulary_(vocabulary), fingerprint_(fingerprint), continuations_(vocabulary) {
    if (vocabulary == 0 || vocabulary > kLargestVocabulary)
        throw CatalogError("cannot be made for a vocabulary of " + std::to_string(vocabulary) + " tokens");
}

void CatalogBuilder::add(std::span<const Token> tokens) {
    if (tokens.empty()) throw CatalogError("entry without tokens");
    if (tokens.size() > kLongestEntry)
        throw CatalogError("entry of " + std::to_string(tokens.size()) + " tokens; at most " +
                           std::to_string(kLongestEntry) + " are possible");
    if (*std::max_element(tokens.begin(), tokens.end()) >= vocabulary_)
        throw CatalogError("entry with a token outside the tokenizer's vocabulary");
    entries_.push_back({.place = tokens_.size(), .length = static_cast<std::uint32_t>(tokens.size())});
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    common_ = std::min(common_, tokens.size());
    common_ = static_cast<std::size_t>(std::mismatch(tokens.begin(), tokens.begin() + common_, tokens_.begin()).first -
                                       tokens.begin());
}

std::span<const Token> CatalogBuilder::tokens_of(const Entry& entry) const {
    return std::span(tokens_).subspan(entry.place, entry.length);
}

std::uint64_t CatalogBuilder::start_of(const Entry& entry) const {
    const auto bits = static_cast<std::size_t>(std::bit_width(vocabulary_));
    const auto tokens = tokens_of(entry);
    std::uint64_t start = 0;
    for (std::size_t place = common_, end = common_ + 64 / bits; place < end; ++place)
        start = start << bits | (place < tokens.size() ? tokens[place] + 1 : 0);
    return start;
}

void CatalogBuilder::sort() {
    for (Entry& entry : entries_) entry.start = start_of(entry);
    std::sort(entries_.begin(), entries_.end(), [this](const Entry& left, const Entry& right) {
        if (left.start != right.start) return left.start < right.start;
        const auto a = tokens_of(left), b = tokens_of(right);
        return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
    });
    const auto equal = [this](const Entry& left, const Entry& right) {
        const auto a = tokens_of(left), b = tokens_of(right);
        return left.start == right.start && std::equal(a.begin(), a.end(), b.begin(), b.end());
    };
    entries_.erase(std::unique(entries_.begin(), entries_.end(), equal), entries_.end());
}

std::uint32_t CatalogBuilder::add_tail(std::span<const Token> tokens) {
    const std::size_t place = tails_.size();
    if (place + tokens.size() * Catalog::kTailToken > kMostWords) throw CatalogError("has more text than one file can hold");
    for (const Token token : tokens) {
        tails_.push_back(static_cast<std::uint8_t>(token));
        tails_.push_back(static_cast<std::uint8_t>(token >> 8));
        tails_.push_back(static_cast<std::uint8_t>(token >> 16));
    }
    tails_.back() |= 0x80;
    return static_cast<std::uint32_t>(place);
}

/// The node below which the entries [first, last) stand, which share their first `depth` tokens.
CatalogBuilder::Node CatalogBuilder::build(std::size_t first, std::size_t last, std::size_t depth) {
    if (last - first == 1) {
        const auto rest = tokens_of(entries_[first]).subspan(depth);
        return rest.empty() ? Node{Kind::leaf, 0} : Node{Kind::tail, add_tail(rest)};
    }
    // In this order the one that ends here, if there is one, comes first.
    const bool entry_ends = entries_[first].length == depth;
    std::vector<Child> children;
    for (std::size_t start = first + entry_ends; start < last;) {
        const Token token = tokens_[entries_[start].place + depth];
        std::size_t stop = start + 1;
        while (stop < last && tokens_[entries_[stop].place + depth] == token) ++stop;
        const Node child = build(start, stop, depth + 1);
        children.push_back({token | static_cast<std::uint32_t>(child.kind) << kKindShift, child.pointer});
        if (entry_ends) continuations_[token] = true;
        start = stop;
    }
    const std::size_t place = blocks_.size();
    if (place + 2 + (2 + kCellSize) * children.size() > kMostWords) throw CatalogError("has more entries than one file can hold");
    blocks_.push_back(static_cast<std::uint32_t>(children.size()) | (entry_ends ? kEntryEnds : 0));
    if (children.size() >= kManyChildren) {
        const auto cells = cells_of(children);
        blocks_.push_back(static_cast<std::uint32_t>(cells.size()));
        for (const auto& [index, before, words] : cells) {
            blocks_.insert(blocks_.end(), {index, before});
            blocks_.insert(blocks_.end(), words.begin(), words.end());
        }
    }
    for (const auto& [label, pointer] : children) blocks_.insert(blocks_.end(), {label, pointer});
    return {Kind::inner, static_cast<std::uint32_t>(place)};
}

std::uint64_t CatalogBuilder::write(const std::string& path) {
    if (entries_.empty()) throw CatalogError("would have no entries");
    sort();
    const std::uint64_t count = entries_.size();
    if (count > 1) {
        build(0, count, 0);
    } else {
        // The root is a block in any case.
        const auto tokens = tokens_of(entries_[0]);
        const bool is_leaf = tokens.size() == 1;
        const Kind kind = is_leaf ? Kind::leaf : Kind::tail;
        blocks_ = {1, tokens[0] | static_cast<std::uint32_t>(kind) << kKindShift, is_leaf ? 0 : add_tail(tokens.subspan(1))};
    }
    std::vector<std::uint32_t> continuations;
    for (Token token = 0; token < vocabulary_; ++token)
        if (continuations_[token]) continuations.push_back(token);

    Header header{kMagic, kVersion, vocabulary_, 0, 0, fingerprint_, count, blocks_.size(), continuations.size(), tails_.size()};
    blocks_.insert(blocks_.end(), continuations.begin(), continuations.end());
    const auto words = std::as_bytes(std::span(blocks_));
    const auto tails = std::as_bytes(std::span(tails_));
    header.file_size = sizeof(Header) + words.size() + tails.size();
    // The reader takes all in one piece, so it is summed in one piece here.
    std::vector<std::byte> body;
    body.reserve(words.size() + tails.size());
    body.insert(body.end(), words.begin(), words.end());
    body.insert(body.end(), tails.begin(), tails.end());
    Checksum sum;
    sum.add(std::as_bytes(std::span(&header, 1)));
    sum.add(body);
    header.checksum = sum.value();

    const std::string partial = path + ".tmp";
    const int file = ::open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0) throw CatalogError("cannot be written (" + std::system_category().message(errno) + ")");
    try {
        write_all(file, std::as_bytes(std::span(&header, 1)));
        write_all(file, body);
        if (::fsync(file) != 0) throw CatalogError("cannot be written (" + std::system_category().message(errno) + ")");
    } catch (...) {
        ::close(file);
        std::remove(partial.c_str());
        throw;
    }
    ::close(file);
    if (std::rename(partial.c_str(), path.c_str()) != 0)
        throw CatalogError("cannot be renamed (" + std::system_category().message(errno) + ")");
    *this = CatalogBuilder(vocabulary_, fingerprint_);
    return count;
}

}  // namespace constraints
