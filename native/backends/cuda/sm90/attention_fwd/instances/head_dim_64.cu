#include "backends/cuda/sm90/attention_fwd/instance.cuh"

namespace warpgrad::cuda::sm90 {

template cudaError_t run_attention_fwd<AttentionFwdConfig<DType::kBFloat16, 64, 64, false>>(
    const AttentionFwdKernelParams&, int, cudaStream_t);
template cudaError_t run_attention_fwd<AttentionFwdConfig<DType::kBFloat16, 64, 64, true>>(
    const AttentionFwdKernelParams&, int, cudaStream_t);
template cudaError_t run_attention_fwd<AttentionFwdConfig<DType::kFloat16, 64, 64, false>>(
    const AttentionFwdKernelParams&, int, cudaStream_t);
template cudaError_t run_attention_fwd<AttentionFwdConfig<DType::kFloat16, 64, 64, true>>(
    const AttentionFwdKernelParams&, int, cudaStream_t);

}  // namespace warpgrad::cuda::sm90
