#include "logits.hpp"

#include <bit>
#include <cstring>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace constraints {

namespace {

template <typename Word>
void fill(Word* begin, std::size_t count, Word value, [[maybe_unused]] bool is_streaming) {
#ifdef __SSE2__
    // Past the caches: a normal store would first read the line that it then overwrites.
    constexpr std::size_t kLanes = 16 / sizeof(Word);
    if (is_streaming && count >= 64 * kLanes) {
        while (reinterpret_cast<std::uintptr_t>(begin) % 16 != 0) {
            *begin++ = value;
            --count;
        }
        const __m128i wide = sizeof(Word) == 4 ? _mm_set1_epi32(static_cast<int>(value)) : _mm_set1_epi16(static_cast<short>(value));
        for (; count >= kLanes; count -= kLanes, begin += kLanes) _mm_stream_si128(reinterpret_cast<__m128i*>(begin), wide);
        // What is restored afterwards must not be overtaken by these.
        _mm_sfence();
    }
#endif
    std::fill_n(begin, count, value);
}

/// Calls `each` with the columns that a word of the mask allows.
template <typename Each>
void for_each_allowed(std::span<const std::uint32_t> words, std::uint32_t index, Each each) {
    for (std::uint32_t word = words[index]; word != 0; word &= word - 1)
        each(index * 32 + static_cast<std::uint32_t>(std::countr_zero(word)));
}

template <typename Word>
void write_row(Word* row, const MaskRow& mask, Word minus_infinity, bool is_streaming) {
    const auto words = mask.words();
    const std::uint32_t columns = mask.vocabulary();
    if (mask.allows_the_rest()) {
        for (const std::uint32_t index : mask.touched())
            for (std::uint32_t column = index * 32; column < std::min(index * 32 + 32, columns); ++column)
                if ((words[index] >> (column % 32) & 1) == 0) row[column] = minus_infinity;
        return;
    }
    // What is allowed is kept and put back: few values, where the rest is one long fill.
    thread_local std::vector<std::pair<std::uint32_t, Word>> kept;
    kept.clear();
    const auto keep = [&](std::uint32_t column) { kept.emplace_back(column, row[column]); };
    if (mask.is_sparse())
        for (const std::uint32_t index : mask.touched()) for_each_allowed(words, index, keep);
    else
        for (std::uint32_t index = 0; index < words.size(); ++index) for_each_allowed(words, index, keep);
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
