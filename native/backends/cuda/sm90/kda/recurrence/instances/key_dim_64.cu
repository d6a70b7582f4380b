#include "backends/cuda/sm90/kda/recurrence/instance.cuh"

namespace warpgrad::cuda::sm90 {

#define WG_INSTANTIATE(warpgroups, result)                                                                  \
  template cudaError_t run_kda_recurrence<KdaRecurrenceConfig<1, warpgroups, KdaRecurrenceResult::result>>( \
      const KdaRecurrenceParams&, int, cudaStream_t)

WG_INSTANTIATE(1, kOut);
WG_INSTANTIATE(1, kOutAndImages);
WG_INSTANTIATE(1, kImages);
WG_INSTANTIATE(1, kSegment);
WG_INSTANTIATE(2, kOut);
WG_INSTANTIATE(2, kOutAndImages);
WG_INSTANTIATE(2, kImages);
WG_INSTANTIATE(2, kSegment);

#undef WG_INSTANTIATE

}  // namespace warpgrad::cuda::sm90
