#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "backends/cuda/runtime/copy.h"
#include "backends/cuda/runtime/status.h"

namespace warpgrad::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 132 * 32;

// The dimensions of a copy, merged where both sides allow it; the last one innermost.
struct Layout {
  int rank = 0;
  int64_t shape[kMaxRank];
  int64_t dst_strides[kMaxRank];
  int64_t src_strides[kMaxRank];
};

Layout merge_dims(const TensorView& dst, const TensorView& src) {
  Layout layout;
  for (int i = 0; i < dst.rank; ++i) {
    if (dst.shape[i] == 1) continue;
    const int last = layout.rank - 1;
    const bool merges = last >= 0 && layout.dst_strides[last] == dst.strides[i] * dst.shape[i] &&
                        layout.src_strides[last] == src.strides[i] * src.shape[i];
    if (merges) {
      layout.shape[last] *= dst.shape[i];
      layout.dst_strides[last] = dst.strides[i];
      layout.src_strides[last] = src.strides[i];
    } else {
      layout.shape[layout.rank] = dst.shape[i];
      layout.dst_strides[layout.rank] = dst.strides[i];
      layout.src_strides[layout.rank++] = src.strides[i];
    }
  }
  return layout;
}

__device__ float to_float(float value) {
  return value;
}
__device__ float to_float(__half value) {
  return __half2float(value);
}
__device__ float to_float(__nv_bfloat16 value) {
  return __bfloat162float(value);
}

template <class Dst, class Src>
__device__ Dst convert(Src value) {
  if constexpr (std::is_same_v<Dst, Src>) {
    return value;
  } else if constexpr (std::is_same_v<Src, int32_t>) {
    return Dst(static_cast<float>(value));  // exact up to 2^24, rounded to nearest beyond
  } else if constexpr (std::is_same_v<Dst, int32_t>) {
    return __float2int_rz(to_float(value));
  } else if constexpr (std::is_same_v<Dst, float>) {
    return to_float(value);
  } else if constexpr (std::is_same_v<Dst, __half>) {
    return __float2half_rn(to_float(value));
  } else {
    return __float2bfloat16_rn(to_float(value));
  }
}

template <class Dst, class Src>
__global__ void copy_convert_kernel(Dst* dst, const Src* src, int64_t num_elems, Layout layout) {
  const int64_t step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < num_elems; i += step) {
    int64_t rest = i, dst_offset = 0, src_offset = 0;
    for (int dim = layout.rank - 1; dim > 0; --dim) {
      const int64_t quotient = rest / layout.shape[dim];
      const int64_t index = rest - quotient * layout.shape[dim];
      dst_offset += index * layout.dst_strides[dim];
      src_offset += index * layout.src_strides[dim];
      rest = quotient;
    }
    if (layout.rank > 0) {
      dst_offset += rest * layout.dst_strides[0];
      src_offset += rest * layout.src_strides[0];
    }
    dst[dst_offset] = convert<Dst>(src[src_offset]);
  }
}

template <class Dst, class Src>
void launch(const TensorView& dst, const TensorView& src, cudaStream_t stream) {
  const int64_t num_elems = dst.num_elems();
  if (num_elems == 0) return;
  const int64_t blocks = std::min((num_elems + kThreads - 1) / kThreads, kMaxBlocks);
  copy_convert_kernel<Dst, Src><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      dst.as<Dst>(), src.as<const Src>(), num_elems, merge_dims(dst, src));
  check(cudaGetLastError(), "copy_convert_kernel");
}

template <class Dst>
void launch_from(const TensorView& dst, const TensorView& src, cudaStream_t stream) {
  switch (src.dtype) {
    case DType::kFloat32: return launch<Dst, float>(dst, src, stream);
    case DType::kFloat16: return launch<Dst, __half>(dst, src, stream);
    case DType::kBFloat16: return launch<Dst, __nv_bfloat16>(dst, src, stream);
    case DType::kInt32: return launch<Dst, int32_t>(dst, src, stream);
  }
}

}  // namespace

void launch_copy_convert(const TensorView& dst, const TensorView& src, cudaStream_t stream) {
  switch (dst.dtype) {
    case DType::kFloat32: return launch_from<float>(dst, src, stream);
    case DType::kFloat16: return launch_from<__half>(dst, src, stream);
    case DType::kBFloat16: return launch_from<__nv_bfloat16>(dst, src, stream);
    case DType::kInt32: return launch_from<int32_t>(dst, src, stream);
  }
}

}  // namespace warpgrad::cuda
