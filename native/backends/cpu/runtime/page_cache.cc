#include "backends/cpu/runtime/page_cache.h"

#include <sys/mman.h>

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <new>
#include <utility>

namespace warpgrad::cpu {

namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePageBytes = size_t{2} << 20;

constexpr size_t round_up(size_t bytes, size_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

// An eighth of the next power of two at least, so that few sizes share the cache and at most an eighth is wasted.
size_t block_bytes(size_t bytes) {
  const size_t step = std::bit_ceil(bytes) / 8;
  return round_up(bytes, step < kPageBlockBytes / 4 ? kPageBlockBytes / 4 : step);
}

struct FreeBlock {
  void* data;
  uint64_t freed_at;
};

struct Cache {
  std::mutex mutex;
  std::map<size_t, std::deque<FreeBlock>> free_blocks;  // by size, the longest unused first
  size_t cached_bytes = 0;
  uint64_t now = 0;
};

// One a process, never destroyed: threads may free memory until the very end.
Cache& cache() {
  static Cache* instance = new Cache;
  return *instance;
}

// The block of all sizes that has been unused for longest, taken out; the cache must not be empty.
std::pair<void*, size_t> take_oldest(Cache& blocks) {
  auto oldest = blocks.free_blocks.begin();
  for (auto it = blocks.free_blocks.begin(); it != blocks.free_blocks.end(); ++it) {
    if (it->second.front().freed_at < oldest->second.front().freed_at) oldest = it;
  }
  const std::pair<void*, size_t> result{oldest->second.front().data, oldest->first};
  oldest->second.pop_front();
  if (oldest->second.empty()) blocks.free_blocks.erase(oldest);
  blocks.cached_bytes -= result.second;
  return result;
}

void give_back(Cache& blocks, size_t most_left) {
  while (blocks.cached_bytes > most_left) {
    const auto [oldest, size] = take_oldest(blocks);
    munmap(oldest, size);
  }
}

// `size` is a whole number of the system's pages.
void* map_block(size_t size) {
  // Large blocks start at a huge page, so that the system can use some.
  const size_t slack = size >= kHugePageBytes ? kHugePageBytes : 0;
  void* mapped = mmap(nullptr, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  if (slack == 0) return mapped;
  char* data = static_cast<char*>(mapped);
  const size_t head = (slack - reinterpret_cast<uintptr_t>(data) % slack) % slack;
  if (head > 0) munmap(data, head);
  munmap(data + head + size, slack - head);
  madvise(data + head, size, MADV_HUGEPAGE);
  return data + head;
}

}  // namespace

void* allocate_pages(size_t bytes) {
  if (bytes < kPageBlockBytes) return std::aligned_alloc(kAlignment, round_up(bytes == 0 ? 1 : bytes, kAlignment));
  if (bytes > SIZE_MAX / 4) return nullptr;
  const size_t size = block_bytes(bytes);
  {
    Cache& blocks = cache();
    std::lock_guard lock(blocks.mutex);
    if (const auto found = blocks.free_blocks.find(size); found != blocks.free_blocks.end()) {
      void* data = found->second.back().data;
      found->second.pop_back();
      if (found->second.empty()) blocks.free_blocks.erase(found);
      blocks.cached_bytes -= size;
      return data;
    }
  }
  if (void* data = map_block(size)) return data;
  {
    Cache& blocks = cache();
    std::lock_guard lock(blocks.mutex);
    give_back(blocks, 0);
  }
  return map_block(size);
}

void free_pages(void* data, size_t bytes) noexcept {
  if (bytes < kPageBlockBytes) {
    std::free(data);
    return;
  }
  const size_t size = block_bytes(bytes);
  if (size > kMaxCachedBytes) {
    munmap(data, size);
    return;
  }
  Cache& blocks = cache();
  std::unique_lock lock(blocks.mutex);
  give_back(blocks, kMaxCachedBytes - size);
  try {
    blocks.free_blocks[size].push_back({data, ++blocks.now});
    blocks.cached_bytes += size;
  } catch (const std::bad_alloc&) {  // no room to note the block: give it back
    munmap(data, size);
  }
}

}  // namespace warpgrad::cpu
