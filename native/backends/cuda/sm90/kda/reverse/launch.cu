#include <cuda_runtime_api.h>

#include "backends/cuda/sm90/check.h"
#include "backends/cuda/sm90/kda/reverse/kernel.cuh"
#include "backends/cuda/sm90/kda/run_kernel.cuh"
#include "backends/cuda/sm90/kda/stages.h"
#include "backends/cuda/sm90/tile/attention_operand.h"

namespace warpgrad::cuda::sm90 {
namespace {

constexpr char kOperation[] = "kdaBackward";

template <int kKeyPanels>
void launch(const KdaReverseParams& params, int blocks, cudaStream_t stream) {
  using Config = KdaReverseConfig<kKeyPanels>;
  check_cuda(run_kernel<kda_reverse_kernel<Config>>(blocks, Config::kThreads, sizeof(KdaReverseStorage<Config>), stream,
                                                    params),
             kOperation, "launch of the reverse recurrence");
}

}  // namespace

void launch_kda_reverse(const KdaProblem& problem, const void* records, const TensorView& d_out,
                        const TensorView& d_final_state, const TensorView& d_initial_state, const TensorView& dv,
                        void* d_state_images, cudaStream_t stream) {
  const int64_t blocks = problem.num_sequences * problem.value_heads * problem.value_panels;
  if (blocks == 0) return;
  KdaReverseParams params{};
  if (problem.num_chunks > 0) {
    params.tensor_map_d_out = make_rows_map(kOperation, d_out, problem.tokens, kKdaChunkRows);
    params.dv.map = make_rows_map(kOperation, dv, problem.tokens, kKdaChunkRows);
  }
  params.records = static_cast<const uint8_t*>(records);
  params.dv.data = dv.as<uint16_t>();
  params.dv.tokens = problem.tokens;
  params.dv.value_heads = static_cast<int32_t>(problem.value_heads);
  params.dv.value_dim = static_cast<int32_t>(problem.value_dim);
  params.d_state_images = static_cast<uint8_t*>(d_state_images);
  params.chunks = problem.chunks;
  params.sequences = problem.sequences;
  params.d_final_states = KdaStates(d_final_state, problem.options->state_vk);
  params.d_initial_states = KdaStates(d_initial_state, problem.options->state_vk);
  params.value_heads = static_cast<int32_t>(problem.value_heads);
  params.value_panels = problem.value_panels;
  const auto run = problem.key_panels == 1 ? launch<1> : problem.key_panels == 2 ? launch<2> : launch<4>;
  run(params, static_cast<int>(blocks), stream);
}

}  // namespace warpgrad::cuda::sm90
