#pragma once

#include <cstddef>

namespace warpgrad::cpu {

// Memory for tensors and workspaces, aligned to a cache line, uninitialised.
//
// Blocks from kPageBlockBytes on are mapped from the system by themselves and kept for reuse after they are freed, up
// to kMaxCachedBytes in the process, the least recently used going first: a training loop asks for the same sizes again
// and again. A fresh page costs microseconds at its first touch, and the C library's heap either returns pages each
// time or, with several threads, keeps several times what is in use.
constexpr size_t kPageBlockBytes = size_t{64} << 10;
constexpr size_t kMaxCachedBytes = size_t{512} << 20;

void* allocate_pages(size_t bytes);  // nullptr when the system has none; 0 bytes give an address too
void free_pages(void* data, size_t bytes) noexcept;

}  // namespace warpgrad::cpu
