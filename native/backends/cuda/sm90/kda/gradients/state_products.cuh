#pragma once

#include <cstdint>

#include "backends/cuda/sm90/kda/gradients/consumer_thread.cuh"
#include "backends/cuda/sm90/kda/gradients/decays.cuh"

namespace warpgrad::cuda::sm90 {

// The products with S and dS, on wgmma:
//     dY = T^T dU      dv = beta dY      dQd^T = S dO^T      P^T = S dY^T      dKr^T = dS U^T
//     dA = -dY U^T (first warpgroup), dAqk = scale dO U^T (second), both strictly lower, to shared memory as bfloat16
template <class Config>
class KdaStateProducts {
 public:
  using Product = ptx::Wgmma<kKdaType, 64>;

  __device__ __forceinline__ explicit KdaStateProducts(const KdaConsumerThread<Config>& thread)
      : t_(thread), storage_(thread.storage) {}

  __device__ __forceinline__ void run(KdaStateGradients& out, KdaDecays& decays) {
    uint32_t frag_s[32], frag_ds[32];  // A operands, [key][value]
    float accum[32];
    issue_dy(accum);
    t_.wait(kKdaState);
    t_.wait(kKdaDState);
    load_states(frag_s, frag_ds);
    t_.release(kKdaState);
    t_.release(kKdaDState);
    sum_s_ds(frag_s, frag_ds, out.s_ds);
    t_.wait_g();
    const KdaGate<Config> gate(t_);
    load_gate_inputs(t_, decays.g);
    ptx::pin_registers(decays.g);
    t_.wait(kKdaDOut);
    t_.wait(kKdaU);
    issue_from_registers(out.q, frag_s, storage_.smem_d_out.bytes);
    issue_from_registers(out.r, frag_ds, storage_.smem_u.bytes);
    ptx::wgmma_commit_group();
    // Loads and stores would wait for products with operands in registers; arithmetic does not.
    gate.log2_decays(decays.g);
    ptx::pin_registers(decays.g);
    ptx::bar_warp_sync();
    finish_dy(accum);

    t_.sync_consumers();
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(out.q);
    ptx::pin_registers(out.r);
    ptx::pin_registers(frag_ds);
    issue_scores(accum);
    ptx::wgmma_commit_group();
    finish_decays(t_, decays);
    ptx::bar_warp_sync();
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(accum);
    issue_from_registers(out.m, frag_s, storage_.smem_du.bytes);
    ptx::wgmma_commit_group();
    finish_scores(accum);
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(out.m);
    ptx::pin_registers(frag_s);
    t_.release(kKdaDU);
    t_.release(kKdaU);
    t_.release(kKdaDOut);
    t_.sync_consumers();
  }

 protected:
  // 64 tokens x 64 values a warpgroup.
  __device__ __forceinline__ void issue_dy(float (&accum)[32]) {
    t_.wait(kKdaT);
    t_.wait(kKdaDU);
    const uint64_t a = KdaScoreTile::inner_rows_descriptor(ptx::shared_address(storage_.smem_t.bytes));
    const uint64_t b = KdaTokenTile::inner_rows_descriptor(ptx::shared_address(storage_.smem_du.bytes)) +
                       t_.warpgroup * KdaTokenTile::kPanelStep;
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      Product::template ss<1, 1>(accum, a + KdaScoreTile::inner_rows_step(k), b + KdaTokenTile::inner_rows_step(k),
                                 k > 0);
    }
    ptx::wgmma_commit_group();
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

  // [key][token] = states [key][value] times a [token][value] tile, or that added.
  __device__ __forceinline__ void issue_from_registers(float (&accum)[32], const uint32_t (&fragment)[32],
                                                       const uint8_t* tile, bool adds = false) {
    const uint64_t b = KdaTokenTile::inner_columns_descriptor(ptx::shared_address(tile));
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      Product::template rs<0>(accum, fragment + 4 * k, b + KdaTokenTile::inner_columns_step(k), adds || k > 0);
    }
  }

  __device__ __forceinline__ void issue_scores(float (&accum)[32]) {
    const uint8_t* left = t_.warpgroup == 0 ? storage_.smem_du.bytes : storage_.smem_d_out.bytes;
    const uint64_t a = KdaTokenTile::inner_columns_descriptor(ptx::shared_address(left));
    const uint64_t b = KdaTokenTile::inner_columns_descriptor(ptx::shared_address(storage_.smem_u.bytes));
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      Product::template ss<0, 0>(accum, a + KdaTokenTile::inner_columns_step(k),
                                 b + KdaTokenTile::inner_columns_step(k), k > 0);
    }
  }

  // dY over dU, dv over v, and the rows of dY v summed for dbeta.
  __device__ __forceinline__ void finish_dy(float (&dy)[32]) {
    t_.wait(kKdaV);
    uint32_t frag_v[4][4];
#pragma unroll
    for (int q = 0; q < 4; ++q) ptx::ldmatrix_x4(t_.row_block(storage_.smem_v.bytes, t_.warpgroup, q), frag_v[q]);
    ptx::wgmma_wait_group<1>();
    ptx::pin_registers(dy);
    ptx::bar_warp_sync();
    // Every warp of the group has read its panel of dU.
    ptx::bar_sync(kKdaBarrierWarpgroup + t_.warpgroup, kWarpgroupThreads);
    ptx::mbarrier_wait(&storage_.bar_token_scalars_full[t_.walk.scalar_slot()], t_.walk.scalar_parity());
    const int row = 16 * t_.warp + t_.group();
    const float* betas = storage_.token_scalars[t_.walk.scalar_slot()].beta + row;
    const float beta[2] = {ptx::ld_shared(ptx::shared_address(betas)), ptx::ld_shared(ptx::shared_address(betas + 8))};
    // NOTE: a value panel that does not exist stays zero, whatever T holds.
    const bool stores_dy = t_.warpgroup < t_.params.record.value_panels;
    float sums[2] = {0, 0};
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      uint32_t pairs[4], scaled[4];
      kda_finish_dy_block(dy + 8 * q, frag_v[q], beta, sums, pairs, scaled);
      if (stores_dy) {
        ptx::stmatrix_x4(t_.row_block(storage_.smem_du.bytes, t_.warpgroup, q), pairs[0], pairs[1], pairs[2], pairs[3]);
      }
      ptx::stmatrix_x4(t_.row_block(storage_.smem_v.bytes, t_.warpgroup, q), scaled[0], scaled[1], scaled[2],
                       scaled[3]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sums[i] += __shfl_xor_sync(~0u, sums[i], 1);
      sums[i] += __shfl_xor_sync(~0u, sums[i], 2);
      if (t_.quad() == 0) storage_.value_sums[t_.warpgroup][row + 8 * i] = sums[i];
    }
    ptx::fence_proxy_async();
    ptx::mbarrier_arrive(&storage_.bar_dv_full);
    t_.release(kKdaT);
    ptx::bar_warp_sync();
  }

  // Blocks above the diagonal are never read. The diagonal of dAqk is kept apart, in float32.
  __device__ __forceinline__ void finish_scores(float (&accum)[32]) {
    const bool is_d_aqk = t_.warpgroup == 1;
    const float factor = is_d_aqk ? t_.params.scale : -1;
    const uint8_t* tile = is_d_aqk ? storage_.smem_d_aqk.bytes : storage_.smem_da.bytes;
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
          if (is_d_aqk && row == column) storage_.d_aqk_diagonal[16 * t_.warp + row] = y[x];
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
