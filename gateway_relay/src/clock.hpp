// The clock that Python's `time.monotonic()` reads.

#pragma once

#include <ctime>

namespace relay {

inline double monotonic_seconds() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace relay
