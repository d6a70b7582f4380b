#include "backends/cuda/sm90/attention_bwd/instance.cuh"

namespace warpgrad::cuda::sm90 {

template cudaError_t run_attention_bwd<AttentionBwdConfig<DType::kBFloat16, 64, 64, false>>(const AttentionBwdLaunch&,
                                                                                            cudaStream_t);
template cudaError_t run_attention_bwd<AttentionBwdConfig<DType::kBFloat16, 64, 64, true>>(const AttentionBwdLaunch&,
                                                                                           cudaStream_t);
template cudaError_t run_attention_bwd<AttentionBwdConfig<DType::kFloat16, 64, 64, false>>(const AttentionBwdLaunch&,
                                                                                           cudaStream_t);
template cudaError_t run_attention_bwd<AttentionBwdConfig<DType::kFloat16, 64, 64, true>>(const AttentionBwdLaunch&,
                                                                                          cudaStream_t);

}  // namespace warpgrad::cuda::sm90
