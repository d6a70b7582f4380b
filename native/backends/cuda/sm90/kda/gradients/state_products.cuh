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
    float accum[32];
    t_.wait(kKdaE);
    t_.wait(kKdaDV);
    t_.wait(kKdaDOut);
    issue_scores(accum);
    t_.wait(kKdaState);
    t_.wait(kKdaDState);
    issue_state_products(out);
    // What follows does not depend on the products, and hides them.
    sum_s_ds(out.s_ds);
    t_.wait_g();
    load_gate_inputs(t_, decays.g);
    KdaGate<Config>(t_).log2_decays(decays.g);
    ptx::pin_registers(decays.g);
    ptx::bar_warp_sync();
    ptx::wgmma_wait_group<1>();
    ptx::pin_registers(accum);
    finish_scores(accum);
    finish_decays(t_, decays);
    ptx::bar_warp_sync();
    wait_for_state_products(out);
    t_.release(kKdaState);
    t_.release(kKdaDState);
    t_.release(kKdaE);
    t_.release(kKdaDV);
    t_.release(kKdaDOut);
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

  // [key][token] = states [value][key] transposed, times a [token][value] tile.
  __device__ __forceinline__ void issue_product(float (&accum)[32], const SmemTile<KdaStateTile> (&states)[2],
                                                const SmemTile<KdaTokenTile>& tile, bool adds) {
    const uint64_t a =
        KdaStateTile::inner_rows_descriptor(address_of(states[0])) + t_.warpgroup * KdaStateTile::kPanelStep;
    const uint64_t b = KdaTokenTile::inner_columns_descriptor(address_of(tile));
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      Product::template ss<1, 0>(accum, a + k / 4 * KdaStateTile::kStageStep + KdaStateTile::inner_rows_step(k % 4),
                                 b + KdaTokenTile::inner_columns_step(k), adds || k > 0);
    }
  }

  // One group of products; with `adds` on top of what there is.
  __device__ __forceinline__ void issue_state_products(KdaStateGradients& out, bool adds = false) {
    ptx::wgmma_fence();
    issue_product(out.q, storage_.smem_state, storage_.smem_d_out, adds);
    issue_product(out.m, storage_.smem_state, storage_.smem_dv, adds);
    issue_product(out.n, storage_.smem_d_state, storage_.smem_e, adds);
    ptx::wgmma_commit_group();
  }
  __device__ __forceinline__ void wait_for_state_products(KdaStateGradients& out) {
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(out.q);
    ptx::pin_registers(out.m);
    ptx::pin_registers(out.n);
  }

  // The diagonal of S dS^T.
  __device__ __forceinline__ void sum_s_ds(float (&s_ds)[2]) {
    float low[4] = {}, high[4] = {};
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      uint32_t s[4], ds[4];
      ptx::ldmatrix_x4_trans(t_.key_block(storage_.smem_state[k / 4].bytes) + kda_block_step(k % 4), s);
      ptx::ldmatrix_x4_trans(t_.key_block_as_b(storage_.smem_d_state[k / 4].bytes) + kda_block_step(k % 4), ds);
      ptx::mma_m16n8k16<kKdaType>(low, s, ds[0], ds[1]);
      ptx::mma_m16n8k16<kKdaType>(high, s, ds[2], ds[3]);
    }
    const int source = (t_.lane & ~3) | (t_.group() >> 1);
    const bool odd = t_.group() & 1;
    s_ds[0] = __shfl_sync(~0u, odd ? low[1] : low[0], source);
    s_ds[1] = __shfl_sync(~0u, odd ? high[3] : high[2], source);
  }

  __device__ __forceinline__ void issue_scores(float (&accum)[32]) {
    const auto& left = t_.warpgroup == 0 ? storage_.smem_d_out : storage_.smem_dv;
    const uint64_t a = KdaTokenTile::inner_columns_descriptor(address_of(left));
    const uint64_t b = KdaTokenTile::inner_columns_descriptor(address_of(storage_.smem_e));
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      Product::template ss<0, 0>(accum, a + KdaTokenTile::inner_columns_step(k),
                                 b + KdaTokenTile::inner_columns_step(k), k > 0);
    }
    ptx::wgmma_commit_group();
  }

  // Blocks above the diagonal are never read. The diagonal of A is kept apart, in float32. Every warp has read the
  // scores of the tile before: the sums that it waited for at the end of that tile come after.
  __device__ __forceinline__ void finish_scores(float (&accum)[32]) {
    const bool is_a = t_.warpgroup == 0;
    const float factor = is_a ? t_.params.scale : -1;
    const uint8_t* tile = is_a ? storage_.smem_a.bytes : storage_.smem_b.bytes;
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
          if (is_a && row == column) storage_.a_diagonal[16 * t_.warp + row] = y[x];
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
