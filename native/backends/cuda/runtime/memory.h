#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "backends/cuda/runtime/stream.h"
#include "core/storage.h"

namespace warpgrad::cuda {

// Device memory, allocated and freed in the order of its stream. Streams that use it besides its own are remembered,
// and the free is ordered after their work.
class CudaStorage : public Storage {
 public:
  CudaStorage(void* data, size_t bytes, std::shared_ptr<StreamState> stream);
  ~CudaStorage() override;

  void used_on(const std::shared_ptr<StreamState>& stream);

 private:
  std::shared_ptr<StreamState> stream_;
  std::vector<std::shared_ptr<StreamState>> other_streams_;
};

// Two page-locked host blocks with a stream each: one is filled or emptied while the other is being copied.
//
// NOTE: making them is no work for the completion thread: allocating page-locked memory waits for the device, which may
// be waiting for that very thread (CudaBackend::copy_from_cpu).
class Staging {
 public:
  static constexpr size_t kBlockBytes = size_t{8} << 20;

  Staging();
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // The staging streams start after everything enqueued on `stream` so far: its memory may be in use until then.
  void begin_after(const StreamState& stream);
  // `stream` waits for the staging streams.
  void end_before(cudaStream_t stream);

  void upload(char* device, const char* host, size_t bytes);    // the last two blocks may be on their way still
  void wait();                                                  // until they have arrived
  void download(char* host, const char* device, size_t bytes);  // complete on return

 private:
  char* blocks_[2] = {};
  cudaStream_t streams_[2] = {};
};

// Stagings kept for reuse; each goes back by itself when its last owner lets go.
class StagingPool : public std::enable_shared_from_this<StagingPool> {
 public:
  std::shared_ptr<Staging> take();

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Staging>> free_;
};

}  // namespace warpgrad::cuda
