#include "backends/cpu/runtime/page_cache.h"

#include <sys/mman.h>

#include <bit>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <vector>

namespace warpgrad::cpu {

namespace {

constexpr size_t kAlignment = 64;

constexpr size_t round_up(size_t bytes, size_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

// An eighth of the next power of two at least, so that few sizes share the cache and at most an eighth is wasted.
size_t block_bytes(size_t bytes) {
  const size_t step = std::bit_ceil(bytes) / 8;
  return round_up(bytes, step < kPageBlockBytes / 4 ? kPageBlockBytes / 4 : step);
}

struct Cache {
  std::mutex mutex;
  std::map<size_t, std::vector<void*>> free_blocks;
  size_t cached_bytes = 0;
};

// One a process, never destroyed: threads may free memory until the very end.
Cache& cache() {
  static Cache* instance = new Cache;
  return *instance;
}

}  // namespace

void* allocate_pages(size_t bytes) {
  if (bytes < kPageBlockBytes) return std::aligned_alloc(kAlignment, round_up(bytes == 0 ? 1 : bytes, kAlignment));
  if (bytes > SIZE_MAX / 4) return nullptr;
  const size_t size = block_bytes(bytes);
  {
    Cache& blocks = cache();
    std::lock_guard lock(blocks.mutex);
    if (const auto found = blocks.free_blocks.find(size); found != blocks.free_blocks.end() && !found->second.empty()) {
      void* data = found->second.back();
      found->second.pop_back();
      blocks.cached_bytes -= size;
      return data;
    }
  }
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return data == MAP_FAILED ? nullptr : data;
}

void free_pages(void* data, size_t bytes) noexcept {
  if (bytes < kPageBlockBytes) {
    std::free(data);
    return;
  }
  const size_t size = block_bytes(bytes);
  Cache& blocks = cache();
  try {
    std::lock_guard lock(blocks.mutex);
    if (blocks.cached_bytes + size <= kMaxCachedBytes) {
      blocks.free_blocks[size].push_back(data);
      blocks.cached_bytes += size;
      return;
    }
  } catch (const std::bad_alloc&) {  // no room to note the block: give it back
  }
  munmap(data, size);
}

}  // namespace warpgrad::cpu
