#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "backends/cuda/runtime/stream.h"
#include "core/storage.h"

namespace warpgrad::cuda {

// Device memory in the order of a stream. Streams that use it besides its own are remembered: it is given up after
// their work.
class CudaStorage : public Storage {
 public:
  void used_on(const std::shared_ptr<StreamState>& stream);
  const std::vector<std::shared_ptr<StreamState>>& users() const { return users_; }
  StreamState& stream() const { return *stream_; }
  virtual const Arena* arena() const { return nullptr; }

  // Set while a large copy to the host is under way, which no stream orders. Of the thread that enqueues.
  EventPtr last_download;

 protected:
  CudaStorage(void* data, size_t bytes, std::shared_ptr<StreamState> stream);

  // Runs `give_up` once the stream is ordered after the work of the other users.
  void after_users(std::function<void()> give_up) noexcept;

  std::shared_ptr<StreamState> stream_;

 private:
  std::vector<std::shared_ptr<StreamState>> users_;  // but for stream_
};

// Memory of an arena: workspaces, and the base of tensors.
class ArenaStorage : public CudaStorage {
 public:
  ArenaStorage(size_t bytes, std::shared_ptr<Arena> arena, std::shared_ptr<StreamState> stream);
  ~ArenaStorage() override;
  const Arena* arena() const override { return arena_.get(); }

 private:
  std::shared_ptr<Arena> arena_;
};

// Memory of a tensor, which memoryStats() counts.
class TensorStorage : public ArenaStorage {
 public:
  TensorStorage(size_t bytes, std::shared_ptr<Arena> arena, std::shared_ptr<StreamState> stream);
  ~TensorStorage() override;
};

// Memory that somebody else frees once `owner` is let go, which happens when queued work is done.
class AdoptedCudaStorage : public CudaStorage {
 public:
  AdoptedCudaStorage(void* data, size_t bytes, const CudaStream& stream, std::shared_ptr<void> owner);
  ~AdoptedCudaStorage() override;

 private:
  std::shared_ptr<CompletionQueue> completion_;
  std::shared_ptr<void> owner_;
};

// Page-locked host memory for copies. What fits is copied in the order of the stream itself; more passes through two
// blocks with a stream each: one is filled or emptied while the other is being copied.
//
// NOTE: allocating page-locked memory waits for the device, so the device must never wait for a thread of this process.
class Staging {
 public:
  static constexpr size_t kBlockBytes = size_t{8} << 20;
  static constexpr bool fits(size_t bytes) { return bytes <= 2 * kBlockBytes; }

  Staging();
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // For what fits. The host memory may change once send() returns; unload() gives what fetch() copied.
  void send(char* device, const char* host, size_t bytes, cudaStream_t stream);
  void fetch(const char* device, size_t bytes, cudaStream_t stream);
  void unload(char* host, size_t bytes) const;

  // The staging streams start after everything enqueued on `stream` so far: its memory may be in use until then.
  void begin_after(const StreamState& stream);
  // `stream` waits for the staging streams.
  void end_before(cudaStream_t stream);

  void upload(char* device, const char* host, size_t bytes);    // the last two blocks may be on their way still
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
