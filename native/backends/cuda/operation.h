#pragma once

#include "backends/cuda/runtime/device.h"
#include "backends/cuda/runtime/stream.h"

namespace warpgrad::cuda {

inline CudaStream& cuda_stream(Stream& stream) {
  return static_cast<CudaStream&>(stream);
}

// Runs `launch` on the stream, after the writes of what it uses.
template <class Launch>
void enqueue(const char* operation, Stream& stream, const StorageUses& uses, Launch launch) {
  CudaStream& target = cuda_stream(stream);
  const DeviceGuard guard(target.state()->device().index());
  target.before(operation, uses);
  launch(target.handle());
  target.after(uses);
}

}  // namespace warpgrad::cuda
