#include <cuda_runtime_api.h>

#include "backends/cuda/sm90/check.h"
#include "backends/cuda/sm90/kda/reverse/kernel.cuh"
#include "backends/cuda/sm90/kda/stages.h"
#include "backends/cuda/sm90/tile/tensor_map.h"

namespace warpgrad::cuda::sm90 {
namespace {

constexpr char kOperation[] = "kdaBackward";

// Loads of 64 rows of a panel; rows past the end of a batch read as zeros.
CUtensorMap make_d_out_map(const TensorView& view) {
  const auto dim = [&](int axis, int box) { return TensorMapDim{view.shape[axis], view.strides[axis], box}; };
  return make_tensor_map(kOperation, view.dtype, view.data,
                         {dim(3, kPanelColumns), dim(1, kKdaChunkRows), dim(2, 1), dim(0, 1)});
}

template <int kKeyPanels>
void launch(const KdaReverseParams& params, int blocks, cudaStream_t stream) {
  using Config = KdaReverseConfig<kKeyPanels>;
  constexpr int kBytes = sizeof(KdaReverseStorage<Config>);
  const auto kernel = kda_reverse_kernel<Config>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), kOperation,
             "cudaFuncSetAttribute");
  kernel<<<blocks, Config::kThreads, kBytes, stream>>>(params);
  check_cuda(cudaGetLastError(), kOperation, "launch of the reverse recurrence");
}

}  // namespace

void launch_kda_reverse(const KdaProblem& problem, const void* records, const TensorView& d_out,
                        const TensorView& d_final_state, const TensorView& d_initial_state, void* du_images,
                        void* d_state_images, cudaStream_t stream) {
  const int64_t blocks = problem.num_sequences * problem.value_heads * problem.value_panels;
  if (blocks == 0) return;
  KdaReverseParams params{};
  if (problem.num_chunks > 0) params.tensor_map_d_out = make_d_out_map(d_out);
  params.records = static_cast<const uint8_t*>(records);
  params.du_images = static_cast<uint8_t*>(du_images);
  params.d_state_images = static_cast<uint8_t*>(d_state_images);
  params.chunks = problem.chunks;
  params.sequences = problem.sequences;
  params.d_final_states = KdaStates(d_final_state, problem.options->state_vk);
  params.d_initial_states = KdaStates(d_initial_state, problem.options->state_vk);
  params.record_bytes = problem.record().bytes();
  params.value_heads = static_cast<int32_t>(problem.value_heads);
  params.value_panels = problem.value_panels;
  const auto run = problem.key_panels == 1 ? launch<1> : problem.key_panels == 2 ? launch<2> : launch<4>;
  run(params, static_cast<int>(blocks), stream);
}

}  // namespace warpgrad::cuda::sm90
