#pragma once

#include <cstdint>

#include "backends/cuda/sm90/kda/gradients/consumer_thread.cuh"
#include "backends/cuda/sm90/kda/gradients/decays.cuh"

namespace warpgrad::cuda::sm90 {

// The products with S and dS, and the scores, on wgmma:
//     dQd^T = S dO^T      P^T = S dv^T      dKr^T = dS E^T
//     A = scale dO E^T (first warpgroup), B = -dv E^T (second), both strictly lower, to shared memory as bfloat16
template <class Config>
class KdaStateProducts {
 public:
  using Product = ptx::Wgmma<kKdaType, 64>;

  __device__ __forceinline__ explicit KdaStateProducts(const KdaConsumerThread<Config>& thread)
      : t_(thread), storage_(thread.storage) {}

  __device__ __forceinline__ void run(KdaStateGradients& out, KdaDecays& decays) {
    uint32_t frag_s[32], frag_ds[32];  // A operands, [key][value]
    float scores[32];
    ptx::mbarrier_wait(&storage_.bar_values_full, t_.walk.parity());
    issue_scores(scores);
    load_states(frag_s, frag_ds);
    sum_s_ds(frag_s, frag_ds, out.s_ds);
    t_.wait_g();
    load_gate_inputs(t_, decays.g);
    ptx::pin_registers(decays.g);
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(scores);
    finish_scores(scores);
    issue_state_products(out, frag_s, frag_ds);
    // Loads and stores would wait for products with operands in registers; arithmetic does not.
    KdaGate<Config>(t_).log2_decays(decays.g);
    ptx::pin_registers(decays.g);
    ptx::bar_warp_sync();
    finish_decays(t_, decays);
    ptx::bar_warp_sync();
    wait_for_state_products(out, frag_s, frag_ds);
    ptx::mbarrier_arrive(&storage_.bar_values_empty);
    t_.sync_consumers();
  }

 protected:
  // Made anew each time: descriptors would be held in registers from tile to tile.
  template <class Tile>
  __device__ __forceinline__ static uint32_t address_of(const Tile& tile) {
    uint32_t address[1] = {ptx::shared_address(tile.bytes)};
    ptx::pin_registers(address);
    return address[0];
  }

  __device__ __forceinline__ void load_states(uint32_t (&frag_s)[32], uint32_t (&frag_ds)[32]) {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const uint32_t step = kda_block_step(k % 4);
      ptx::ldmatrix_x4_trans(t_.key_block(storage_.smem_state[k / 4].bytes) + step, frag_s + 4 * k);
      ptx::ldmatrix_x4_trans(t_.key_block(storage_.smem_d_state[k / 4].bytes) + step, frag_ds + 4 * k);
    }
    ptx::pin_registers(frag_s);
    ptx::pin_registers(frag_ds);
  }

  // One group: [key][token] = states [key][value] times [token][value] tiles; with `adds` on top of what there is.
  __device__ __forceinline__ void issue_state_products(KdaStateGradients& out, const uint32_t (&frag_s)[32],
                                                       const uint32_t (&frag_ds)[32], bool adds = false) {
    const uint64_t d_out_dv = KdaOutputTile::inner_columns_descriptor(address_of(storage_.smem_d_out_dv));
    const uint64_t e = KdaTokenTile::inner_columns_descriptor(address_of(storage_.smem_e));
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      ptx::Wgmma<kKdaType, 128>::rs<0>(out.q_m, frag_s + 4 * k, d_out_dv + KdaOutputTile::inner_columns_step(k),
                                       adds || k > 0);
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      Product::template rs<0>(out.n, frag_ds + 4 * k, e + KdaTokenTile::inner_columns_step(k), adds || k > 0);
    }
    ptx::wgmma_commit_group();
  }
  __device__ __forceinline__ void wait_for_state_products(KdaStateGradients& out, uint32_t (&frag_s)[32],
                                                          uint32_t (&frag_ds)[32]) {
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(out.q_m);
    ptx::pin_registers(out.n);
    ptx::pin_registers(frag_s);
    ptx::pin_registers(frag_ds);
  }

  // The diagonal of S dS^T: the A fragment of dS is its B fragment, too.
  __device__ __forceinline__ void sum_s_ds(const uint32_t (&frag_s)[32], const uint32_t (&frag_ds)[32],
                                           float (&s_ds)[2]) {
    float low[4] = {}, high[4] = {};
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      ptx::mma_m16n8k16<kKdaType>(low, frag_s + 4 * k, frag_ds[4 * k], frag_ds[4 * k + 2]);
      ptx::mma_m16n8k16<kKdaType>(high, frag_s + 4 * k, frag_ds[4 * k + 1], frag_ds[4 * k + 3]);
    }
    const int source = (t_.lane & ~3) | (t_.group() >> 1);
    const bool odd = t_.group() & 1;
    s_ds[0] = __shfl_sync(~0u, odd ? low[1] : low[0], source);
    s_ds[1] = __shfl_sync(~0u, odd ? high[3] : high[2], source);
  }

  __device__ __forceinline__ void issue_scores(float (&accum)[32]) {
    const uint64_t a = KdaOutputTile::inner_columns_descriptor(address_of(storage_.smem_d_out_dv)) +
                       t_.warpgroup * KdaOutputTile::rows_step(64);
    const uint64_t b = KdaTokenTile::inner_columns_descriptor(address_of(storage_.smem_e));
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      Product::template ss<0, 0>(accum, a + KdaOutputTile::inner_columns_step(k),
                                 b + KdaTokenTile::inner_columns_step(k), k > 0);
    }
    ptx::wgmma_commit_group();
  }

  // Blocks above the diagonal are never read. The diagonals are kept apart, in float32. Every warp has read the
  // scores of the tile before: the sums that it waited for at the end of that tile come after.
  __device__ __forceinline__ void finish_scores(float (&accum)[32]) {
    const bool is_a = t_.warpgroup == 0;
    const float factor = is_a ? t_.params.scale : -1;
    const uint8_t* tile = is_a ? storage_.smem_a.bytes : storage_.smem_b.bytes;
    float* const diagonal = is_a ? storage_.a_diagonal : storage_.b_diagonal;
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      if (q > t_.warp) continue;
      float y[8];
#pragma unroll
      for (int x = 0; x < 8; ++x) y[x] = factor * accum[8 * q + x];
      if (q == t_.warp) {
#pragma unroll
        for (int x = 0; x < 8; ++x) {
          const int row = t_.group() + 8 * (x >> 1 & 1), column = 8 * (x >> 2) + 2 * t_.quad() + (x & 1);
          if (row == column) diagonal[16 * t_.warp + row] = y[x];
          y[x] = column < row ? y[x] : 0;
        }
      }
      ptx::stmatrix_x4(t_.row_block(tile, 0, q), ptx::cvt_pair<kKdaType>(y[0], y[1]),
                       ptx::cvt_pair<kKdaType>(y[2], y[3]), ptx::cvt_pair<kKdaType>(y[4], y[5]),
                       ptx::cvt_pair<kKdaType>(y[6], y[7]));
    }
    ptx::bar_warp_sync();
  }

  const KdaConsumerThread<Config>& t_;
  KdaGradientsStorage<Config>& storage_;
};

}  // namespace warpgrad::cuda::sm90
