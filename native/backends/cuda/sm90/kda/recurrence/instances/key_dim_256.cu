#include "backends/cuda/sm90/kda/recurrence/instance.cuh"

namespace warpgrad::cuda::sm90 {

#define WG_INSTANTIATE(result)                                                                     \
  template cudaError_t run_kda_recurrence<KdaRecurrenceConfig<4, 2, KdaRecurrenceResult::result>>( \
      const KdaRecurrenceParams&, int, cudaStream_t)

WG_INSTANTIATE(kOut);
WG_INSTANTIATE(kOutAndImages);
WG_INSTANTIATE(kImages);

#undef WG_INSTANTIATE

}  // namespace warpgrad::cuda::sm90
