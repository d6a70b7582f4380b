#pragma once

namespace warpgrad::cuda::sm90 {

// Tiles are numbered section by section. A section is all blocks of `section_heads` heads (the last section may have
// fewer), block by block; heads are counted through all batches.
struct TilePlace {
  int block, head, batch;
};

__device__ __forceinline__ TilePlace place_of_tile(int tile, int blocks, int section_heads, int heads, int batches) {
  const int section = tile / (section_heads * blocks);
  const int in_section = tile - section * section_heads * blocks;
  const int first_head = section * section_heads;
  const int heads_here = min(section_heads, heads * batches - first_head);
  const int block = in_section / heads_here;
  const int head_and_batch = first_head + in_section - block * heads_here;
  const int batch = head_and_batch / heads;
  return {block, head_and_batch - batch * heads, batch};
}

// Query i of a sequence sees the keys i + low .. i + high.
template <class Params, class Sequence, class Work>
__device__ __forceinline__ void set_band(const Params& params, const Sequence& sequence, Work& work) {
  const int unbounded = sequence.q_len + sequence.k_len;  // as good as no bound, and can't overflow
  const int diagonal = sequence.k_len - sequence.q_len;
  work.key_shift_low = diagonal - min(params.window_left, unbounded);
  work.key_shift_high = diagonal + min(params.window_right, unbounded);
}

// The key tiles that the queries q_first..q_last see, and those of them that need no mask.
template <int kBlockN, class Work>
__device__ __forceinline__ void find_key_tiles(Work& work, int q_last) {
  const int first_key = max(0, work.q_first + work.key_shift_low);
  const int last_key = min(work.k_len - 1, q_last + work.key_shift_high);
  if (first_key > last_key) {  // nothing is visible: one tile, masked throughout, gives the empty result
    work.n_first = work.n_last = 0;
    work.n_full_first = 1;
    work.n_full_last = -1;
    return;
  }
  work.n_first = first_key / kBlockN;
  work.n_last = last_key / kBlockN;
  const int common_first = max(0, q_last + work.key_shift_low);
  const int common_end = max(0, min(work.k_len, work.q_first + work.key_shift_high + 1));
  work.n_full_first = max(work.n_first, (common_first + kBlockN - 1) / kBlockN);
  work.n_full_last = common_end / kBlockN - 1;
}

}  // namespace warpgrad::cuda::sm90
