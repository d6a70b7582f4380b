#include "backends/cuda/sm90/attention_fwd/launch.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backends/cuda/sm90/attention_fwd/kernels.h"
#include "backends/cuda/sm90/check.h"
#include "backends/cuda/sm90/limits.h"
#include "backends/cuda/sm90/tile/attention_operand.h"
#include "backends/cuda/sm90/tile/swizzled_tile.cuh"
#include "backends/cuda/sm90/tile/tensor_map.h"

namespace warpgrad::cuda::sm90 {
namespace {

constexpr char kOperation[] = "attentionForward";
constexpr double kLog2E = 1.44269504088896340736;

void check_readable(const char* name, const TensorView& view) {
  WG_CHECK(is_copyable(view), ErrorCode::kUnsupported, kOperation, ": on cuda ", name,
           " must lie at a multiple of 16 bytes with positive strides that are multiples of 8 elements");
}

CUtensorMap query_map(const TensorView& view, const AttentionFwdPlan& plan) {
  const AttentionOperand layout(view);
  return make_tensor_map(kOperation, view.dtype, view.data,
                         {{layout.dim, 1, kPanelColumns},
                          {plan.pack, layout.head_stride, plan.pack},
                          {layout.rows, layout.row_stride, plan.warpgroup_queries},
                          {layout.heads / plan.pack, layout.head_stride * plan.pack, 1},
                          {layout.batches, layout.batch_stride, 1}});
}

CUtensorMap key_map(const TensorView& view, const AttentionFwdPlan& plan) {
  return make_rows_map(kOperation, view, plan.k_row_end, plan.kernel->block_n);
}

void set_score_scales(const ops::AttentionOptions& options, AttentionFwdKernelParams& params) {
  const double scale = options.scale;
  if (attention_fwd_maps_scores(options) && options.softcap > 0) {
    params.map_scale = static_cast<float>(2 * scale * kLog2E / options.softcap);
    params.log_scale = options.softcap;
    params.exp2_scale = static_cast<float>(options.softcap * kLog2E);
  } else {
    // A scale of 0 must still leave masked scores at minus infinity.
    const double factor = std::max(std::fabs(scale), 1e-30);
    params.map_scale = 0;
    params.log_scale = static_cast<float>(factor);
    params.exp2_scale = static_cast<float>(factor * kLog2E);
  }
}

AttentionFwdKernelParams kernel_params(const ops::AttentionForwardParams& params, const AttentionFwdPlan& plan,
                                       AttentionFwdMaps& maps, void* workspace) {
  AttentionFwdKernelParams result{};
  const AttentionOperand q(params.q), k(params.k);
  // Without a key there is no memory to point at; one row, never in bounds, stands in for it.
  const bool has_keys = params.k.num_elems() > 0;
  const TensorView& keys = has_keys ? params.k : params.q;
  const TensorView& values = has_keys ? params.v : params.out;
  using Operand = AttentionFwdOperand;
  result.tensor_map_q = maps.get(Operand::kQ, params.q.data, [&] { return query_map(params.q, plan); });
  result.tensor_map_k = maps.get(Operand::kK, keys.data, [&] { return key_map(keys, plan); });
  result.tensor_map_v = maps.get(Operand::kV, values.data, [&] { return key_map(values, plan); });
  result.tensor_map_out = maps.get(Operand::kOut, params.out.data, [&] { return query_map(params.out, plan); });
  result.k_row_end = plan.k_row_end;
  result.k_wrap = params.q.rank == 3 ? kPackedRowEnd : 0;

  result.out = params.out.data;
  result.lse = params.lse.as<float>();
  result.sink = params.sink.as<const float>();
  result.lse_head_stride = q.rows;

  result.counters = static_cast<int32_t*>(workspace);
  if (!plan.sequences.empty()) {
    result.sequences =
        reinterpret_cast<const AttentionFwdSequence*>(static_cast<char*>(workspace) + kAttentionFwdCounterBytes);
  }
  result.num_sequences = static_cast<int32_t>(plan.sequences.size());
  result.dense = plan.dense;
  result.num_tiles = plan.num_tiles;
  result.num_heads = static_cast<int32_t>(q.heads);
  result.head_groups = static_cast<int32_t>(q.heads / plan.pack);
  result.groups_per_kv = static_cast<int32_t>(q.heads / k.heads / plan.pack);
  result.pack = plan.pack;
  result.pack_reciprocal = ((1 << 16) + plan.pack - 1) / plan.pack;
  result.warpgroup_queries = plan.warpgroup_queries;
  result.batches = static_cast<int32_t>(q.batches);
  result.v_dim = static_cast<int32_t>(params.v.shape[params.v.rank - 1]);
  result.window_left = window_bound(params.options.window_left);
  result.window_right = window_bound(params.options.window_right);
  set_score_scales(params.options, result);
  return result;
}

// Rows of packed outputs past the last sequence: zeros in out, minus infinity in lse.
__global__ void attention_fwd_clear_kernel(uint4* out_tail, int64_t out_chunks, float* lse, int64_t rows,
                                           int64_t used_rows, int64_t num_lse) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (int64_t i = first; i < out_chunks; i += stride) out_tail[i] = make_uint4(0, 0, 0, 0);
  const int64_t unused_rows = rows - used_rows;
  for (int64_t i = first; i < num_lse; i += stride)
    lse[i / unused_rows * rows + used_rows + i % unused_rows] = -INFINITY;
}

void clear_unused_rows(const ops::AttentionForwardParams& params, const AttentionFwdPlan& plan, cudaStream_t stream) {
  const AttentionOperand out(params.out);
  const int64_t unused_rows = out.rows - plan.used_q_rows;
  if (unused_rows == 0 || params.out.rank != 3) return;
  const int64_t row_bytes = out.heads * out.dim * static_cast<int64_t>(dtype_bytes(params.out.dtype));
  const int64_t chunks = unused_rows * row_bytes / static_cast<int64_t>(sizeof(uint4));
  constexpr int kThreads = 256;
  const int64_t blocks = std::clamp<int64_t>(chunks / kThreads, 1, 1024);
  attention_fwd_clear_kernel<<<static_cast<int>(blocks), kThreads, 0, stream>>>(
      reinterpret_cast<uint4*>(params.out.as<char>() + plan.used_q_rows * row_bytes), chunks, params.lse.as<float>(),
      out.rows, plan.used_q_rows, unused_rows * out.heads);
  check_cuda(cudaGetLastError(), kOperation, "clearing unused rows");
}

}  // namespace

void launch_attention_fwd(const ops::AttentionForwardParams& params, const AttentionFwdPlan& plan,
                          AttentionFwdMaps& maps, void* workspace, cudaStream_t stream) {
  if (params.out.num_elems() == 0) return;
  clear_unused_rows(params, plan, stream);
  if (plan.num_tiles == 0) return;
  check_readable("q", params.q);
  if (params.k.num_elems() > 0) {
    check_readable("k", params.k);
    check_readable("v", params.v);
  }
  const int multiprocessors = multiprocessor_count(kOperation);
  check_cuda(
      plan.kernel->run(kernel_params(params, plan, maps, workspace), std::min(plan.num_tiles, multiprocessors), stream),
      kOperation, "launch");
}

}  // namespace warpgrad::cuda::sm90
