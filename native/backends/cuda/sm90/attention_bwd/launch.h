#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backends/cuda/sm90/attention_bwd/params.h"
#include "ops/attention.h"

namespace warpgrad::cuda::sm90 {

struct AttentionBwdKernel;

// What a launch is to do, from shapes, options and sequence lengths alone.
struct AttentionBwdPlan {
  const AttentionBwdKernel* kernel;
  int num_tiles;
  int row_blocks;      // of one head
  int all_row_blocks;  // of all heads and batches
  AttentionBwdSequence dense;
  std::vector<AttentionBwdSequence> sequences;  // packed, most work first

  // Offsets into the device memory of a launch. It begins with a header, written by `write_header` and uploaded by the
  // caller before the first launch; launches leave that as it was, so the same plan can run again (in a graph, say).
  struct Workspace {
    size_t sequences, header_bytes, lse_log2, delta, dq_accum, dq_turn, d_sink_parts, bytes;
  };
  Workspace workspace;
  void write_header(void* host) const;
};

// `params` has passed ops::check. Throws Error(kUnsupported) for what no kernel here can do.
AttentionBwdPlan plan_attention_bwd(const ops::AttentionBackwardParams& params);

// Enqueues the backward on `stream` of the current device. Device pointers in `params`; `workspace` as above. q, k, v,
// d_out and out are such that the copy engine can read them.
void launch_attention_bwd(const ops::AttentionBackwardParams& params, const AttentionBwdPlan& plan, void* workspace,
                          cudaStream_t stream);

}  // namespace warpgrad::cuda::sm90
