#include "backends/cuda/sm90/kda/launch.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

#include "backends/cuda/sm90/check.h"
#include "backends/cuda/sm90/kda/stages.h"
#include "core/check.h"

namespace warpgrad::cuda::sm90 {
namespace {

constexpr int64_t kMaxImages = int64_t{1} << 31;

template <class Params>
void expect_kernels(const char* operation, const Params& params) {
  const DType type = params.q.dtype;
  WG_CHECK(type == DType::kBFloat16 || type == DType::kFloat16, ErrorCode::kUnsupported, operation,
           ": on cuda the dtype must be bfloat16 or float16, got ", dtype_name(type));
  const int64_t chunks = ops::num_chunks(params.options, params.q.shape[0], params.q.shape[1]);
  const int64_t sequences = std::max<int64_t>(params.q.shape[0], params.options.cu_seqlens.size());
  WG_CHECK((chunks + 4 * sequences) * params.v.shape[2] < kMaxImages && params.q.shape[1] < kMaxImages,
           ErrorCode::kUnsupported, operation, ": too many tokens for one call");
}

// Zeros from row `first_row` on in a contiguous [1, T, ...].
void clear(const char* operation, const TensorView& view, int64_t first_row, cudaStream_t stream) {
  const int64_t rows = view.shape[1];
  if (first_row == rows || view.num_elems() == 0) return;
  const int64_t row_bytes = view.num_elems() / rows * static_cast<int64_t>(dtype_bytes(view.dtype));
  check_cuda(cudaMemsetAsync(view.as<char>() + first_row * row_bytes, 0, (rows - first_row) * row_bytes, stream),
             operation, "cudaMemsetAsync");
}

int64_t ceil_div(int64_t numerator, int64_t denominator) {
  return (numerator + denominator - 1) / denominator;
}

// How many chunks the segments of the forward recurrence have, 0 where they would gain nothing. Times are in those of
// a chunk, as measured: a sequence of n takes n; segments of L take 2.2 L for the two passes, about one for each state
// that is passed on between them, and 32 for two more launches with cold starts.
int64_t chunks_of_segments(const std::vector<KdaSequence>& sequences, const KdaRecurrenceWidth& width) {
  if (width.key_panels > 2 || sequences.empty()) return 0;
  const int64_t longest = sequences.front().num_chunks;
  const auto cost = [&](int64_t length) { return 2.2 * length + ceil_div(longest, length) + 32; };
  for (int64_t length = std::max<int64_t>(1, std::lround(std::sqrt(longest / 2.))); cost(length) < longest; ++length) {
    int64_t runs = 0;
    for (const KdaSequence& sequence : sequences) runs += std::max<int64_t>(1, ceil_div(sequence.num_chunks, length));
    const int64_t transitions = runs - static_cast<int64_t>(sequences.size());
    const int64_t blocks =
        width.value_heads * std::max(runs * width.value_panels, transitions * (width.value_panels + width.key_panels));
    if (blocks <= width.multiprocessors) return length;
  }
  return 0;
}

void cut_into_segments(KdaPlan& plan, const KdaRecurrenceWidth& width) {
  const int64_t length = chunks_of_segments(plan.sequences, width);
  if (length == 0) return;
  for (const KdaSequence& sequence : plan.sequences) {
    const int count = static_cast<int>(std::max<int64_t>(1, ceil_div(sequence.num_chunks, length)));
    const int first = static_cast<int>(plan.runs.size());
    plan.segmented.push_back({sequence.initial_state, first, count});
    for (int i = 0; i < count; ++i) {
      const auto bound = [&](int segment) {
        return static_cast<int32_t>(static_cast<int64_t>(sequence.num_chunks) * segment / count);
      };
      const int32_t first_chunk = sequence.first_chunk + bound(i), num_chunks = bound(i + 1) - bound(i);
      const bool last = i + 1 == count;
      plan.runs.push_back({first_chunk, num_chunks, first + i, last ? sequence.final_state : -1});
      if (!last) plan.transitions.push_back({first_chunk, num_chunks, -1, first + i});
    }
  }
}

}  // namespace

KdaPlan plan_kda(const ops::KdaOptions& options, int64_t batches, int64_t tokens, const KdaRecurrenceWidth& width) {
  const std::vector<int32_t>& cu_seqlens = options.cu_seqlens;
  const bool packed = !cu_seqlens.empty();
  const int num_sequences = packed ? static_cast<int>(cu_seqlens.size()) - 1 : static_cast<int>(batches);
  KdaPlan plan;
  for (int n = 0; n < num_sequences; ++n) {
    const int32_t first = packed ? cu_seqlens[n] : 0;
    const int32_t end = packed ? cu_seqlens[n + 1] : static_cast<int32_t>(tokens);
    KdaSequence sequence{static_cast<int32_t>(plan.chunks.size()), 0, n, n};
    for (int32_t left = end - first; left > 0; left -= kKdaChunkRows) {
      plan.chunks.push_back({packed ? 0 : n, end - left, std::min(left, kKdaChunkRows), n});
      ++sequence.num_chunks;
    }
    plan.sequences.push_back(sequence);
  }
  std::stable_sort(plan.sequences.begin(), plan.sequences.end(),
                   [](const KdaSequence& a, const KdaSequence& b) { return a.num_chunks > b.num_chunks; });
  if (!options.batch_invariant) cut_into_segments(plan, width);
  return plan;
}

void KdaPlan::write_tables(char* host) const {
  const auto write = [&](const auto& table, size_t offset) {
    const auto bytes = std::as_bytes(std::span(table));
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<std::byte*>(host) + offset);
  };
  write(chunks, 0);
  write(sequences, sequences_offset());
  write(runs, runs_offset());
  write(transitions, transitions_offset());
  write(segmented, segmented_offset());
}

void expect_kda_forward_kernels(const ops::KdaForwardParams& params) {
  WG_CHECK(!params.chunk_states || !params.saved || kda_panels(params.q.shape[3]) <= 2, ErrorCode::kUnsupported,
           "kdaForward: on cuda outputChunkStates and saveIntermediates do not go together with more than 128 keys");
  expect_kernels("kdaForward", params);
}
void expect_kda_backward_kernels(const ops::KdaBackwardParams& params) {
  expect_kernels("kdaBackward", params);
}

KdaImageBytes::KdaImageBytes(int64_t chunks, int64_t value_heads, int64_t key_dim, int64_t value_dim) {
  const int key_panels = kda_panels(key_dim), value_panels = kda_panels(value_dim);
  const size_t images = static_cast<size_t>(chunks) * value_heads;
  records = images * KdaRecordLayout{key_panels}.bytes();
  states = images * kda_state_bytes(key_panels, value_panels);
  e = images * kda_e_bytes(value_panels);
}

void launch_kda_forward(const KdaProblem& problem, const ops::KdaForwardParams& params, char* records,
                        char* segment_states, cudaStream_t stream) {
  const std::vector<int32_t>& cu_seqlens = problem.options->cu_seqlens;
  if (!cu_seqlens.empty()) clear("kdaForward", params.out, cu_seqlens.back(), stream);
  char *state_images = nullptr, *e_images = nullptr;
  if (params.saved) {
    const KdaSavedImages saved(params.saved.as<char>(), KdaImageBytes(problem));
    records = saved.records;
    state_images = saved.states;
    e_images = saved.e;
  }
  launch_kda_prepare(problem, records, stream);
  launch_kda_recurrence(problem, records, params.initial_state, params.out, params.final_state, params.chunk_states,
                        state_images, e_images, reinterpret_cast<float*>(segment_states), stream);
}

void launch_kda_backward(const KdaProblem& problem, const ops::KdaBackwardParams& params,
                         const KdaBackwardMemory& memory, cudaStream_t stream) {
  const std::vector<int32_t>& cu_seqlens = problem.options->cu_seqlens;
  if (!cu_seqlens.empty()) {
    for (const TensorView* gradient : {&params.dq, &params.dk, &params.dv, &params.dg, &params.dbeta}) {
      clear("kdaBackward", *gradient, cu_seqlens.back(), stream);
    }
  }
  const KdaSavedImages saved(memory.saved, KdaImageBytes(problem));
  if (!memory.saved_is_filled) {
    launch_kda_prepare(problem, saved.records, stream);
    launch_kda_recurrence(problem, saved.records, params.initial_state, {}, {}, {}, saved.states, saved.e,
                          reinterpret_cast<float*>(memory.segment_states), stream);
  }
  launch_kda_reverse(problem, saved.records, params.d_out, params.d_final_state, params.d_initial_state, params.dv,
                     memory.d_states, stream);

  KdaGradients gradients{params.dq, params.dk, params.dg, params.dbeta, memory.d_a_log_parts, memory.d_dt_bias_parts};
  if (problem.group() > 1) {
    for (const auto& [view, parts] : {std::pair{&gradients.dq, memory.dq_parts}, {&gradients.dk, memory.dk_parts}}) {
      view->data = parts;
      view->shape[2] = problem.value_heads;
      view->set_contiguous_strides();
    }
  }
  const KdaChunkImages images{saved.records, saved.states, saved.e, memory.d_states};
  launch_kda_gradients(problem, images, params.d_out, params.dv, gradients, memory.gradients_scratch, stream);
  launch_kda_sums(problem, gradients, params.dq, params.dk, params.d_a_log, params.d_dt_bias, stream);
}

}  // namespace warpgrad::cuda::sm90
