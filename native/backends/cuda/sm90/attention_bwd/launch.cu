#include "backends/cuda/sm90/attention_bwd/launch.h"

#include <algorithm>

#include "backends/cuda/sm90/attention_bwd/kernels.h"
#include "backends/cuda/sm90/check.h"
#include "backends/cuda/sm90/limits.h"
#include "backends/cuda/sm90/tile/attention_operand.h"
#include "core/check.h"

namespace warpgrad::cuda::sm90 {
namespace {

constexpr char kOperation[] = "attentionBackward";
constexpr int kCombineBlocksEach = 8;  // multiprocessor
constexpr double kLog2E = 1.44269504088896340736;

// One block a head adds up the parts of its sink's gradient, always in the same order.
__global__ void __launch_bounds__(kWarpThreads)
    attention_bwd_sink_kernel(const float* parts, float* d_sink, int num_heads, int batches, int row_blocks) {
  const int head = blockIdx.x;
  float sum = 0;
  for (int batch = 0; batch < batches; ++batch) {
    const float* head_parts = parts + (static_cast<int64_t>(batch) * num_heads + head) * row_blocks;
    for (int i = threadIdx.x; i < row_blocks; i += kWarpThreads) sum += head_parts[i];
  }
#pragma unroll
  for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
  if (threadIdx.x == 0) d_sink[head] = sum;
}

void clear(const TensorView& view, int64_t first_row, cudaStream_t stream) {
  if (!view || view.num_elems() == 0) return;
  const int64_t rows = view.shape[0];
  const int64_t row_bytes = view.num_elems() / rows * static_cast<int64_t>(dtype_bytes(view.dtype));
  if (first_row == rows) return;
  check_cuda(cudaMemsetAsync(view.as<char>() + first_row * row_bytes, 0, (rows - first_row) * row_bytes, stream),
             kOperation, "cudaMemsetAsync");
}

class Launcher {
 public:
  Launcher(const ops::AttentionBackwardParams& params, const AttentionBwdPlan& plan, AttentionBwdMaps& maps,
           void* header, void* workspace)
      : params_(params),
        plan_(plan),
        maps_(maps),
        header_(static_cast<char*>(header)),
        workspace_(static_cast<char*>(workspace)),
        q_(params.q),
        k_(params.k),
        out_(params.out),
        d_out_(params.d_out) {}

  AttentionBwdLaunch launch(int multiprocessors) const {
    return {preprocess(),
            main(),
            postprocess(),
            dq(),
            combine(),
            plan_.all_row_blocks,
            std::min(plan_.num_tiles, multiprocessors),
            kCombineBlocksEach * multiprocessors};
  }
  float* d_sink_parts() const { return at<float>(plan_.workspace.d_sink_parts); }

 private:
  template <class Element>
  Element* at(size_t offset) const {
    return reinterpret_cast<Element*>(workspace_ + offset);
  }
  const AttentionBwdSequence* sequences() const {
    if (plan_.sequences.empty()) return nullptr;
    return reinterpret_cast<const AttentionBwdSequence*>(header_ + kAttentionBwdCounterBytes);
  }
  int32_t* dq_turn() const { return plan_.in_turn ? at<int32_t>(plan_.workspace.dq_turn) : nullptr; }

  const CUtensorMap& rows_map(AttentionBwdOperand operand, const TensorView& view, int32_t row_end, int rows) const {
    return maps_.get(operand, view.data, [&] { return make_rows_map(kOperation, view, row_end, rows); });
  }

  AttentionBwdRows rows() const {
    AttentionBwdRows rows{};
    rows.sequences = sequences();
    rows.num_sequences = static_cast<int32_t>(plan_.sequences.size());
    rows.block_m = plan_.kernel->block_m;
    rows.num_heads = static_cast<int32_t>(q_.heads);
    rows.row_blocks = plan_.row_blocks;
    rows.q_rows = q_.rows;
    return rows;
  }

  AttentionBwdPreprocessParams preprocess() const {
    AttentionBwdPreprocessParams result{};
    result.rows = rows();
    result.out = params_.out.data;
    result.d_out = params_.d_out.data;
    result.out_batch_stride = out_.batch_stride;
    result.out_row_stride = out_.row_stride;
    result.out_head_stride = out_.head_stride;
    result.d_out_batch_stride = d_out_.batch_stride;
    result.d_out_row_stride = d_out_.row_stride;
    result.d_out_head_stride = d_out_.head_stride;
    result.v_dim = static_cast<int32_t>(out_.dim);
    result.lse = params_.lse.as<const float>();
    result.sink = params_.sink.as<const float>();
    result.lse_log2 = at<float>(plan_.workspace.lse_log2);
    result.delta = at<float>(plan_.workspace.delta);
    result.dq_accum = at<float>(plan_.workspace.dq_accum);
    result.dq_turn = dq_turn();
    result.d_sink_parts = d_sink_parts();
    result.block_floats = plan_.kernel->block_floats;
    return result;
  }

  AttentionBwdKernelParams main() const {
    AttentionBwdKernelParams result{};
    result.q_row_end = q_.packed ? kPackedRowEnd : static_cast<int32_t>(q_.rows);
    result.k_row_end = q_.packed ? kPackedRowEnd : static_cast<int32_t>(k_.rows);
    using Operand = AttentionBwdOperand;
    result.tensor_map_q = rows_map(Operand::kQ, params_.q, result.q_row_end, plan_.kernel->block_m);
    result.tensor_map_d_out = rows_map(Operand::kDOut, params_.d_out, result.q_row_end, plan_.kernel->block_m);
    result.tensor_map_k = rows_map(Operand::kK, params_.k, result.k_row_end, plan_.kernel->block_n);
    result.tensor_map_v = rows_map(Operand::kV, params_.v, result.k_row_end, plan_.kernel->block_n);
    result.wrap = q_.packed ? kPackedRowEnd : 0;

    result.lse_log2 = at<const float>(plan_.workspace.lse_log2);
    result.delta = at<const float>(plan_.workspace.delta);
    result.dq_accum = at<float>(plan_.workspace.dq_accum);
    result.dq_turn = dq_turn();
    result.dk = params_.dk.data;
    result.dv = params_.dv.data;
    result.dk_parts = at<float>(plan_.workspace.dk_parts);
    result.dv_parts = at<float>(plan_.workspace.dv_parts);
    result.key_rows = k_.batches * k_.rows;

    result.counters = reinterpret_cast<int32_t*>(header_);
    result.sequences = sequences();
    result.num_sequences = static_cast<int32_t>(plan_.sequences.size());
    result.dense = plan_.dense;
    result.num_tiles = plan_.num_tiles;

    result.kv_heads = static_cast<int32_t>(k_.heads);
    result.group = static_cast<int32_t>(q_.heads / k_.heads);
    result.splits = plan_.splits;
    result.batches = static_cast<int32_t>(q_.batches);
    result.row_blocks = plan_.row_blocks;
    result.qk_dim = static_cast<int32_t>(q_.dim);
    result.v_dim = static_cast<int32_t>(out_.dim);
    result.window_left = window_bound(params_.options.window_left);
    result.window_right = window_bound(params_.options.window_right);
    // In turn, the last keys go first: with a causal mask nobody then waits for a row that another comes to later.
    result.last_keys_first = plan_.in_turn;

    const double scale = params_.options.scale, softcap = params_.options.softcap;
    result.scale = params_.options.scale;
    result.exp2_scale = static_cast<float>((softcap > 0 ? softcap : scale) * kLog2E);
    result.map_scale = softcap > 0 ? static_cast<float>(2 * scale * kLog2E / softcap) : 0;
    return result;
  }

  AttentionBwdPostprocessParams postprocess() const {
    AttentionBwdPostprocessParams result{};
    result.rows = rows();
    result.dq_accum = at<float>(plan_.workspace.dq_accum);
    result.dq = params_.dq.data;
    result.qk_dim = static_cast<int32_t>(q_.dim);
    result.scale = params_.options.scale;
    return result;
  }

  AttentionBwdDqParams dq() const {
    AttentionBwdDqParams result{};
    if (!plan_.kernel->dq_apart) return result;
    result.problem = main();
    result.dq = params_.dq.data;
    result.q_rows = q_.rows;
    result.heads_per_section = plan_.dq_heads_per_section;
    return result;
  }

  AttentionBwdCombineParams combine() const {
    // Of packed tensors, the rows past the last sequence have no parts.
    const int64_t rows = k_.packed ? params_.options.cu_seqlens_k.back() : k_.batches * k_.rows;
    const auto gradient = [&](const float* parts, const TensorView& grad) {
      const int64_t row_elements = k_.heads * grad.shape[grad.rank - 1];
      return AttentionBwdCombineParams::Gradient{parts, k_.batches * k_.rows * row_elements, grad.data,
                                                 rows * row_elements};
    };
    return {{gradient(at<const float>(plan_.workspace.dk_parts), params_.dk),
             gradient(at<const float>(plan_.workspace.dv_parts), params_.dv)},
            plan_.splits};
  }

  const ops::AttentionBackwardParams& params_;
  const AttentionBwdPlan& plan_;
  AttentionBwdMaps& maps_;
  char* const header_;
  char* const workspace_;
  const AttentionOperand q_, k_, out_, d_out_;
};

}  // namespace

void launch_attention_bwd(const ops::AttentionBackwardParams& params, const AttentionBwdPlan& plan,
                          AttentionBwdMaps& maps, void* header, void* workspace, cudaStream_t stream) {
  if (plan.num_tiles == 0 || plan.all_row_blocks == 0) {  // no keys, or no queries
    for (const TensorView* grad : {&params.dq, &params.dk, &params.dv, &params.d_sink}) clear(*grad, 0, stream);
    return;
  }
  if (params.q.rank == 3) {  // rows past the last sequence
    clear(params.dq, params.options.cu_seqlens_q.back(), stream);
    clear(params.dk, params.options.cu_seqlens_k.back(), stream);
    clear(params.dv, params.options.cu_seqlens_k.back(), stream);
  }
  const int multiprocessors = multiprocessor_count(kOperation);
  const Launcher launcher(params, plan, maps, header, workspace);
  check_cuda(plan.kernel->run(launcher.launch(multiprocessors), stream), kOperation, "launch");
  if (params.sink) {
    const AttentionOperand q(params.q);
    attention_bwd_sink_kernel<<<static_cast<int>(q.heads), kWarpThreads, 0, stream>>>(
        launcher.d_sink_parts(), params.d_sink.as<float>(), static_cast<int>(q.heads), static_cast<int>(q.batches),
        plan.row_blocks);
    check_cuda(cudaGetLastError(), kOperation, "launch of the sink's gradient");
  }
}

}  // namespace warpgrad::cuda::sm90
