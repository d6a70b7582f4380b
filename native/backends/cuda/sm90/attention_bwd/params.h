#pragma once

#include <cuda.h>

#include <cstdint>

namespace warpgrad::cuda::sm90 {

// One sequence of a packed batch, or the whole dense batch, in the order of their tiles and of their row blocks. Tiles
// of keys are numbered section by section; a section is `heads_per_section` splits of kv heads times all key blocks.
struct AttentionBwdSequence {
  int32_t first_tile;
  int32_t q_start, q_len;  // rows of the packed tensors; 0 and the length when dense
  int32_t k_start, k_len;
  int32_t key_blocks;
  int32_t heads_per_section;
  int32_t first_row_block;  // of the sequence among a head's row blocks; 0 when dense
};

// Row blocks: every sequence's queries are cut into blocks of kBlockM rows, the last one filled up. Block r of head h
// is number h * row_blocks + r (of batch b, when dense: (b * num_heads + h) * row_blocks + r).
struct AttentionBwdKernelParams {
  CUtensorMap tensor_map_q, tensor_map_d_out;  // [wrap][batch][H][row][D], see packed_map in tile/attention_operand.h
  CUtensorMap tensor_map_k, tensor_map_v;      // [wrap][batch][Hkv][row][D]
  int32_t q_row_end, k_row_end;                // row i of a sequence is at coordinate row_end - length + i
  int32_t wrap;                                // the wrap coordinate

  const float* lse_log2;  // [row blocks][kBlockM]: lse * log2(e), +infinity for rows that take no part
  const float* delta;     // [row blocks][kBlockM]: the sum of dO * O over a row
  float* dq_accum;        // [row blocks][DqFragment::kBlockFloats], by keys
  int32_t* dq_turn;       // [row blocks]: how many key blocks have added to it; null unless deterministic
  void* dk;               // [B, Sk, Hkv, D] or [total_k, Hkv, D]
  void* dv;               // the same with Dv
  float* dk_parts;        // [splits] of the same, where there is more than one split
  float* dv_parts;
  int64_t key_rows;  // B * Sk, or total_k

  int32_t* counters;                      // [2]: next tile, blocks that have finished; zero between launches
  const AttentionBwdSequence* sequences;  // [num_sequences], null when dense
  int32_t num_sequences;
  AttentionBwdSequence dense;
  int32_t num_tiles;

  int32_t kv_heads;
  int32_t group;       // H / Hkv
  int32_t splits;      // of the query heads of a group; each makes its own part of dK and dV
  int32_t batches;     // 1 when packed
  int32_t row_blocks;  // of one head
  int32_t qk_dim, v_dim;
  int32_t window_left, window_right;
  int32_t last_keys_first;  // order of the key blocks of a head

  float scale;       // of q·k
  float exp2_scale;  // exponents are score * exp2_scale - lse_log2; scores are q·k, or the tanh with softcap
  float map_scale;   // with softcap: 2 scale log2(e) / softcap
};

}  // namespace warpgrad::cuda::sm90
