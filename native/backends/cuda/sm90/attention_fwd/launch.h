#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backends/cuda/sm90/attention_fwd/params.h"
#include "backends/cuda/sm90/tile/tensor_map_cache.h"
#include "ops/attention.h"

namespace warpgrad::cuda::sm90 {

struct AttentionFwdKernel;

// What a launch is to do, from shapes, options and sequence lengths alone.
struct AttentionFwdPlan {
  const AttentionFwdKernel* kernel;
  int pack;               // heads side by side in the rows of a tile
  int warpgroup_queries;  // 64 / pack
  int num_tiles;          // 0: nothing to compute
  int k_row_end;          // bound of the row coordinate of keys
  int64_t used_q_rows;    // packed: rows up to the last entry of cu_seqlens_q
  AttentionFwdSequence dense;
  std::vector<AttentionFwdSequence> sequences;  // packed: those with rows, most work first

  // Device memory for one launch at a time. Its contents, written by `write_workspace`, are uploaded by the caller
  // before the first launch; launches leave them as they were, so the same plan can run again (in a graph, say).
  size_t workspace_bytes() const;
  void write_workspace(void* host) const;
};

// The tensor maps of a plan's last launch.
enum class AttentionFwdOperand { kQ, kK, kV, kOut, kCount };
using AttentionFwdMaps = TensorMapCache<AttentionFwdOperand>;

// `params` has passed ops::check. Throws Error(kUnsupported) for what no kernel here can do.
AttentionFwdPlan plan_attention_fwd(const ops::AttentionForwardParams& params);

// Enqueues the forward on `stream` of the current device. Device pointers in `params`; `maps` of this plan; `workspace`
// as above.
void launch_attention_fwd(const ops::AttentionForwardParams& params, const AttentionFwdPlan& plan,
                          AttentionFwdMaps& maps, void* workspace, cudaStream_t stream);

}  // namespace warpgrad::cuda::sm90
