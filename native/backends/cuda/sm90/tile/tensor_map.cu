#include "backends/cuda/sm90/tile/tensor_map.h"

#include "backends/cuda/sm90/check.h"

namespace warpgrad::cuda::sm90 {
namespace {

constexpr int kMaxTensorMapRank = 5;

CUtensorMapDataType data_type(DType dtype) {
  if (dtype == DType::kFloat32) return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  return dtype == DType::kBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
}

decltype(&cuTensorMapEncodeTiled) find_encoder(const char* operation) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
             operation, "cuTensorMapEncodeTiled");
  WG_CHECK(found == cudaDriverEntryPointSuccess, ErrorCode::kDeviceFailure, operation,
           ": the driver has no cuTensorMapEncodeTiled (CUDA 12.0 or later is needed)");
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
}

}  // namespace

CUtensorMap make_tensor_map(const char* operation, DType dtype, const void* base,
                            const std::vector<TensorMapDim>& dims) {
  static const auto encode = find_encoder(operation);  // the same for every device of the process
  const int rank = static_cast<int>(dims.size());
  WG_CHECK(rank <= kMaxTensorMapRank, ErrorCode::kInternal, operation, ": tensor map of rank ", rank);
  cuuint64_t sizes[kMaxTensorMapRank], strides_bytes[kMaxTensorMapRank];
  cuuint32_t boxes[kMaxTensorMapRank], steps[kMaxTensorMapRank];
  const int64_t element_bytes = static_cast<int64_t>(dtype_bytes(dtype));
  for (int i = 0; i < rank; ++i) {
    sizes[i] = dims[i].size;
    boxes[i] = dims[i].box;
    steps[i] = 1;
    // The stride of a dimension of size 1 is never used, but has to be valid.
    if (i > 0) strides_bytes[i - 1] = dims[i].size == 1 ? kTensorMapAlignment : dims[i].stride * element_bytes;
  }
  CUtensorMap map;
  const CUresult status = encode(&map, data_type(dtype), rank, const_cast<void*>(base), sizes, strides_bytes, boxes,
                                 steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  WG_CHECK(status == CUDA_SUCCESS, ErrorCode::kDeviceFailure, operation, ": cuTensorMapEncodeTiled failed with ",
           static_cast<int>(status));
  return map;
}

}  // namespace warpgrad::cuda::sm90
