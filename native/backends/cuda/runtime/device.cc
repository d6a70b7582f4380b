#include "backends/cuda/runtime/device.h"

#include <limits>
#include <utility>

#include "backends/cuda/runtime/arena.h"
#include "core/check.h"
#include "core/out_of_memory.h"

namespace warpgrad::cuda {

DeviceGuard::DeviceGuard(int index) {
  check(cudaGetDevice(&previous_), "cudaGetDevice");
  if (previous_ == index) return;
  check(cudaSetDevice(index), "cudaSetDevice");
  switched_ = true;
}

DeviceGuard::~DeviceGuard() {
  if (switched_) cudaSetDevice(previous_);
}

CudaDevice::CudaDevice(int index) : index_(index) {
  const DeviceGuard guard(index);
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, index};
  check(cudaMemPoolCreate(&pool_, &properties), "cudaMemPoolCreate");
  // Kept warm: memory goes back to the system only when an allocation fails, or with the pool.
  uint64_t threshold = std::numeric_limits<uint64_t>::max();
  check(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &threshold), "cudaMemPoolSetAttribute");
}

CudaDevice::~CudaDevice() {
  cudaMemPoolDestroy(pool_);
}

void* CudaDevice::allocate(size_t bytes, cudaStream_t stream) {
  const DeviceGuard guard(index_);
  void* data = nullptr;
  cudaError_t status = cudaMallocFromPoolAsync(&data, bytes, pool_, stream);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    {
      std::lock_guard lock(arenas_mutex_);
      for (Arena* arena : arenas_) arena->trim();
    }
    if (!capturing()) check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    check(cudaMemPoolTrimTo(pool_, 0), "cudaMemPoolTrimTo");
    status = cudaMallocFromPoolAsync(&data, bytes, pool_, stream);
  }
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    size_t free_bytes = 0, total_bytes = 0;
    cudaMemGetInfo(&free_bytes, &total_bytes);
    throw out_of_memory(concat("cuda:", index_), bytes,
                        concat("; ", live_bytes_.load(), " bytes are in use by tensors, ", free_bytes, " of ",
                               total_bytes, " bytes are free"));
  }
  check(status, "cudaMallocFromPoolAsync");
  return data;
}

void CudaDevice::add_arena(Arena* arena) {
  std::lock_guard lock(arenas_mutex_);
  arenas_.push_back(arena);
}

void CudaDevice::remove_arena(Arena* arena) {
  std::lock_guard lock(arenas_mutex_);
  std::erase(arenas_, arena);
}

void CudaDevice::share_with(int peer_index) {
  if (!peers_.insert(peer_index).second) return;
  int can_access = 0;
  check(cudaDeviceCanAccessPeer(&can_access, peer_index, index_), "cudaDeviceCanAccessPeer");
  if (!can_access) return;  // the driver copies through the host then
  cudaMemAccessDesc access = {};
  access.location = {cudaMemLocationTypeDevice, peer_index};
  access.flags = cudaMemAccessFlagsProtReadWrite;
  check(cudaMemPoolSetAccess(pool_, &access, 1), "cudaMemPoolSetAccess");
}

void CudaDevice::count(size_t bytes) {
  const size_t live = live_bytes_.fetch_add(bytes) + bytes;
  size_t peak = peak_bytes_.load();
  while (peak < live && !peak_bytes_.compare_exchange_weak(peak, live)) {
  }
  allocations_.fetch_add(1);
}

void CudaDevice::uncount(size_t bytes) {
  live_bytes_.fetch_sub(bytes);
  allocations_.fetch_sub(1);
}

MemoryStats CudaDevice::stats() const {
  return {live_bytes_.load(), peak_bytes_.load(), allocations_.load()};
}

bool CudaDevice::capturing() {
  std::lock_guard lock(capture_mutex_);
  return captures_ > 0;
}

void CudaDevice::begin_capture() {
  std::lock_guard lock(capture_mutex_);
  ++captures_;
}

void CudaDevice::end_capture() noexcept {
  std::vector<std::function<void()>> put_off;  // goes after the lock: what it owns may come here again when it ends
  std::lock_guard lock(capture_mutex_);
  if (--captures_ > 0) return;
  put_off.swap(after_capture_);
  for (const auto& work : put_off) work();
}

void CudaDevice::outside_capture(std::function<void()> work) {
  std::lock_guard lock(capture_mutex_);
  if (captures_ > 0) {
    after_capture_.push_back(std::move(work));
  } else {
    work();
  }
}

}  // namespace warpgrad::cuda
