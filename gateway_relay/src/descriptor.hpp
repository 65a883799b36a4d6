// A descriptor of the kernel's that is closed in the end.

#pragma once

#include <cerrno>
#include <system_error>
#include <utility>

#include <unistd.h>

namespace relay {

class Descriptor {
  public:
    /// Takes what the call `what` returned. Throws std::system_error where that failed.
    Descriptor(int number, const char* what) : number_(number) {
        if (number < 0) throw std::system_error(errno, std::generic_category(), what);
    }
    ~Descriptor() {
        if (number_ >= 0) close(number_);
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;

    [[nodiscard]] int number() const { return number_; }

    /// The caller closes it.
    [[nodiscard]] int release() { return std::exchange(number_, -1); }

  private:
    int number_;
};

}  // namespace relay
