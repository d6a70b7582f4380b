#pragma once

#include <cuda.h>

#include <cstdint>

namespace warpgrad::cuda::sm90 {

// One sequence of a packed batch, or the whole dense batch. Tiles are numbered section by section; a section is
// `heads_per_section` head groups times all row blocks, last rows first.
struct AttentionFwdSequence {
  int32_t first_tile;
  int32_t q_start, q_len;  // rows of the packed tensors; 0 and the length when dense
  int32_t k_start, k_len;
  int32_t row_blocks;
  int32_t heads_per_section;
  int32_t unused;
};

struct AttentionFwdKernelParams {
  CUtensorMap tensor_map_q;    // [batch][H / pack][row][pack][D]
  CUtensorMap tensor_map_k;    // [wrap][batch][Hkv][row][D], see RowDims in launch.cu
  CUtensorMap tensor_map_v;    // [wrap][batch][Hkv][row][Dv]
  CUtensorMap tensor_map_out;  // as q, Dv columns
  int32_t k_row_end;           // the row coordinate of key j is k_row_end - k_len + j
  int32_t k_wrap;              // the wrap coordinate

  void* out;          // [B, Sq, H, Dv] or [total_q, H, Dv]
  float* lse;         // [B, H, Sq] or [H, total_q]
  const float* sink;  // [H] or null
  int64_t lse_head_stride;

  int32_t* counters;                      // [2]: next tile, blocks that have finished; zero between launches
  const AttentionFwdSequence* sequences;  // [num_sequences], null when dense
  int32_t num_sequences;
  AttentionFwdSequence dense;
  int32_t num_tiles;

  int32_t num_heads;
  int32_t head_groups;        // H / pack
  int32_t groups_per_kv;      // H / Hkv / pack
  int32_t pack;               // heads of one kv head that lie side by side in the rows of a tile
  int32_t pack_reciprocal;    // ceil(2^16 / pack): row / pack == row * pack_reciprocal >> 16 for the 64 rows
  int32_t warpgroup_queries;  // 64 / pack
  int32_t batches;            // 1 when packed
  int32_t v_dim;              // columns of out
  int32_t window_left, window_right;

  float map_scale;   // with mapped scores: 2 scale log2(e) / softcap, or 0 to change the sign only
  float exp2_scale;  // exponents are score * exp2_scale - max * exp2_scale
  float log_scale;   // the same for the natural logarithm
};

}  // namespace warpgrad::cuda::sm90
