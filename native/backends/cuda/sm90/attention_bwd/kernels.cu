#include "backends/cuda/sm90/attention_bwd/kernels.h"

#include "backends/cuda/sm90/attention_bwd/config.cuh"
#include "backends/cuda/sm90/attention_bwd/dq_fragment.cuh"
#include "core/check.h"
#include "ops/attention.h"

namespace warpgrad::cuda::sm90 {
namespace {

template <DType kType, int kQkDim, int kVDim, bool kMappedScores>
constexpr AttentionBwdKernel row() {
  using Config = AttentionBwdConfig<kType, kQkDim, kVDim, kMappedScores>;
  return {kType,
          kQkDim,
          kVDim,
          kMappedScores,
          Config::kBlockM,
          Config::kBlockN,
          !Config::kByKeys,
          Config::kByKeys ? DqFragment<Config>::kBlockFloats : 0,
          run_attention_bwd<Config>};
}

constexpr DType kBf16 = DType::kBFloat16, kFp16 = DType::kFloat16;

// Smaller head dimensions first.
constexpr AttentionBwdKernel kKernels[] = {
    row<kBf16, 64, 64, false>(),   row<kBf16, 64, 64, true>(),    row<kFp16, 64, 64, false>(),
    row<kFp16, 64, 64, true>(),    row<kBf16, 96, 96, false>(),   row<kBf16, 96, 96, true>(),
    row<kFp16, 96, 96, false>(),   row<kFp16, 96, 96, true>(),    row<kBf16, 128, 128, false>(),
    row<kBf16, 128, 128, true>(),  row<kFp16, 128, 128, false>(), row<kFp16, 128, 128, true>(),
    row<kBf16, 192, 128, false>(), row<kBf16, 192, 128, true>(),  row<kFp16, 192, 128, false>(),
    row<kFp16, 192, 128, true>(),  row<kBf16, 192, 192, false>(), row<kBf16, 192, 192, true>(),
    row<kFp16, 192, 192, false>(), row<kFp16, 192, 192, true>(),  row<kBf16, 256, 256, false>(),
    row<kBf16, 256, 256, true>(),  row<kFp16, 256, 256, false>(), row<kFp16, 256, 256, true>(),
};

}  // namespace

const AttentionBwdKernel& find_attention_bwd_kernel(DType dtype, int64_t qk_dim, int64_t v_dim, bool mapped_scores) {
  if (qk_dim % 8 == 0 && v_dim % 8 == 0 && qk_dim > 0 && v_dim > 0) {
    for (const AttentionBwdKernel& kernel : kKernels) {
      if (kernel.dtype == dtype && kernel.mapped_scores == mapped_scores && qk_dim <= kernel.qk_dim &&
          v_dim <= kernel.v_dim) {
        return kernel;
      }
    }
  }
  throw Error(
      ErrorCode::kUnsupported,
      concat("attentionBackward: on cuda the dtype must be bfloat16 or float16 and the head dimensions multiples "
             "of 8 up to ",
             ops::kMaxHeadDim, ", got ", dtype_name(dtype), ", ", qk_dim, " for q and k, ", v_dim, " for v"));
}

}  // namespace warpgrad::cuda::sm90
