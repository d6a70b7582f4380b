#include <algorithm>

#include "backends/cuda/sm90/check.h"
#include "backends/cuda/sm90/kda/gradients/config.cuh"
#include "backends/cuda/sm90/kda/gradients/instance.h"
#include "backends/cuda/sm90/kda/gradients/wide/config.cuh"
#include "backends/cuda/sm90/kda/gradients/wide/instance.h"
#include "backends/cuda/sm90/kda/gradients/wide/scores.cuh"
#include "backends/cuda/sm90/kda/gradients/wide/scores.h"
#include "backends/cuda/sm90/kda/stages.h"
#include "backends/cuda/sm90/tile/attention_operand.h"
#include "backends/cuda/sm90/tile/tensor_map.h"

namespace warpgrad::cuda::sm90 {
namespace {

constexpr char kOperation[] = "kdaBackward";
constexpr int kNarrowPanels = 2;

// Of [B, T, H, columns], in boxes of 64 tokens and 128 bytes.
CUtensorMap make_map(const TensorView& view) {
  const int columns = kPanelRowBytes / static_cast<int>(dtype_bytes(view.dtype));
  return make_tensor_map(kOperation, view.dtype, view.data,
                         {{view.shape[3], 1, columns},
                          {view.shape[1], view.strides[1], kKdaChunkRows},
                          {view.shape[2], view.strides[2], 1},
                          {view.shape[0], view.strides[0], 1}});
}

bool is_wide(const KdaProblem& problem) {
  return std::max(problem.key_panels, problem.value_panels) > kNarrowPanels;
}

int32_t num_tiles(const KdaProblem& problem) {
  return problem.num_chunks * static_cast<int32_t>(problem.value_heads);
}

KdaGradientsParams make_params(const KdaProblem& problem, const KdaChunkImages& images, const TensorView& d_out,
                               const TensorView& dv, const KdaGradients& gradients, void* scratch) {
  const ops::KdaOptions& options = *problem.options;
  KdaGradientsParams params{};
  params.tensor_map_q = make_map(problem.q);
  params.tensor_map_k = make_map(problem.k);
  params.tensor_map_g = make_map(problem.g);
  params.tensor_map_dv = make_map(dv);
  params.tensor_map_d_out = make_map(d_out);
  params.tensor_map_dq = make_map(gradients.dq);
  params.tensor_map_dk = make_map(gradients.dk);
  params.tensor_map_dg = make_map(gradients.dg);

  params.records = static_cast<const uint8_t*>(images.records);
  params.states = static_cast<const uint8_t*>(images.states);
  params.e = static_cast<const uint8_t*>(images.e);
  params.d_states = static_cast<const uint8_t*>(images.d_states);
  params.scores = static_cast<uint8_t*>(scratch);
  params.chunks = problem.chunks;

  params.dq = gradients.dq.as<uint8_t>();
  params.dk = gradients.dk.as<uint8_t>();
  params.dg = gradients.dg.as<uint8_t>();
  params.dbeta = gradients.dbeta.data;
  params.dbeta_type = gradients.dbeta.dtype;
  params.beta_top = !options.beta_logits ? 0.0f : options.allow_neg_eigval ? 2.0f : 1.0f;
  params.d_a_log_parts = gradients.d_a_log_parts;
  params.d_dt_bias_parts = gradients.d_dt_bias_parts;

  params.a_log = problem.a_log.as<const float>();
  params.dt_bias = problem.dt_bias.as<const float>();
  params.dt_bias_stride = problem.dt_bias.strides[0];
  params.lower_bound = options.lower_bound;
  params.scale = options.scale;
  params.l2_norm = options.qk_l2_norm;

  params.num_tiles = num_tiles(problem);
  params.value_heads = static_cast<int32_t>(problem.value_heads);
  params.group = problem.group();
  params.tokens = static_cast<int32_t>(problem.tokens);
  params.key_dim = static_cast<int32_t>(problem.key_dim);
  params.value_panels = problem.value_panels;
  params.key_parts = problem.key_parts();
  params.value_parts = (problem.value_panels + 1) / 2;
  params.record = problem.record();
  return params;
}

template <ops::GateKind kGate, bool kAnyDecay>
cudaError_t run_for_gate_type(DType type, const KdaGradientsParams& params, int blocks, cudaStream_t stream) {
  return type == DType::kFloat32
             ? run_kda_gradients<KdaGradientsConfig<kGate, kAnyDecay, DType::kFloat32>>(params, blocks, stream)
             : run_kda_gradients<KdaGradientsConfig<kGate, kAnyDecay, DType::kBFloat16>>(params, blocks, stream);
}

cudaError_t run(const ops::KdaOptions& options, DType type, const KdaGradientsParams& params, int blocks,
                cudaStream_t stream) {
  switch (options.gate) {
    case ops::GateKind::kGiven: return run_for_gate_type<ops::GateKind::kGiven, true>(type, params, blocks, stream);
    case ops::GateKind::kSoftplus:
      return run_for_gate_type<ops::GateKind::kSoftplus, true>(type, params, blocks, stream);
    case ops::GateKind::kBounded: break;
  }
  constexpr float kLog2E = 1.44269504f;
  const bool any_decay = -15 * kLog2E * options.lower_bound > kKdaMaxBlockDecay;
  return any_decay ? run_for_gate_type<ops::GateKind::kBounded, true>(type, params, blocks, stream)
                   : run_for_gate_type<ops::GateKind::kBounded, false>(type, params, blocks, stream);
}

template <ops::GateKind kGate>
cudaError_t run_wide_for_gate_type(DType type, const KdaGradientsParams& params, int clusters, cudaStream_t stream) {
  return type == DType::kFloat32
             ? run_kda_wide_gradients<KdaWideGradientsConfig<kGate, DType::kFloat32>>(params, clusters, stream)
             : run_kda_wide_gradients<KdaWideGradientsConfig<kGate, DType::kBFloat16>>(params, clusters, stream);
}

cudaError_t run_wide(ops::GateKind gate, DType type, const KdaGradientsParams& params, int clusters,
                     cudaStream_t stream) {
  switch (gate) {
    case ops::GateKind::kGiven: return run_wide_for_gate_type<ops::GateKind::kGiven>(type, params, clusters, stream);
    case ops::GateKind::kSoftplus:
      return run_wide_for_gate_type<ops::GateKind::kSoftplus>(type, params, clusters, stream);
    case ops::GateKind::kBounded: break;
  }
  return run_wide_for_gate_type<ops::GateKind::kBounded>(type, params, clusters, stream);
}

}  // namespace

size_t kda_gradients_scratch_bytes(const KdaProblem& problem) {
  return is_wide(problem) ? static_cast<size_t>(num_tiles(problem)) * kKdaScoresBytes : 0;
}

void launch_kda_gradients(const KdaProblem& problem, const KdaChunkImages& images, const TensorView& d_out,
                          const TensorView& dv, const KdaGradients& gradients, void* scratch, cudaStream_t stream) {
  if (problem.num_chunks == 0 || problem.value_heads == 0) return;
  const KdaGradientsParams params = make_params(problem, images, d_out, dv, gradients, scratch);
  const int blocks = std::min(params.num_tiles, multiprocessor_count(kOperation) / params.key_parts);
  const DType gate_type = problem.g.dtype;
  if (!is_wide(problem)) {
    check_cuda(run(*problem.options, gate_type, params, blocks, stream), kOperation, "launch of the gradients");
    return;
  }
  check_cuda(run_kda_scores(params, stream), kOperation, "launch of the gradients' scores");
  check_cuda(run_wide(problem.options->gate, gate_type, params, blocks, stream), kOperation,
             "launch of the gradients of wide heads");
}

}  // namespace warpgrad::cuda::sm90
