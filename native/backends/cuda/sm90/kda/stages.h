#pragma once

#include <cuda_runtime_api.h>

#include "backends/cuda/sm90/kda/problem.h"

// The kernels of KDA as steps: each enqueues its work on the stream. Memory named `..._images` holds one image for each
// (chunk, value head), see layout.h; outputs are contiguous and written for all tokens of the sequences, the others are
// the caller's to clear.
namespace warpgrad::cuda::sm90 {

// Gates, norms, Kd, Kr, T, Qd, Aqk: problem -> records. v is not read.
void launch_kda_prepare(const KdaProblem& problem, void* records, cudaStream_t stream);

// o, the final state and the states before each chunk, each unless absent; S and E of each chunk to the images, each
// unless null. `segment_states` is scratch of problem.segment_state_bytes().
void launch_kda_recurrence(const KdaProblem& problem, const void* records, const TensorView& initial_state,
                           const TensorView& out, const TensorView& final_state, const TensorView& chunk_states,
                           void* state_images, void* e_images, float* segment_states, cudaStream_t stream);

// From the end states that segments reach from zero, and their transitions, to their initial states, which take the
// place of the former.
void launch_kda_combine(const KdaProblem& problem, const TensorView& initial_state, float* segment_states,
                        cudaStream_t stream);

// The reverse recurrence: dv, dS of each chunk to the images, and the gradient of the initial state unless absent.
// `d_out` is bfloat16, `dv` contiguous bfloat16 [B, T, value heads, V].
void launch_kda_reverse(const KdaProblem& problem, const void* records, const TensorView& d_out,
                        const TensorView& d_final_state, const TensorView& d_initial_state, const TensorView& dv,
                        void* d_state_images, cudaStream_t stream);

struct KdaChunkImages {
  const void *records, *states, *e, *d_states;
};

struct KdaGradients {
  TensorView dq, dk;     // bfloat16 [B, T, value heads, K]: before the sum over the value heads of a group
  TensorView dg, dbeta;  // of the dtypes of g and beta
  float* d_a_log_parts;  // [key part][chunk][value head], null when not wanted; their sums are taken by launch_kda_sums
  float* d_dt_bias_parts;  // [chunk][value head][K]
};

// What the gradients need as scratch: nothing unless K or V is above 128.
size_t kda_gradients_scratch_bytes(const KdaProblem& problem);

// All gradients but dv of one chunk and head from its images and dv.
void launch_kda_gradients(const KdaProblem& problem, const KdaChunkImages& images, const TensorView& d_out,
                          const TensorView& dv, const KdaGradients& gradients, void* scratch, cudaStream_t stream);

// Sums in a fixed order: `dq` and `dk` of a group's value heads (when group() > 1), and the parts over the chunks.
void launch_kda_sums(const KdaProblem& problem, const KdaGradients& parts, const TensorView& dq, const TensorView& dk,
                     const TensorView& d_a_log, const TensorView& d_dt_bias, cudaStream_t stream);

}  // namespace warpgrad::cuda::sm90
