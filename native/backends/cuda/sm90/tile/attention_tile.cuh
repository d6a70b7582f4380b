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

}  // namespace warpgrad::cuda::sm90
