#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backends/cuda/sm90/attention_bwd/params.h"
#include "backends/cuda/sm90/tile/tensor_map_cache.h"
#include "ops/attention.h"

namespace warpgrad::cuda::sm90 {

struct AttentionBwdKernel;

// What a launch is to do, from shapes, options and sequence lengths alone.
struct AttentionBwdPlan {
  const AttentionBwdKernel* kernel;
  int num_tiles;
  int dq_heads_per_section;
  bool in_turn;        // key blocks take turns at adding to dQ
  int splits;          // of the query heads of a group, worked on by different blocks
  int row_blocks;      // of one head
  int all_row_blocks;  // of all heads and batches
  AttentionBwdSequence dense;
  std::vector<AttentionBwdSequence> sequences;  // packed, most work first

  // Device memory that launches leave as it was, so that the plan can run again (in a graph, say): its contents,
  // written by `write_header`, are uploaded by the caller before the first launch. One launch at a time.
  size_t header_bytes() const;
  void write_header(void* host) const;

  // Offsets into the device memory that one launch needs besides.
  struct Workspace {
    size_t lse_log2, delta, dq_accum, dq_turn, dk_parts, dv_parts, d_sink_parts, bytes;
  };
  Workspace workspace;
};

// The tensor maps of a plan's last launch.
enum class AttentionBwdOperand { kQ, kK, kV, kDOut, kCount };
using AttentionBwdMaps = TensorMapCache<AttentionBwdOperand>;

// `params` has passed ops::check. Throws Error(kUnsupported) for what no kernel here can do.
AttentionBwdPlan plan_attention_bwd(const ops::AttentionBackwardParams& params);

// Enqueues the backward on `stream` of the current device. Device pointers in `params`, of tensors that the copy engine
// can read; `header` and `workspace` as above.
void launch_attention_bwd(const ops::AttentionBackwardParams& params, const AttentionBwdPlan& plan,
                          AttentionBwdMaps& maps, void* header, void* workspace, cudaStream_t stream);

}  // namespace warpgrad::cuda::sm90
