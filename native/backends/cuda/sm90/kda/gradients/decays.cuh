#pragma once

#include <cstdint>

#include "backends/cuda/sm90/kda/gradients/consumer_thread.cuh"
#include "backends/cuda/sm90/kda/gradients/gate.cuh"

namespace warpgrad::cuda::sm90 {

// The cumulative log decays G of the thread's keys and tokens, in base 2.
struct KdaDecays {
  float g[32];
  float last[2];  // G_C

  // G at the first row of a block, less kKdaReferenceShift: what its rows are taken relative to.
  __device__ __forceinline__ float first(int block, int key_half) const {
    return __shfl_sync(~0u, g[8 * block + 2 * key_half], 0, 4) - kKdaReferenceShift;
  }
};

// The input of the gate, or its gradient, of the thread's keys in its slot; both in the same places.
template <class Config>
class KdaGateTile {
 public:
  __device__ __forceinline__ explicit KdaGateTile(const KdaConsumerThread<Config>& thread) : t_(thread) {}

  __device__ __forceinline__ void load(int block, float* x) const {
    if constexpr (Config::kFloat32Gate) {
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = ptx::ld_shared(float_address(block, i));
    } else {
      uint32_t fragment[4];
      ptx::ldmatrix_x4_trans(t_.key_block(t_.storage.smem_g[t_.walk.g_slot()]) + kda_block_step(block), fragment);
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = kda_element(fragment, i);
    }
  }

  __device__ __forceinline__ void store(int block, const float* x) const {
    if constexpr (Config::kFloat32Gate) {
#pragma unroll
      for (int i = 0; i < 8; ++i) ptx::st_shared(float_address(block, i), x[i]);
    } else {
      ptx::stmatrix_x4_trans(t_.key_block(t_.storage.smem_g[t_.walk.g_slot()]) + kda_block_step(block),
                             ptx::cvt_pair<kKdaType>(x[0], x[1]), ptx::cvt_pair<kKdaType>(x[2], x[3]),
                             ptx::cvt_pair<kKdaType>(x[4], x[5]), ptx::cvt_pair<kKdaType>(x[6], x[7]));
    }
  }

 private:
  // Panels of 32 keys; the address of element 0 of block 0, and from there by the swizzle: 8 keys further flips bit 1
  // of the 16-byte unit, the next row (an odd one) bit 0.
  __device__ __forceinline__ uint32_t float_address(int block, int x) const {
    const int key = t_.key(), row = 2 * t_.quad();
    uint32_t address = ptx::shared_address(t_.storage.smem_g[t_.walk.g_slot()]) + (key >> 5) * kKdaPanelBytes +
                       row * kPanelRowBytes + (((key >> 2 & 7) ^ row) << 4) + (key & 3) * sizeof(float);
    if (x & 1) address = (address + kPanelRowBytes) ^ 16;
    if (kda_key_half(x)) address ^= 32;
    return address + kda_block_step(block) + (x >> 2) * 8 * kPanelRowBytes;
  }

  const KdaConsumerThread<Config>& t_;
};

// Sets the elements of tokens past the chunk's end to zero.
template <class Config, int kBlocks>
__device__ __forceinline__ void clear_masked_tokens(const KdaConsumerThread<Config>& t, float* values,
                                                    int first_block = 0) {
  const int rows = t.gate_scalars().rows - 16 * first_block - 2 * t.quad();
#pragma unroll
  for (int i = 0; i < 8 * kBlocks; ++i) {
    if (8 * (i >> 2) + (i & 1) >= rows) values[i] = 0;
  }
}

// Inclusive sums over the tokens of some blocks, or from the end backwards, beginning with `sums`: in a row of 8 tokens
// along the quad, from row to row in a register. All exchanges of a kind together, since each takes long.
template <bool kBackwards, int kElements>
__device__ __forceinline__ void add_up_tokens(int quad, float* values, float (&sums)[2]) {
  constexpr int kPairs = kElements / 2;
  float neighbour[kPairs], others[kPairs];
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    neighbour[i] = __shfl_xor_sync(~0u, values[2 * i] + values[2 * i + 1], 1);
  }
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    others[i] = __shfl_xor_sync(~0u, values[2 * i] + values[2 * i + 1] + neighbour[i], 2);
  }
  const bool adds_neighbour = (quad & 1) != kBackwards, adds_others = (quad & 2) / 2 != kBackwards;
#pragma unroll
  for (int step = 0; step < kPairs; ++step) {
    const int i = kBackwards ? kPairs - 1 - step : step, key_half = i & 1;
    float &first = values[2 * i], &second = values[2 * i + 1];
    const float pair = first + second;
    const float before = sums[key_half] + ((adds_neighbour ? neighbour[i] : 0) + (adds_others ? others[i] : 0));
    sums[key_half] += pair + neighbour[i] + others[i];
    (kBackwards ? second : first) += before;
    (kBackwards ? first : second) = before + pair;
  }
}

template <class Config>
__device__ __forceinline__ void load_gate_inputs(const KdaConsumerThread<Config>& t, float (&x)[32]) {
#pragma unroll
  for (int block = 0; block < 4; ++block) KdaGateTile<Config>(t).load(block, x + 8 * block);
}

// From the log decays, in base 2, to their sums.
template <class Config>
__device__ __forceinline__ void finish_decays(const KdaConsumerThread<Config>& t, KdaDecays& decays) {
  if (t.gate_scalars().rows < 64) clear_masked_tokens<Config, 4>(t, decays.g);
  decays.last[0] = decays.last[1] = 0;
  add_up_tokens<false, 16>(t.quad(), decays.g, decays.last);
  add_up_tokens<false, 16>(t.quad(), decays.g + 16, decays.last);
}

template <class Config>
__device__ __forceinline__ void load_decays(const KdaConsumerThread<Config>& t, KdaDecays& decays) {
  t.wait_g();
  load_gate_inputs(t, decays.g);
  KdaGate<Config>(t).log2_decays(decays.g);
  finish_decays(t, decays);
}

}  // namespace warpgrad::cuda::sm90
