#include "backends/cuda/sm90/attention_fwd/kernels.h"

#include "backends/cuda/sm90/attention_fwd/config.cuh"
#include "backends/cuda/sm90/attention_fwd/instance.h"
#include "core/check.h"

namespace warpgrad::cuda::sm90 {
namespace {

template <DType kType, int kQkDim, int kVDim, bool kMappedScores,
          AttentionFwdTile kTile = attention_fwd_tile(kQkDim, kVDim, kMappedScores)>
constexpr AttentionFwdKernel row(int min_keys = 0) {
  using Config = AttentionFwdConfig<kType, kQkDim, kVDim, kMappedScores, kTile>;
  return {kType,
          kQkDim,
          kVDim,
          kMappedScores,
          min_keys,
          Config::kBlockN,
          Config::kConsumerWarpgroups,
          run_attention_fwd<Config>};
}

constexpr DType kBf16 = DType::kBFloat16, kFp16 = DType::kFloat16;

constexpr int kManyKeys = 1536;

// Smaller head dimensions first.
constexpr AttentionFwdKernel kKernels[] = {
    row<kBf16, 64, 64, false>(kManyKeys),
    row<kBf16, 64, 64, true>(kManyKeys),
    row<kFp16, 64, 64, false>(kManyKeys),
    row<kFp16, 64, 64, true>(kManyKeys),
    row<kBf16, 64, 64, false, kAttentionFwdShortTile64>(),
    row<kBf16, 64, 64, true, kAttentionFwdShortTile64>(),
    row<kFp16, 64, 64, false, kAttentionFwdShortTile64>(),
    row<kFp16, 64, 64, true, kAttentionFwdShortTile64>(),
    row<kBf16, 96, 96, false>(),
    row<kBf16, 96, 96, true>(),
    row<kFp16, 96, 96, false>(),
    row<kFp16, 96, 96, true>(),
    row<kBf16, 128, 128, false>(),
    row<kBf16, 128, 128, true>(),
    row<kFp16, 128, 128, false>(),
    row<kFp16, 128, 128, true>(),
    row<kBf16, 192, 128, false>(),
    row<kBf16, 192, 128, true>(),
    row<kFp16, 192, 128, false>(),
    row<kFp16, 192, 128, true>(),
    row<kBf16, 192, 192, false>(),
    row<kBf16, 192, 192, true>(),
    row<kFp16, 192, 192, false>(),
    row<kFp16, 192, 192, true>(),
    row<kBf16, 256, 256, false>(),
    row<kBf16, 256, 256, true>(),
    row<kFp16, 256, 256, false>(),
    row<kFp16, 256, 256, true>(),
};

}  // namespace

const AttentionFwdKernel& find_attention_fwd_kernel(DType dtype, int64_t qk_dim, int64_t v_dim, bool mapped_scores,
                                                    int64_t mean_keys) {
  if (qk_dim % 8 == 0 && v_dim % 8 == 0 && qk_dim > 0 && v_dim > 0) {
    for (const AttentionFwdKernel& kernel : kKernels) {
      if (kernel.dtype == dtype && kernel.mapped_scores == mapped_scores && mean_keys >= kernel.min_keys &&
          qk_dim <= kernel.qk_dim && v_dim <= kernel.v_dim) {
        return kernel;
      }
    }
  }
  throw Error(
      ErrorCode::kUnsupported,
      concat("attentionForward: on cuda the dtype must be bfloat16 or float16 and the head dimensions multiples "
             "of 8 up to ",
             ops::kMaxHeadDim, ", got ", dtype_name(dtype), ", ", qk_dim, " for q and k, ", v_dim, " for v"));
}

}  // namespace warpgrad::cuda::sm90
