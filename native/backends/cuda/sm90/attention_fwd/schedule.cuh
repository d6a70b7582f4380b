#pragma once

// All arithmetic on sequences, heads and bands: turns the number of a tile into what has to be done for it.

#include <cstdint>

#include "backends/cuda/sm90/attention_fwd/params.h"
#include "backends/cuda/sm90/limits.h"
#include "backends/cuda/sm90/tile/attention_tile.cuh"

namespace warpgrad::cuda::sm90 {

// The work of one block: `kConsumerWarpgroups * 64` rows of one head group against the key tiles n_first..n_last. The
// tiles n_full_first..n_full_last are visible to every row; only the others need masks.
struct AttentionFwdWork {
  int64_t out_row;    // of the sequence's first query in out, counted in [H, Dv] rows
  int64_t lse_start;  // of the sequence's first query of head 0 in lse
  int32_t q_first;    // first query of the tile
  int32_t q_len, k_len;
  int32_t head_first;            // first head of the group
  int32_t head_group;            // tensor map coordinate
  int32_t q_row_shift, q_batch;  // tensor map coordinates of the sequence in q and out
  int32_t k_row_shift, k_batch;  // in k and v
  int32_t kv_head;
  int32_t key_shift_low, key_shift_high;  // query i sees the keys i + low .. i + high
  int32_t n_first, n_last;                // n_last < 0: no more work
  int32_t n_full_first, n_full_last;
};

__device__ __forceinline__ void set_no_work(AttentionFwdWork& work) {
  work.n_last = -1;
}

// NOTE: `work` lies in shared memory and takes each value as it comes; together they would not fit the registers of the
// producer.
template <class Config>
__device__ __forceinline__ void plan_tile(const AttentionFwdKernelParams& params, const AttentionFwdSequence& sequence,
                                          int tile, AttentionFwdWork& work) {
  const bool packed = params.sequences != nullptr;
  const auto [block, head_group, batch] = place_of_tile(tile - sequence.first_tile, sequence.row_blocks,
                                                        sequence.heads_per_section, params.head_groups, params.batches);

  work.head_group = head_group;
  work.head_first = work.head_group * params.pack;
  work.kv_head = work.head_group / params.groups_per_kv;
  work.q_len = sequence.q_len;
  work.k_len = sequence.k_len;
  const int block_queries = Config::kConsumerWarpgroups * params.warpgroup_queries;
  work.q_first = (sequence.row_blocks - 1 - block) * block_queries;
  work.q_row_shift = packed ? sequence.q_start : 0;
  work.k_row_shift = params.k_row_end - sequence.k_len;
  work.q_batch = batch;
  work.k_batch = packed ? sequence.k_start + sequence.k_len : batch;
  work.out_row = packed ? sequence.q_start : static_cast<int64_t>(batch) * sequence.q_len;
  work.lse_start = packed ? sequence.q_start : static_cast<int64_t>(batch) * params.num_heads * sequence.q_len;

  set_band(params, sequence, work);
  find_key_tiles<Config::kBlockN>(work, min(work.q_first + block_queries, sequence.q_len) - 1);
}

}  // namespace warpgrad::cuda::sm90
