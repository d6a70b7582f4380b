#pragma once

#include <cstdint>

#include "backends/cuda/sm90/kda/gradients/params.h"
#include "backends/cuda/sm90/kda/gradients/storage.cuh"
#include "backends/cuda/sm90/ptx/bulk_copy.cuh"
#include "backends/cuda/sm90/ptx/math.cuh"
#include "backends/cuda/sm90/ptx/matrix.cuh"
#include "backends/cuda/sm90/ptx/mbarrier.cuh"
#include "backends/cuda/sm90/ptx/mma.cuh"
#include "backends/cuda/sm90/ptx/sync.cuh"
#include "backends/cuda/sm90/ptx/wgmma.cuh"

namespace warpgrad::cuda::sm90 {

// Everything of K columns is transposed, [key][token], and a warp owns 16 keys of it. Accumulators of wgmma and of mma,
// and A fragments of mma, hold the same elements: of the 16-token block b a thread has x = 0..7 (registers 8 b + x),
//     key    16 warp + group + 8 key_half,     group = lane / 4, key_half = x / 2 % 2
//     token  16 b + 8 (x / 4) + 2 quad + x % 2,  quad = lane % 4
// and register m of an A fragment is the pair x = 2 m, 2 m + 1. So nothing is exchanged between threads, and sums over
// tokens run along the quads.
__device__ constexpr int kda_key_half(int x) {
  return x >> 1 & 1;
}
// Which of the thread's four tokens of a block: 8 (i / 2) + 2 quad + i % 2.
__device__ constexpr int kda_token(int x) {
  return x >> 2 << 1 | (x & 1);
}

constexpr DType kKdaType = DType::kBFloat16;

__device__ __forceinline__ float kda_element(const uint32_t* fragment, int x) {
  const float2 pair = ptx::widen_pair<kKdaType>(fragment[x >> 1]);
  return (x & 1) ? pair.y : pair.x;
}

// Where a consumer thread stands.
template <class Config>
struct KdaConsumerThread {
  KdaGradientsStorage<Config>& storage;
  const KdaGradientsParams& params;
  const int warpgroup, warp;  // of its warpgroup
  int lane;
  KdaTileWalk<Config> walk;

  __device__ __forceinline__ KdaConsumerThread(KdaGradientsStorage<Config>& storage_in,
                                               const KdaGradientsParams& params_in, int warpgroup_in, int warp_in)
      : storage(storage_in),
        params(params_in),
        warpgroup(warpgroup_in),
        warp(warp_in),
        lane(threadIdx.x % kWarpThreads) {}

  // Keeps what follows from the lane, mostly addresses, from being held in registers from one phase to another.
  __device__ __forceinline__ void begin_phase() {
    ptx::bar_warp_sync();
    lane = ptx::read_thread_idx() % kWarpThreads;
  }

  __device__ __forceinline__ int group() const { return lane / 4; }
  __device__ __forceinline__ int quad() const { return lane % 4; }
  __device__ __forceinline__ int key() const { return 64 * warpgroup + 16 * warp + group(); }  // of the block's

  __device__ __forceinline__ const KdaTokenScalars& token_scalars() const {
    return storage.token_scalars[walk.scalar_slot()];
  }
  __device__ __forceinline__ const KdaGateScalars& gate_scalars() const {
    return storage.gate_scalars[walk.scalar_slot()];
  }

  __device__ __forceinline__ void wait_qk() const { ptx::mbarrier_wait(&storage.bar_qk_full, walk.parity()); }
  __device__ __forceinline__ void wait_g() const {
    ptx::mbarrier_wait(&storage.bar_g_full[walk.g_slot()], walk.g_parity());
  }
  __device__ __forceinline__ void sync_consumers() const {
    ptx::bar_sync(kKdaBarrierConsumers, Config::kConsumerThreads);
  }

  // Address for ldmatrix_x4_trans and stmatrix_x4_trans of this warp's 16 keys in a [token][key] tile: of the 16 tokens
  // of block 0; kda_block_step() further for the next ones.
  __device__ __forceinline__ uint32_t key_block(const void* tile) const {
    return KdaTokenTile::chunk_address(ptx::shared_address(tile), (lane >> 4) * 8 + (lane & 7),
                                       8 * warpgroup + 2 * warp + (lane >> 3 & 1));
  }
  // The same without transposition, for rows 16 warp .. + 15 and the 16 columns of block `block` of a panel.
  __device__ __forceinline__ uint32_t row_block(const void* tile, int panel, int block) const {
    return KdaTokenTile::chunk_address(ptx::shared_address(tile), 16 * warp + (lane & 15),
                                       8 * panel + 2 * block + (lane >> 4));
  }
  // For the diagonal of a product with the transposed other operand: the same two blocks as B fragments, registers 0, 1
  // for the first 8 columns of the product.
  __device__ __forceinline__ uint32_t key_block_as_b(const void* tile) const {
    return KdaTokenTile::chunk_address(ptx::shared_address(tile), lane & 15, 8 * warpgroup + 2 * warp + (lane >> 4));
  }
  __device__ __forceinline__ uint32_t row_block_as_b(const void* tile, int panel, int block) const {
    return KdaTokenTile::chunk_address(ptx::shared_address(tile), 16 * warp + (lane >> 4) * 8 + (lane & 7),
                                       8 * panel + 2 * block + (lane >> 3 & 1));
  }
  // Address for ldmatrix of a 16 x 16 block of A or B as B fragments: registers 0, 1 for its first 8 columns of the
  // product, 2, 3 for the others. By rows for sums over j (not transposed), by columns for sums over i (transposed).
  __device__ __forceinline__ uint32_t score_rows(const void* tile, int block_i, int block_j) const {
    return KdaScoreTile::chunk_address(ptx::shared_address(tile), 16 * block_i + 8 * (lane >> 4) + (lane & 7),
                                       2 * block_j + (lane >> 3 & 1));
  }
  __device__ __forceinline__ uint32_t score_columns(const void* tile, int block_i, int block_j) const {
    return KdaScoreTile::chunk_address(ptx::shared_address(tile), 16 * block_i + (lane & 15),
                                       2 * block_j + (lane >> 4));
  }
  // Of 64 floats, one a token: those of the thread's four tokens of a block.
  __device__ __forceinline__ void load_tokens(const float* values, int block, float (&out)[4]) const {
    const uint32_t address = ptx::shared_address(values) + (16 * block + 2 * quad()) * sizeof(float);
    const float2 low = ptx::ld_shared_v2(address), high = ptx::ld_shared_v2(address + 8 * sizeof(float));
    out[0] = low.x, out[1] = low.y, out[2] = high.x, out[3] = high.y;
  }

  // Sums of the thread's four tokens over the warp's keys, left where they are added up over the warps: after three
  // exchanges each of 16 lanes has one token. kAdd: to what it left there before.
  template <bool kAdd = false>
  __device__ __forceinline__ void store_key_sums(KdaKeySum which, int block, const float (&sums)[4]) const {
    const bool odd = group() & 1, upper = group() & 2;
    const float x0 = (odd ? sums[2] : sums[0]) + __shfl_xor_sync(~0u, odd ? sums[0] : sums[2], 4);
    const float x1 = (odd ? sums[3] : sums[1]) + __shfl_xor_sync(~0u, odd ? sums[1] : sums[3], 4);
    float x = (upper ? x1 : x0) + __shfl_xor_sync(~0u, upper ? x0 : x1, 8);
    x += __shfl_xor_sync(~0u, x, 16);
    const int token = 16 * block + 8 * (group() & 1) + 2 * quad() + (group() >> 1);
    float& sum = storage.key_sums[which][4 * warpgroup + warp][token];
    if (group() < 4) sum = kAdd ? sum + x : x;
  }
};

__device__ constexpr uint32_t kda_block_step(int block) {
  return block * 16 * kPanelRowBytes;
}

// dQd, P and dKr of the warp's 16 keys, [key][token], and the rows of S ⊙ dS summed over the values.
struct KdaStateGradients {
  float q_m[64], n[32];
  float s_ds[2];  // of the thread's keys

  __device__ __forceinline__ float& q(int i) { return q_m[i]; }
  __device__ __forceinline__ float& m(int i) { return q_m[32 + i]; }
};

// The gradients of the thread's keys and tokens; dg is first that of G.
struct KdaKeyGradients {
  float dq[32], dk[32], dg[32];
  float d_last[2];  // of G_C
};

// q and k after the norm, and beta, of the thread's elements of one block. Loading and using them are apart, so that
// something else comes between.
struct KdaBlockRows {
  float q[8], k[8], beta[4];
};
struct KdaRawBlockRows {
  uint32_t q[4], k[4];
  float q_norm[4], k_norm[4], beta[4];

  template <class Config>
  __device__ __forceinline__ void load(const KdaConsumerThread<Config>& t, int block) {
    const KdaTokenScalars& scalars = t.token_scalars();
    ptx::ldmatrix_x4_trans(t.key_block(t.storage.smem_k.bytes) + kda_block_step(block), k);
    ptx::ldmatrix_x4_trans(t.key_block(t.storage.smem_q.bytes) + kda_block_step(block), q);
    t.load_tokens(scalars.q_norm, block, q_norm);
    t.load_tokens(scalars.k_norm, block, k_norm);
    t.load_tokens(scalars.beta, block, beta);
  }
  __device__ __forceinline__ void apply_norms(KdaBlockRows& rows) const {
#pragma unroll
    for (int x = 0; x < 8; ++x) {
      rows.q[x] = kda_element(q, x) * q_norm[kda_token(x)];
      rows.k[x] = kda_element(k, x) * k_norm[kda_token(x)];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) rows.beta[i] = beta[i];
  }
};

// Adds A B for the 16 columns of B.
__device__ __forceinline__ void multiply_block(float* sum, const uint32_t* a, const uint32_t (&b)[4]) {
  ptx::mma_m16n8k16<kKdaType>(sum, a, b[0], b[1]);
  ptx::mma_m16n8k16<kKdaType>(sum + 4, a, b[2], b[3]);
}

}  // namespace warpgrad::cuda::sm90
