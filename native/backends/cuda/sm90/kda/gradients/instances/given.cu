#include "backends/cuda/sm90/kda/gradients/instance.cuh"

namespace warpgrad::cuda::sm90 {

template cudaError_t run_kda_gradients<KdaGradientsConfig<ops::GateKind::kGiven, true, DType::kBFloat16>>(
    const KdaGradientsParams&, int, cudaStream_t);
template cudaError_t run_kda_gradients<KdaGradientsConfig<ops::GateKind::kGiven, true, DType::kFloat32>>(
    const KdaGradientsParams&, int, cudaStream_t);

}  // namespace warpgrad::cuda::sm90
