// Writing a mask into a row of logits in the memory of this machine: what is forbidden becomes minus infinity.

#pragma once

#include <cstddef>
#include <vector>

#include "mask.hpp"

namespace constraints {

enum class Element { float32, bfloat16, float16 };

/// Rows of logits: row i begins at `data + i * row_stride` elements, and the elements of a row lie side by side.
struct Logits {
    void* data;
    std::ptrdiff_t row_stride;
    std::size_t rows;
    std::uint32_t columns;
    Element element;
};

/// `is_streaming`: the rows are together so large that the caches are of no use to them.
void write_mask(const Logits& logits, std::size_t row, const MaskRow& mask, bool is_streaming);

/// Bytes of all rows above which `is_streaming` pays.
inline constexpr std::size_t kStreamingBytes = std::size_t{64} << 20;

}  // namespace constraints
