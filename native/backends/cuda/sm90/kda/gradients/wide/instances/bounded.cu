#include "backends/cuda/sm90/kda/gradients/wide/instance.cuh"

namespace warpgrad::cuda::sm90 {

template cudaError_t run_kda_wide_gradients<KdaWideGradientsConfig<ops::GateKind::kBounded, DType::kBFloat16>>(
    const KdaGradientsParams&, int, cudaStream_t);
template cudaError_t run_kda_wide_gradients<KdaWideGradientsConfig<ops::GateKind::kBounded, DType::kFloat32>>(
    const KdaGradientsParams&, int, cudaStream_t);

}  // namespace warpgrad::cuda::sm90
