// Many independent tasks whose memory is far away, each in a few stages: a stage fetches what the next one reads. While
// the memory of one task is on its way, other tasks are at their own stages.

#pragma once

#include <algorithm>
#include <cstddef>

namespace constraints {

/// Calls each stage with 0 to `count - 1`, in this order; a task's stages in their order, with other tasks' in between.
template <typename... Stage>
void in_stages(std::size_t count, Stage... stage) {
    // So many lines can be on their way at once, or a few more.
    const std::size_t distance = std::min<std::size_t>(count, 8);
    for (std::size_t step = 0, steps = count + (sizeof...(stage) - 1) * distance; step < steps; ++step) {
        std::size_t task = step;
        // In the range or, having passed below zero, far above it.
        ((task < count ? stage(task) : void(), task -= distance), ...);
    }
}

}  // namespace constraints
