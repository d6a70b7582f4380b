#include "backends/cuda/sm90/kda/prepare/instance.cuh"

namespace warpgrad::cuda::sm90 {

template cudaError_t run_kda_prepare<KdaPrepareConfig<1, false, true>>(const KdaPrepareParams&, int, cudaStream_t);
template cudaError_t run_kda_prepare<KdaPrepareConfig<1, true, true>>(const KdaPrepareParams&, int, cudaStream_t);

}  // namespace warpgrad::cuda::sm90
