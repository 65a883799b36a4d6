#include "logits.hpp"

#include <array>
#include <bit>
#include <cwchar>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace constraints {

namespace {

static_assert(sizeof(wchar_t) == 4);

template <typename Word>
void fill(Word* begin, std::size_t count, Word value, [[maybe_unused]] bool is_streaming) {
    // Up to where wide stores begin.
    for (; count > 0 && reinterpret_cast<std::uintptr_t>(begin) % 16 != 0; --count) *begin++ = value;
    constexpr std::size_t kInWide = sizeof(wchar_t) / sizeof(Word);
    const std::uint32_t wide = sizeof(Word) == 4 ? value : value * std::uint32_t{0x10001};
#ifdef __SSE2__
    // Past the caches: a normal store would first read the line that it then overwrites.
    if (is_streaming) {
        constexpr std::size_t kLanes = 16 / sizeof(Word);
        const __m128i lanes = _mm_set1_epi32(static_cast<int>(wide));
        for (; count >= kLanes; count -= kLanes, begin += kLanes) _mm_stream_si128(reinterpret_cast<__m128i*>(begin), lanes);
        // What is restored afterwards must not be overtaken by these.
        _mm_sfence();
    }
#endif
    // The C library's, which has the widest stores of the processor that it runs on.
    std::wmemset(reinterpret_cast<wchar_t*>(begin), static_cast<wchar_t>(wide), count / kInWide);
    begin += count / kInWide * kInWide;
    std::fill_n(begin, count % kInWide, value);
}

constexpr auto kBits = [] {
    std::array<std::uint32_t, 32> bits;
    for (std::size_t place = 0; place < bits.size(); ++place) bits[place] = std::uint32_t{1} << place;
    return bits;
}();

/// Whatever the word is, without a branch: this becomes a few wide instructions.
template <typename Word>
void write_word(Word* columns, std::uint32_t word, std::size_t count, Word minus_infinity) {
    for (std::size_t place = 0; place < count; ++place)
        columns[place] = (word & kBits[place]) != 0 ? columns[place] : minus_infinity;
}

/// Calls `each` with the index of each word of the cells that differ from the others.
template <typename Each>
void for_each_touched(const MaskRow& mask, Each each) {
    const auto size = static_cast<std::uint32_t>(mask.words().size());
    mask.touched().for_each([&](std::uint32_t cell) {
        for (std::uint32_t index = Cell::kWords * cell; index < std::min(Cell::kWords * (cell + 1), size); ++index) each(index);
    });
}

template <typename Word>
void write_row(Word* row, const MaskRow& mask, Word minus_infinity, bool is_streaming) {
    const auto words = mask.words();
    const std::uint32_t columns = mask.vocabulary();
    if (!mask.is_sparse()) {
        for (std::uint32_t index = 0; index < columns / 32; ++index)
            write_word(row + index * 32, words[index], 32, minus_infinity);
        if (columns % 32 != 0) write_word(row + columns / 32 * 32, words.back(), columns % 32, minus_infinity);
        return;
    }
    if (mask.allows_the_rest()) {
        for_each_touched(mask, [&](std::uint32_t index) {
            write_word(row + index * 32, words[index], std::min(columns - index * 32, 32u), minus_infinity);
        });
        return;
    }
    // What is allowed is kept and put back: few values, where the rest is one long fill.
    thread_local std::vector<std::pair<std::uint32_t, Word>> kept;
    kept.clear();
    for_each_touched(mask, [&](std::uint32_t index) {
        for (std::uint32_t word = words[index]; word != 0; word &= word - 1) {
            const std::uint32_t column = index * 32 + static_cast<std::uint32_t>(std::countr_zero(word));
            kept.emplace_back(column, row[column]);
        }
    });
    fill(row, columns, minus_infinity, is_streaming);
    for (const auto& [column, value] : kept) row[column] = value;
}

}  // namespace

void write_mask(const Logits& logits, std::size_t row, const MaskRow& mask, bool is_streaming) {
    const auto place = static_cast<std::ptrdiff_t>(row) * logits.row_stride;
    if (logits.element == Element::float32) {
        write_row(static_cast<std::uint32_t*>(logits.data) + place, mask, std::uint32_t{0xff800000}, is_streaming);
    } else {
        const std::uint16_t minus_infinity = logits.element == Element::bfloat16 ? 0xff80 : 0xfc00;
        write_row(static_cast<std::uint16_t*>(logits.data) + place, mask, minus_infinity, is_streaming);
    }
}

}  // namespace constraints
