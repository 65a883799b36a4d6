// Memory of which few words are touched at a time, far apart: in huge pages where the machine has them, since with small
// ones each of those words would need an address translation of its own.

#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>

namespace constraints {

class Memory {
  public:
    /// All zero, and aligned to a huge page. Of no bytes: none.
    explicit Memory(std::size_t bytes) {
        if (bytes == 0) return;
        const std::size_t used = (bytes + kHugePage - 1) / kHugePage * kHugePage;
        size_ = used + kHugePage;
        mapped_ = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped_ == MAP_FAILED) throw std::bad_alloc();
        const auto begin = (reinterpret_cast<std::uintptr_t>(mapped_) + kHugePage - 1) / kHugePage * kHugePage;
        words_ = reinterpret_cast<std::uint32_t*>(begin);
        ::madvise(words_, used, MADV_HUGEPAGE);
    }
    ~Memory() {
        if (words_ != nullptr) ::munmap(mapped_, size_);
    }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    [[nodiscard]] std::uint32_t* words() const { return words_; }

  private:
    static constexpr std::size_t kHugePage = std::size_t{2} << 20;

    void* mapped_ = nullptr;
    std::size_t size_ = 0;
    std::uint32_t* words_ = nullptr;
};

}  // namespace constraints
