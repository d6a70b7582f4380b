#include "backends/cuda/sm90/attention_bwd/kernels.h"

#include <algorithm>

#include "backends/cuda/sm90/attention_bwd/config.cuh"
#include "backends/cuda/sm90/attention_bwd/dq_fragment.cuh"
#include "core/check.h"

namespace warpgrad::cuda::sm90 {
namespace {

template <DType kType, int kHeadDim, bool kMappedScores>
constexpr AttentionBwdKernel row() {
  using Config = AttentionBwdConfig<kType, kHeadDim, kMappedScores>;
  return {kType,
          kHeadDim,
          kMappedScores,
          Config::kBlockM,
          Config::kBlockN,
          DqFragment<Config>::kBlockFloats,
          run_attention_bwd<Config>};
}

constexpr DType kBf16 = DType::kBFloat16, kFp16 = DType::kFloat16;
constexpr int kMaxHeadDim = 128;

// Smaller head dimensions first.
constexpr AttentionBwdKernel kKernels[] = {
    row<kBf16, 64, false>(),  row<kBf16, 64, true>(),  row<kFp16, 64, false>(),  row<kFp16, 64, true>(),
    row<kBf16, 96, false>(),  row<kBf16, 96, true>(),  row<kFp16, 96, false>(),  row<kFp16, 96, true>(),
    row<kBf16, 128, false>(), row<kBf16, 128, true>(), row<kFp16, 128, false>(), row<kFp16, 128, true>(),
};

}  // namespace

const AttentionBwdKernel& find_attention_bwd_kernel(DType dtype, int64_t qk_dim, int64_t v_dim, bool mapped_scores) {
  if (qk_dim % 8 == 0 && v_dim % 8 == 0 && qk_dim > 0 && v_dim > 0) {
    for (const AttentionBwdKernel& kernel : kKernels) {
      if (kernel.dtype == dtype && kernel.mapped_scores == mapped_scores &&
          std::max(qk_dim, v_dim) <= kernel.head_dim) {
        return kernel;
      }
    }
  }
  throw Error(
      ErrorCode::kUnsupported,
      concat("attentionBackward: on cuda the dtype must be bfloat16 or float16 and the head dimensions multiples "
             "of 8 up to ",
             kMaxHeadDim, ", got ", dtype_name(dtype), ", ", qk_dim, " for q and k, ", v_dim, " for v"));
}

}  // namespace warpgrad::cuda::sm90
