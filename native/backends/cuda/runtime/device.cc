#include "backends/cuda/runtime/device.h"

#include <limits>

#include "backends/cuda/runtime/status.h"
#include "core/check.h"

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
  check(cudaDeviceGetAttribute(&num_multiprocessors_, cudaDevAttrMultiProcessorCount, index), "cudaDeviceGetAttribute");
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
  expect_working();
  const DeviceGuard guard(index_);
  const size_t size = bytes == 0 ? 1 : bytes;  // an empty tensor has an address too
  void* data = nullptr;
  cudaError_t status = cudaMallocFromPoolAsync(&data, size, pool_, stream);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    check(cudaMemPoolTrimTo(pool_, 0), "cudaMemPoolTrimTo");
    status = cudaMallocFromPoolAsync(&data, size, pool_, stream);
  }
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    size_t free_bytes = 0, total_bytes = 0;
    cudaMemGetInfo(&free_bytes, &total_bytes);
    throw Error(ErrorCode::kOutOfMemory,
                concat("cuda:", index_, ": can't allocate ", bytes, " bytes; ", live_bytes_.load(),
                       " bytes are in use by tensors, ", free_bytes, " of ", total_bytes, " bytes are free"));
  }
  check(status, "cudaMallocFromPoolAsync");
  const size_t live = live_bytes_.fetch_add(bytes) + bytes;
  size_t peak = peak_bytes_.load();
  while (peak < live && !peak_bytes_.compare_exchange_weak(peak, live)) {
  }
  allocations_.fetch_add(1);
  return data;
}

void CudaDevice::free(void* data, size_t bytes, cudaStream_t stream) noexcept {
  cudaFreeAsync(data, stream);  // fails only after a fault, or while the process ends
  live_bytes_.fetch_sub(bytes);
  allocations_.fetch_sub(1);
}

MemoryStats CudaDevice::stats() const {
  return {live_bytes_.load(), peak_bytes_.load(), allocations_.load()};
}

void CudaDevice::expect_working() const {
  std::lock_guard lock(fault_mutex_);
  WG_CHECK(fault_.empty(), ErrorCode::kDeviceFailure, "cuda:", index_,
           " can't be used any more in this process: ", fault_, "; start a new process");
}

void CudaDevice::check_work(cudaError_t status, const char* operation) {
  if (status == cudaSuccess) return;
  if (is_sticky(status)) {
    std::lock_guard lock(fault_mutex_);
    if (fault_.empty()) fault_ = concat(operation, " failed with ", cudaGetErrorName(status));
  }
  check(status, operation);
}

}  // namespace warpgrad::cuda
