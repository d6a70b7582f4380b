#include <numbers>

#include "backends/cuda/sm90/check.h"
#include "backends/cuda/sm90/kda/prepare/instance.h"
#include "backends/cuda/sm90/kda/stages.h"
#include "backends/cuda/sm90/tile/attention_operand.h"

namespace warpgrad::cuda::sm90 {
namespace {

constexpr char kOperation[] = "kdaForward";

using RunKdaPrepare = cudaError_t (*)(const KdaPrepareParams&, int, cudaStream_t);

bool has_shallow_gate(const KdaProblem& problem) {
  const double deepest = kKdaBlockRows * std::numbers::log2e * problem.options->lower_bound;
  return problem.g.dtype == DType::kBFloat16 && problem.options->gate == ops::GateKind::kBounded &&
         deepest >= kKdaDeepestLog2;
}

template <int kPanels>
RunKdaPrepare find_run(const KdaProblem& problem) {
  if (has_shallow_gate(problem)) {
    return problem.options->qk_l2_norm ? run_kda_prepare<KdaPrepareConfig<kPanels, true, true>>
                                       : run_kda_prepare<KdaPrepareConfig<kPanels, false, true>>;
  }
  return problem.options->qk_l2_norm ? run_kda_prepare<KdaPrepareConfig<kPanels, true, false>>
                                     : run_kda_prepare<KdaPrepareConfig<kPanels, false, false>>;
}

RunKdaPrepare find_run(const KdaProblem& problem) {
  switch (problem.key_panels) {
    case 1: return find_run<1>(problem);
    case 2: return find_run<2>(problem);
    default: return find_run<4>(problem);
  }
}

CUtensorMap make_map(const KdaProblem& problem, const TensorView& view) {
  return make_rows_map(kOperation, view, problem.tokens, kKdaChunkRows);
}

}  // namespace

void launch_kda_prepare(const KdaProblem& problem, void* records, cudaStream_t stream) {
  const RunKdaPrepare run = find_run(problem);
  if (problem.num_chunks == 0) return;
  const ops::KdaOptions& options = *problem.options;
  KdaPrepareParams params{};
  params.tensor_map_q = make_map(problem, problem.q);
  params.tensor_map_k = make_map(problem, problem.k);
  params.chunks = problem.chunks;
  if (problem.g.dtype == DType::kFloat32) {
    params.g = problem.g.as<const float>();
    params.g_batch_stride = problem.g.strides[0];
    params.g_token_stride = problem.g.strides[1];
    params.g_head_stride = problem.g.strides[2];
  } else {
    params.tensor_map_g = make_map(problem, problem.g);
  }
  params.beta = problem.beta.data;
  params.beta_batch_stride = problem.beta.strides[0];
  params.beta_token_stride = problem.beta.strides[1];
  params.beta_head_stride = problem.beta.strides[2];
  params.a_log = problem.a_log.as<const float>();
  params.a_log_stride = problem.a_log.strides[0];
  params.dt_bias = problem.dt_bias.as<const float>();
  params.dt_bias_stride = problem.dt_bias.strides[0];
  params.records = static_cast<uint8_t*>(records);
  params.value_heads = static_cast<int32_t>(problem.value_heads);
  params.group = problem.group();
  params.key_dim = static_cast<int32_t>(problem.key_dim);
  params.scale = options.scale;
  params.lower_bound = options.lower_bound;
  params.beta_dtype = problem.beta.dtype;
  params.gate = options.gate;
  params.beta_logits = options.beta_logits;
  params.allow_neg_eigval = options.allow_neg_eigval;
  check_cuda(run(params, problem.num_chunks * params.value_heads, stream), kOperation, "launch of the preparation");
}

}  // namespace warpgrad::cuda::sm90
