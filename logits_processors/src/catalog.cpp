#include "catalog.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <system_error>

namespace constraints {

static_assert(std::endian::native == std::endian::little, "catalogues are little-endian and mapped as they are");

void Checksum::add(std::span<const std::byte> bytes) {
    const auto mix = [](std::uint64_t lane, std::uint64_t word) {
        return std::rotl((lane ^ word) * 0x9e3779b97f4a7c15, 29);
    };
    std::size_t place = 0;
    for (; place + 32 <= bytes.size(); place += 32) {
        std::array<std::uint64_t, 4> words;
        std::memcpy(words.data(), bytes.data() + place, 32);
        for (std::size_t lane = 0; lane < 4; ++lane) lanes_[lane] = mix(lanes_[lane], words[lane]);
    }
    for (; place < bytes.size(); ++place) lanes_[0] = mix(lanes_[0], static_cast<std::uint64_t>(bytes[place]));
}

std::uint64_t Checksum::value() const {
    std::uint64_t sum = 0;
    for (const std::uint64_t lane : lanes_) sum = (sum ^ lane ^ (lane >> 31)) * 0xff51afd7ed558ccd;
    return sum ^ (sum >> 33);
}

std::size_t Block::find(Token token) const {
    if (!cells.empty()) {
        const std::uint32_t index = token / Cell::kTokens;
        // Where no cell is left out between the first one and this, it is there.
        const Cell* cell = &cells[std::min<std::size_t>(index - std::min(index, cells[0].index), cells.size() - 1)];
        if (cell->index != index) {
            cell = std::ranges::lower_bound(cells, index, {}, &Cell::index).base();
            if (cell == cells.end().base() || cell->index != index) return children.size();
        }
        const std::uint32_t place = token / 32 % Cell::kWords, bit = std::uint32_t{1} << (token % 32);
        if ((cell->words[place] & bit) == 0) return children.size();
        int before = std::popcount(cell->words[place] & (bit - 1));
        for (std::uint32_t word = 0; word < place; ++word) before += std::popcount(cell->words[word]);
        return cell->before + static_cast<std::size_t>(before);
    }
    const auto found = std::ranges::lower_bound(children, token, {}, &Child::token);
    if (found == children.end() || found->token() != token) return children.size();
    return static_cast<std::size_t>(found - children.begin());
}

std::vector<Cell> cells_of(std::span<const Child> children) {
    std::vector<Cell> cells;
    for (std::uint32_t before = 0; const Child& child : children) {
        const Token token = child.token();
        const std::uint32_t index = token / Cell::kTokens;
        if (cells.empty() || cells.back().index != index) cells.push_back({index, before, {}});
        cells.back().words[token / 32 % Cell::kWords] |= std::uint32_t{1} << (token % 32);
        ++before;
    }
    return cells;
}

Catalog::Catalog(const std::string& path) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) throw CatalogError("cannot be opened (" + std::system_category().message(errno) + ")");
    struct stat status {};
    if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
        ::close(file);
        throw CatalogError("is not a regular file");
    }
    size_ = static_cast<std::size_t>(status.st_size);
    if (size_ < sizeof(Header)) {
        ::close(file);
        throw CatalogError("is not a catalogue, or is truncated");
    }
    void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED | MAP_POPULATE, file, 0);
    ::close(file);
    if (mapped == MAP_FAILED) throw CatalogError("cannot be mapped (" + std::system_category().message(errno) + ")");
    data_ = static_cast<const std::byte*>(mapped);
    try {
        check_header();
        check_structure();
    } catch (...) {
        ::munmap(mapped, size_);
        throw;
    }
}

Catalog::~Catalog() { ::munmap(const_cast<std::byte*>(data_), size_); }

void Catalog::check_header() const {
    Header copy = header();
    if (copy.magic != kMagic) throw CatalogError("is not a catalogue");
    if (copy.version != kVersion)
        throw CatalogError("is a catalogue of version " + std::to_string(copy.version) + ", and version " +
                           std::to_string(kVersion) + " is needed: build it again");
    if (copy.file_size != size_) throw CatalogError("is truncated, or something was added to it");
    copy.checksum = 0;
    Checksum sum;
    sum.add(std::as_bytes(std::span(&copy, 1)));
    sum.add({data_ + sizeof(Header), size_ - sizeof(Header)});
    if (sum.value() != header().checksum) throw CatalogError("is damaged: its checksum is wrong");
}

void Catalog::check_structure() {
    // The checksum finds accidents. This finds a file that somebody made: no access may leave the mapping, no way may
    // be endless.
    const auto require = [](bool holds) {
        if (!holds) throw CatalogError("is damaged: its parts do not fit together");
    };
    const Header& head = header();
    const std::uint64_t limit = size_;
    require(head.block_words <= limit && head.continuations <= limit && head.tail_bytes <= limit);
    require(sizeof(Header) + 4 * (head.block_words + head.continuations) + head.tail_bytes == size_);
    require(head.block_words > 0 && head.block_words <= ~std::uint32_t{0});
    require(head.tail_bytes % kTailToken == 0 && head.tail_bytes <= ~std::uint32_t{0});
    require(head.vocabulary <= kLargestVocabulary);
    const auto* words = reinterpret_cast<const std::uint32_t*>(data_ + sizeof(Header));
    blocks_ = {words, head.block_words};
    continuations_ = {words + head.block_words, head.continuations};
    tails_ = {reinterpret_cast<const std::uint8_t*>(words + head.block_words + head.continuations), head.tail_bytes};

    std::vector<bool> is_block(blocks_.size());
    std::uint64_t entries = 0;
    for (std::size_t place = 0; place < blocks_.size();) {
        const std::size_t children = blocks_[place] & ~kEntryEnds;
        require(children > 0 && children <= head.vocabulary);
        std::size_t end = place + 1 + 2 * children;
        if (children >= kManyChildren) {
            require(end < blocks_.size() && blocks_[place + 1] <= children);
            end += 1 + kCellSize * std::size_t{blocks_[place + 1]};
        }
        require(end <= blocks_.size());
        const Block one = block(static_cast<std::uint32_t>(place));
        entries += one.entry_ends;
        for (std::size_t child = 0; child < children; ++child) {
            const std::uint32_t pointer = one.children[child].pointer;
            require(one.children[child].token() < head.vocabulary);
            require(child == 0 || one.children[child - 1].token() < one.children[child].token());
            switch (one.children[child].kind()) {
                case Kind::inner:
                    require(pointer < place && is_block[pointer]);
                    break;
                case Kind::leaf:
                    ++entries;
                    break;
                case Kind::tail:
                    require(pointer < tails_.size() && pointer % kTailToken == 0);
                    ++entries;
                    break;
                default:
                    require(false);
            }
        }
        require(children < kManyChildren || std::ranges::equal(one.cells, cells_of(one.children)));
        is_block[place] = true;
        root_ = static_cast<std::uint32_t>(place);
        place = end;
    }
    require(entries == head.entries && !root().entry_ends);
    require(tails_.empty() || tail(static_cast<std::uint32_t>(tails_.size()) - kTailToken).second);
    for (std::size_t place = 0; place < tails_.size(); place += kTailToken)
        require(tail(static_cast<std::uint32_t>(place)).first < head.vocabulary);

    root_mask_.resize(MaskRow::words_for(head.vocabulary));
    for (const Child& child : root().children) root_mask_[child.token() / 32] |= std::uint32_t{1} << (child.token() % 32);
    root_ranks_.reserve(root_mask_.size());
    for (std::uint32_t before = 0; const std::uint32_t word : root_mask_) {
        root_ranks_.push_back({word, before});
        before += static_cast<std::uint32_t>(std::popcount(word));
    }
}

std::size_t Catalog::child(const Block& block, Token token) const {
    if (block.place != root_) return block.find(token);
    const std::size_t index = token / 32;
    const std::uint32_t bit = std::uint32_t{1} << (token % 32);
    if (index >= root_ranks_.size()) return block.children.size();
    const auto [word, before] = root_ranks_[index];
    if ((word & bit) == 0) return block.children.size();
    return before + static_cast<std::size_t>(std::popcount(word & (bit - 1)));
}

bool Catalog::continues_with(Token token) const {
    return std::binary_search(continuations_.begin(), continuations_.end(), token);
}

bool Catalog::contains(std::span<const Token> tokens) const {
    Block node = root();
    for (std::size_t index = 0; index < tokens.size(); ++index) {
        const std::size_t next = child(node, tokens[index]);
        if (next == node.children.size()) return false;
        const auto rest = tokens.subspan(index + 1);
        switch (node.children[next].kind()) {
            case Kind::leaf:
                return rest.empty();
            case Kind::tail: {
                std::uint32_t place = node.children[next].pointer;
                for (std::size_t step = 0; step < rest.size(); ++step, place += kTailToken) {
                    const auto [expected, last] = tail(place);
                    if (expected != rest[step]) return false;
                    if (last) return step + 1 == rest.size();
                }
                return false;
            }
            case Kind::inner:
                node = block(node.children[next].pointer);
        }
    }
    return node.entry_ends;
}

}  // namespace constraints
