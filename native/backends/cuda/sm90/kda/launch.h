#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

#include "backends/cuda/sm90/kda/problem.h"
#include "core/tensor_view.h"
#include "ops/kda.h"

// The forward and the backward of KDA: what they need, and their stages in order.
namespace warpgrad::cuda::sm90 {

// The chunks of a layout of sequences, and the segments in which the forward recurrence goes through them, if any;
// device memory for them is filled by `write_tables` once.
struct KdaPlan {
  std::vector<KdaChunk> chunks;
  std::vector<KdaSequence> sequences, runs, transitions;  // the last two: see KdaSegments
  std::vector<KdaSegmented> segmented;

  size_t table_bytes() const { return segmented_offset() + segmented.size() * sizeof(KdaSegmented); }
  size_t sequences_offset() const { return chunks.size() * sizeof(KdaChunk); }
  size_t runs_offset() const { return sequences_offset() + sequences.size() * sizeof(KdaSequence); }
  size_t transitions_offset() const { return runs_offset() + runs.size() * sizeof(KdaSequence); }
  size_t segmented_offset() const { return transitions_offset() + transitions.size() * sizeof(KdaSequence); }
  void write_tables(char* host) const;
};

// What a recurrence would have blocks for.
struct KdaRecurrenceWidth {
  int64_t value_heads;
  int key_panels, value_panels;
  int multiprocessors;
};

KdaPlan plan_kda(const ops::KdaOptions& options, int64_t batches, int64_t tokens, const KdaRecurrenceWidth& width);

// Throws Error(kUnsupported) for what no kernel here can do.
void expect_kda_forward_kernels(const ops::KdaForwardParams& params);
void expect_kda_backward_kernels(const ops::KdaBackwardParams& params);

constexpr int kda_panels(int64_t dim) {
  return dim <= 64 ? 1 : dim <= 128 ? 2 : 4;
}

// Params: of the forward or the backward, with operands that the kernels can read. `tables` as above, on the device.
template <class Params>
KdaProblem kda_problem(const Params& params, const KdaPlan& plan, const char* tables) {
  const int64_t key_dim = params.q.shape[3], value_dim = params.v.shape[3];
  return {&params.options,
          params.q,
          params.k,
          params.v,
          params.g,
          params.beta,
          params.a_log,
          params.dt_bias,
          params.q.shape[0],
          params.q.shape[1],
          params.q.shape[2],
          params.v.shape[2],
          key_dim,
          value_dim,
          kda_panels(key_dim),
          kda_panels(value_dim),
          static_cast<int>(plan.chunks.size()),
          static_cast<int>(plan.sequences.size()),
          plan.sequences.empty() ? 0 : plan.sequences.front().num_chunks,
          reinterpret_cast<const KdaChunk*>(tables),
          reinterpret_cast<const KdaSequence*>(tables + plan.sequences_offset()),
          {static_cast<int>(plan.runs.size()), static_cast<int>(plan.transitions.size()),
           reinterpret_cast<const KdaSequence*>(tables + plan.runs_offset()),
           reinterpret_cast<const KdaSequence*>(tables + plan.transitions_offset()),
           reinterpret_cast<const KdaSegmented*>(tables + plan.segmented_offset())}};
}

// Bytes of the images of all chunks and heads.
struct KdaImageBytes {
  size_t records, states, e;

  KdaImageBytes(int64_t chunks, int64_t value_heads, int64_t key_dim, int64_t value_dim);
  explicit KdaImageBytes(const KdaProblem& problem)
      : KdaImageBytes(problem.num_chunks, problem.value_heads, problem.key_dim, problem.value_dim) {}
  size_t saved() const { return records + states + e; }  // what training keeps: KdaSavedImages
};

// All that the backward has from the forward, in one piece of memory.
struct KdaSavedImages {
  char *records, *states, *e;

  KdaSavedImages(char* data, const KdaImageBytes& bytes)
      : records(data), states(data + bytes.records), e(states + bytes.states) {}
};

// `params` are those of `problem`. `records` is scratch unless params.saved has room for them; `segment_states` is.
void launch_kda_forward(const KdaProblem& problem, const ops::KdaForwardParams& params, char* records,
                        char* segment_states, cudaStream_t stream);

// Scratch of the backward.
struct KdaBackwardMemory {
  char* d_states;  // images
  char* saved;     // what the forward kept, or room for it
  bool saved_is_filled;
  char* segment_states;       // when it is not
  char* gradients_scratch;    // of kda_gradients_scratch_bytes
  char *dq_parts, *dk_parts;  // bfloat16 [B, T, value heads, K], when heads are grouped
  float* d_a_log_parts;       // [key part][chunk][value head], when wanted
  float* d_dt_bias_parts;     // [chunk][value head][K], when wanted
};

// `params` are those of `problem`, their outputs in the dtypes that the kernels write.
void launch_kda_backward(const KdaProblem& problem, const ops::KdaBackwardParams& params,
                         const KdaBackwardMemory& memory, cudaStream_t stream);

}  // namespace warpgrad::cuda::sm90
