#pragma once

// All arithmetic on sequences, heads and bands: turns the number of a tile into what has to be done for it.

#include <cstdint>

#include "backends/cuda/sm90/attention_bwd/params.h"
#include "backends/cuda/sm90/limits.h"
#include "backends/cuda/sm90/tile/attention_tile.cuh"

namespace warpgrad::cuda::sm90 {

// The work of one block: kBlockN keys of one kv head against the row blocks m_first..m_last of some heads of its group.
struct AttentionBwdWork {
  int64_t key_row;  // of the block's first key in dk and dv, counted in [Hkv, D] rows
  int32_t n;        // key block; < 0: no more work
  int32_t kv_head, split;
  int32_t first_head, num_heads;  // query heads
  int32_t q_len, k_len;
  int32_t q_row_shift, q_batch;           // tensor map coordinates of the sequence in q and dO
  int32_t k_row_shift, k_batch;           // in k and v
  int32_t row_block;                      // number of the first head's row block 0
  int32_t key_shift_low, key_shift_high;  // query i sees the keys i + low .. i + high
  int32_t m_first, m_last;                // m_last < m_first: no query sees these keys
  int32_t m_full_first, m_full_end;       // of the row blocks that see all keys; the others need masks
  int32_t last_row_block;                 // number of the last head's row block m_last
  int32_t head_step;                      // from past a head's last row block to the next head's first
};

__device__ __forceinline__ void set_no_work(AttentionBwdWork& work) {
  work.n = -1;
}

// The row blocks that see a key of the block at `first_key`, and those of them that see all of it.
template <int kBlockM, int kBlockN>
__device__ __forceinline__ void find_row_blocks(AttentionBwdWork& work, int first_key) {
  const int last_key = min(first_key + kBlockN, work.k_len) - 1;
  const int first_query = max(0, first_key - work.key_shift_high);
  const int last_query = min(work.q_len - 1, last_key - work.key_shift_low);
  if (first_query > last_query) {
    work.m_first = work.m_full_first = work.m_full_end = 0;
    work.m_last = -1;
    return;
  }
  const int m_first = first_query / kBlockM, m_last = last_query / kBlockM;
  const int common_first = max(0, first_key + kBlockN - 1 - work.key_shift_high);
  const int common_end = max(0, first_key - work.key_shift_low + 1);
  const int full_first = max(m_first, (common_first + kBlockM - 1) / kBlockM);
  const int full_end = min(m_last + 1, common_end / kBlockM);
  const bool any_full = first_key + kBlockN <= work.k_len && full_first < full_end;
  work.m_first = m_first;
  work.m_last = m_last;
  work.m_full_first = any_full ? full_first : m_last + 1;
  work.m_full_end = any_full ? full_end : m_last + 1;
}

// NOTE: `work` lies in shared memory and takes each value as it comes; together they would not fit the registers of the
// producer.
template <class Config>
__device__ __forceinline__ void plan_tile(const AttentionBwdKernelParams& params, const AttentionBwdSequence& sequence,
                                          int tile, AttentionBwdWork& work) {
  const bool packed = params.sequences != nullptr;
  const auto [block, head_split, batch] =
      place_of_tile(tile - sequence.first_tile, sequence.key_blocks, sequence.heads_per_section,
                    params.kv_heads * params.splits, params.batches);

  work.kv_head = head_split / params.splits;
  work.split = head_split - work.kv_head * params.splits;
  const int split_heads = (params.group + params.splits - 1) / params.splits;
  const int first_of_group = work.split * split_heads;
  work.first_head = work.kv_head * params.group + first_of_group;
  work.num_heads = min(split_heads, params.group - first_of_group);
  work.q_len = sequence.q_len;
  work.k_len = sequence.k_len;
  work.q_row_shift = params.q_row_end - sequence.q_len;
  work.k_row_shift = params.k_row_end - sequence.k_len;
  work.q_batch = packed ? sequence.q_start + sequence.q_len : batch;
  work.k_batch = packed ? sequence.k_start + sequence.k_len : batch;
  work.row_block =
      (batch * params.kv_heads * params.group + work.first_head) * params.row_blocks + sequence.first_row_block;

  const int n = params.last_keys_first ? sequence.key_blocks - 1 - block : block;
  const int first_key = n * Config::kBlockN;
  work.n = n;
  work.key_row = (packed ? sequence.k_start : static_cast<int64_t>(batch) * sequence.k_len) + first_key;
  set_band(params, sequence, work);
  find_row_blocks<Config::kBlockM, Config::kBlockN>(work, first_key);
  work.last_row_block = work.row_block + (work.num_heads - 1) * params.row_blocks + work.m_last;
  work.head_step = params.row_blocks - (work.m_last - work.m_first + 1);
}

}  // namespace warpgrad::cuda::sm90
