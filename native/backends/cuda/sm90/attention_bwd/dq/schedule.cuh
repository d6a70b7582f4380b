#pragma once

#include <cstdint>

#include "backends/cuda/sm90/attention_bwd/dq/params.h"
#include "backends/cuda/sm90/attention_bwd/rows.cuh"
#include "backends/cuda/sm90/limits.h"
#include "backends/cuda/sm90/tile/attention_tile.cuh"

namespace warpgrad::cuda::sm90 {

// Two row blocks of one query head against the key tiles n_first..n_last; only n_full_first..n_full_last are visible to
// every row.
struct AttentionBwdDqWork {
  int64_t dq_row;     // of the sequence's first query in dq, counted in [H, D] rows
  int32_t row_block;  // number of the first of the two
  int32_t q_head, kv_head;
  int32_t q_first, q_len, k_len;
  int32_t q_row_shift, q_batch;  // tensor map coordinates of the sequence in q and dO
  int32_t k_row_shift, k_batch;  // in k and v
  int32_t key_shift_low, key_shift_high;
  int32_t n_first, n_last, n_full_first, n_full_last;
};

// Tiles are numbered like those of the forward, a sequence's last rows first.
template <class Config>
__device__ __forceinline__ void plan_dq_tile(const AttentionBwdDqParams& params, int tile, AttentionBwdDqWork& work) {
  const AttentionBwdKernelParams& problem = params.problem;
  const bool packed = problem.sequences != nullptr;
  const int num_heads = problem.kv_heads * problem.group;
  const auto [pair, head, batch] =
      place_of_tile(tile, problem.row_blocks / kDqWarpgroups, params.heads_per_section, num_heads, problem.batches);
  const AttentionBwdSequence& sequence =
      packed ? problem.sequences[find_row_sequence(problem.sequences, problem.num_sequences, kDqWarpgroups * pair)]
             : problem.dense;
  constexpr int kPairRows = kDqWarpgroups * Config::kBlockM;
  const int pairs = (sequence.q_len + kPairRows - 1) / kPairRows;
  const int block = kDqWarpgroups * (pairs - 1 - (pair - sequence.first_row_block / kDqWarpgroups));

  work.dq_row = packed ? sequence.q_start : static_cast<int64_t>(batch) * params.q_rows;
  work.row_block = (batch * num_heads + head) * problem.row_blocks + sequence.first_row_block + block;
  work.q_head = head;
  work.kv_head = head / problem.group;
  work.q_first = block * Config::kBlockM;
  work.q_len = sequence.q_len;
  work.k_len = sequence.k_len;
  work.q_row_shift = problem.q_row_end - sequence.q_len;
  work.q_batch = packed ? sequence.q_start + sequence.q_len : batch;
  work.k_row_shift = problem.k_row_end - sequence.k_len;
  work.k_batch = packed ? sequence.k_start + sequence.k_len : batch;
  set_band(problem, sequence, work);
  find_key_tiles<Config::kBlockN>(work, min(work.q_first + kPairRows, sequence.q_len) - 1);
}

}  // namespace warpgrad::cuda::sm90
