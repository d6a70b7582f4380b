#pragma once

#include <cstddef>

namespace warpgrad::cpu {

// Memory for tensors and workspaces, aligned to a cache line, uninitialised.
//
// Blocks from kPageBlockBytes on are mapped from the system by themselves and kept for reuse after they are freed, up
// to kMaxCachedBytes in the process: a training loop asks for the same sizes again and again, and the C library's heap
// both returns pages to the system each time (slow) and, with several threads, keeps several times what is in use.
constexpr size_t kPageBlockBytes = size_t{64} << 10;
constexpr size_t kMaxCachedBytes = size_t{64} << 20;

void* allocate_pages(size_t bytes);  // nullptr when the system has none; 0 bytes give an address too
void free_pages(void* data, size_t bytes) noexcept;

}  // namespace warpgrad::cpu
