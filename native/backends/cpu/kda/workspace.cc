#include "backends/cpu/kda/workspace.h"

#include <algorithm>
#include <queue>

#include "core/check.h"

namespace warpgrad::cpu {

namespace isa_plain {
extern const kda::Kernels kda_kernels;
}
#if defined(__x86_64__)
namespace isa_avx2 {
extern const kda::Kernels kda_kernels;
}
namespace isa_avx512 {
extern const kda::Kernels kda_kernels;
}
namespace isa_avx512bf16 {
extern const kda::Kernels kda_kernels;
}
#endif

namespace kda {

const Kernels& kernels_for(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::kAvx2: return isa_avx2::kda_kernels;
    case Isa::kAvx512: return isa_avx512::kda_kernels;
    case Isa::kAvx512Bf16:
    case Isa::kAvx512Amx: return isa_avx512bf16::kda_kernels;
#endif
    default: return isa_plain::kda_kernels;
  }
}

Chunks chunks_of(const ops::KdaOptions& options, int64_t batch, int64_t tokens, bool wants_states) {
  Chunks result;
  if (!wants_states && ops::num_chunks(options, batch, tokens) == 0) return result;
  const bool packed = !options.cu_seqlens.empty();
  const int64_t num_sequences = packed ? static_cast<int64_t>(options.cu_seqlens.size()) - 1 : batch;
  for (int64_t n = 0; n < num_sequences; ++n) {
    const int64_t first = packed ? options.cu_seqlens[n] : 0;
    const int64_t last = packed ? options.cu_seqlens[n + 1] : tokens;
    const int64_t first_chunk = static_cast<int64_t>(result.chunks.size());
    for (int64_t token = first; token < last; token += kChunk) {
      const int rows = static_cast<int>(std::min<int64_t>(kChunk, last - token));
      result.chunks.push_back({packed ? 0 : n, token, n, rows});
    }
    const int64_t num_chunks = static_cast<int64_t>(result.chunks.size()) - first_chunk;
    result.sequences.push_back({first_chunk, num_chunks});
    result.longest = std::max(result.longest, num_chunks);
  }
  return result;
}

Operand operand_of(const TensorView& view) {
  Operand operand;
  operand.data = view.data;
  operand.dtype = view.dtype;
  for (int i = 0; i < 3 && i < view.rank; ++i) operand.strides[i] = view.strides[i];
  return operand;
}

Problem problem_of(const ops::KdaOptions& options, const TensorView& q, const TensorView& k, const TensorView& v,
                   const TensorView& g, const TensorView& beta, const TensorView& a_log, const TensorView& dt_bias,
                   const TensorView& initial_state) {
  Problem problem{};
  problem.H = q.shape[2];
  problem.HV = v.shape[2];
  problem.K = q.shape[3];
  problem.V = v.shape[3];
  problem.group = problem.H > 0 ? static_cast<int>(problem.HV / problem.H) : 1;
  problem.Kp = padded(problem.K);
  problem.Vp = padded(problem.V);
  problem.k_stride = problem.Kp + kPad;
  problem.v_stride = problem.Vp + kPad;
  problem.num_column_blocks = (problem.Vp + kColumns - 1) / kColumns;
  problem.scale = options.scale;
  problem.lower_bound = options.lower_bound;
  problem.qk_l2_norm = options.qk_l2_norm;
  problem.beta_logits = options.beta_logits;
  problem.allow_neg_eigval = options.allow_neg_eigval;
  problem.state_vk = options.state_vk;
  problem.gate = options.gate;
  problem.q = operand_of(q);
  problem.k = operand_of(k);
  problem.v = operand_of(v);
  problem.g = operand_of(g);
  problem.beta = operand_of(beta);
  problem.a_log = a_log.as<const float>();
  problem.a_log_stride = a_log.strides[0];
  problem.dt_bias = dt_bias.as<const float>();
  problem.dt_bias_stride = dt_bias.strides[0];
  problem.initial_state = operand_of(initial_state);
  return problem;
}

namespace {
constexpr int64_t kScoreElems = int64_t(kChunk) * kChunkStride;

int64_t prepare_scratch_elems(const Problem& problem) {
  const int64_t scores = 3 * kBlock * int64_t(problem.k_stride) + 2 * kBlock * kChunkStride;
  return std::max(scores, kScoreElems + kBlock * kChunkStride);
}
}  // namespace

int64_t record_elems(const Problem& problem) {
  return 2 * qk_rows_elems(problem) + int64_t(problem.Kp) * kChunkStride + 2 * kScoreElems + problem.Kp + kChunk;
}
int64_t rest_elems(const Problem& problem) {
  return kScoreElems + 6 * qk_rows_elems(problem) + 2 * kNumBlocks * int64_t(problem.Kp) + kBlock +
         prepare_scratch_elems(problem);
}
int64_t state_elems(const Problem& problem) {
  return int64_t(problem.num_column_blocks) * problem.Kp * kColumnStride;
}
int64_t rows_elems(const Problem& problem) {
  return int64_t(kChunk) * problem.v_stride;
}
int64_t qk_rows_elems(const Problem& problem) {
  return int64_t(kChunk) * problem.k_stride;
}
int64_t forward_scratch_elems(const Problem&) {
  return 3 * int64_t(kChunk) * kColumnStride;
}
int64_t gradients_scratch_elems(const Problem& problem) {
  const int64_t Vp = problem.Vp, qk_rows = qk_rows_elems(problem);
  const int64_t shared = std::max(Vp * problem.k_stride, 2 * qk_rows) + std::max(rows_elems(problem), qk_rows) +
                         std::max(Vp * kChunkStride, qk_rows);
  return shared + 4 * qk_rows + kNumBlocks * 2 * kBlock * (kChunkStride + kBlock) + 2 * problem.Kp + 2 * kChunk;
}

Prepared prepared_views(const Problem& problem, float* record, float* rest, Prefetch* ahead) {
  const auto take = [](float*& memory, int64_t count) {
    float* part = memory;
    memory += count;
    return part;
  };
  const int64_t qk_rows = qk_rows_elems(problem);
  Prepared p{};
  p.Kd = take(record, qk_rows);
  p.Qd = take(record, qk_rows);
  p.KrT = take(record, int64_t(problem.Kp) * kChunkStride);
  p.Aqk = take(record, kScoreElems);
  p.T = take(record, kScoreElems);
  p.exp_GC = take(record, problem.Kp);
  p.beta = take(record, kChunk);
  p.N = take(rest, kScoreElems);
  p.q = take(rest, qk_rows);
  p.k = take(rest, qk_rows);
  p.a = take(rest, qk_rows);
  p.in = take(rest, qk_rows);
  p.inv_in = take(rest, qk_rows);
  p.out = take(rest, qk_rows);
  p.block = take(rest, int64_t(kNumBlocks) * problem.Kp);
  p.before = take(rest, int64_t(kNumBlocks) * problem.Kp);
  p.first_slow = reinterpret_cast<int*>(take(rest, kBlock));
  p.scratch = rest;
  p.ahead = ahead;
  return p;
}

namespace {
void add_rows(Prefetch& ahead, const Operand& operand, const Chunk& chunk, int64_t head, int64_t columns, bool write) {
  if (!operand.data) return;
  const int64_t bytes = dtype_bytes(operand.dtype);
  const int64_t first = chunk.batch * operand.strides[0] + chunk.token * operand.strides[1] + head * operand.strides[2];
  ahead.tensors[ahead.num_tensors++] = {static_cast<const char*>(operand.data) + first * bytes,
                                        operand.strides[1] * bytes, static_cast<int>(columns * bytes), chunk.rows,
                                        write};
}
void add_matrix(Prefetch& ahead, const float* data, int64_t rows, int64_t columns) {
  const int row_bytes = static_cast<int>(columns * sizeof(float));
  ahead.tensors[ahead.num_tensors++] = {reinterpret_cast<const char*>(data), row_bytes, row_bytes,
                                        static_cast<int>(rows), false};
}
}  // namespace

Prefetch forward_prefetch(const Problem& problem, const Chunk& chunk, int64_t head) {
  Prefetch ahead;
  add_rows(ahead, problem.q, chunk, head / problem.group, problem.K, false);
  add_rows(ahead, problem.k, chunk, head / problem.group, problem.K, false);
  add_rows(ahead, problem.g, chunk, head, problem.K, false);
  add_rows(ahead, problem.v, chunk, head, problem.V, false);
  add_rows(ahead, problem.out, chunk, head, problem.V, true);
  return ahead;
}

Prefetch backward_prefetch(const Problem& problem, const Chunk& chunk, int64_t head, const Kept& kept) {
  Prefetch ahead;
  add_rows(ahead, problem.q, chunk, head / problem.group, problem.K, false);
  add_rows(ahead, problem.k, chunk, head / problem.group, problem.K, false);
  add_rows(ahead, problem.g, chunk, head, problem.K, false);
  add_matrix(ahead, kept.T, chunk.rows, kChunk);
  add_rows(ahead, problem.d_out, chunk, head, problem.V, false);
  add_matrix(ahead, kept.E, chunk.rows, problem.V);
  add_matrix(ahead, kept.S, problem.K, problem.V);
  add_rows(ahead, problem.dv, chunk, head, problem.V, true);
  add_rows(ahead, problem.dg, chunk, head, problem.K, true);
  add_rows(ahead, problem.dq, chunk, head / problem.group, problem.K, true);
  add_rows(ahead, problem.dk, chunk, head / problem.group, problem.K, true);
  return ahead;
}

Kept KeptTensors::at(const Problem& problem, int64_t chunk, int64_t head) const {
  Kept kept;
  if (!S) return kept;
  const int64_t index = (chunk - first_chunk) * num_heads + head - first_head;
  kept.S = S + index * problem.K * problem.V;
  kept.E = E + index * kChunk * problem.V;
  kept.T = T + index * kChunk * kChunk;
  return kept;
}

int64_t kept_elems(int64_t K, int64_t V) {
  return K * V + kChunk * V + int64_t(kChunk) * kChunk;
}

KeptTensors kept_in(const Problem& problem, float* memory, int64_t num_chunks, int64_t first_chunk, int64_t first_head,
                    int64_t num_heads) {
  const int64_t count = num_chunks * num_heads;
  KeptTensors kept;
  kept.S = memory;
  kept.E = kept.S + count * problem.K * problem.V;
  kept.T = kept.E + count * kChunk * problem.V;
  kept.first_chunk = first_chunk;
  kept.first_head = first_head;
  kept.num_heads = num_heads;
  return kept;
}

KeptTensors kept_in(const TensorView& saved, const Problem& problem, int64_t num_chunks) {
  if (!saved) return {};
  return kept_in(problem, saved.as<float>(), num_chunks, 0, 0, problem.HV);
}

bool whole_sequences_balance(const Chunks& chunks, int64_t tasks, int num_threads) {
  if (num_threads == 1) return true;
  const int64_t total = static_cast<int64_t>(chunks.chunks.size()) * tasks;
  // The last task to start ends at most `longest` after all threads were busy.
  if (total >= 8 * num_threads * chunks.longest) return true;
  std::priority_queue<int64_t, std::vector<int64_t>, std::greater<int64_t>> busy_until;
  for (int i = 0; i < num_threads; ++i) busy_until.push(0);
  int64_t end = 0;
  for (const Sequence& sequence : chunks.sequences) {
    for (int64_t i = 0; i < tasks; ++i) {
      const int64_t until = busy_until.top() + sequence.num_chunks;
      busy_until.pop();
      busy_until.push(until);
      end = std::max(end, until);
    }
  }
  return 5 * end * num_threads <= 6 * total;
}

void run_tasks(ExecContext& context, bool small, int64_t num_tasks, ThreadPool::Task body) {
  if (!small) {
    context.parallel_for(num_tasks, body);
    return;
  }
  const auto all = [&](int64_t, int worker) {
    for (int64_t task = 0; task < num_tasks; ++task) body(task, worker);
  };
  context.parallel_for(1, all);
}

bool is_small(const Problem& problem, int64_t num_chunks) {
  return num_chunks * problem.HV * (problem.K + kBlock) * (problem.V + kBlock) < 32 * 1024;
}

}  // namespace kda

int64_t kda_saved_elems(const ops::KdaSavedDims& dims) {
  return dims.chunks * dims.value_heads * kda::kept_elems(dims.key_dim, dims.value_dim);
}

}  // namespace warpgrad::cpu
