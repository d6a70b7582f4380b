#pragma once

#include <cstdint>

#include "backends/cuda/sm90/kda/gradients/consumer.cuh"
#include "backends/cuda/sm90/kda/gradients/wide/config.cuh"

namespace warpgrad::cuda::sm90 {

// The products with S and dS, a part of the values after the other.
template <class Config>
class KdaWideStateProducts : KdaStateProducts<Config> {
 public:
  using KdaStateProducts<Config>::KdaStateProducts;

  __device__ __forceinline__ void run(KdaStateGradients& out) {
    out.s_ds[0] = out.s_ds[1] = 0;
    const uint32_t first_count = this->t_.walk.count * this->t_.params.value_parts;
    add_part(false, first_count & 1, out);
    if (this->t_.params.value_parts > 1) add_part(true, (first_count + 1) & 1, out);
    // Rows of dO and dv past the chunk's end.
    if (this->t_.gate_scalars().rows < 64) {
      clear_masked_tokens<Config, 4>(this->t_, &out.q(0));
      clear_masked_tokens<Config, 4>(this->t_, &out.m(0));
    }
  }

 private:
  __device__ __forceinline__ void add_part(bool adds, uint32_t parity, KdaStateGradients& out) {
    KdaGradientsStorage<Config>& storage = this->storage_;
    uint32_t frag_s[32], frag_ds[32];
    float s_ds[2];
    ptx::mbarrier_wait(&storage.bar_values_full, parity);
    this->load_states(frag_s, frag_ds);
    this->sum_s_ds(frag_s, frag_ds, s_ds);
    out.s_ds[0] += s_ds[0];
    out.s_ds[1] += s_ds[1];
    this->issue_state_products(out, frag_s, frag_ds, adds);
    this->wait_for_state_products(out, frag_s, frag_ds);
    ptx::bar_warp_sync();
    ptx::mbarrier_arrive(&storage.bar_values_empty);
  }
};

// One warpgroup: 64 of the block's 128 keys.
template <class Config>
class KdaWideGradientsConsumer : KdaGradientsConsumer<Config> {
 public:
  using KdaGradientsConsumer<Config>::KdaGradientsConsumer;

  __device__ __forceinline__ void run() {
    for (; this->t_.walk.is_inside(this->t_.params); this->t_.walk.advance()) run_tile();
  }

 private:
  __device__ __forceinline__ void run_tile() {
    KdaConsumerThread<Config>& t = this->t_;
    KdaGradientsStorage<Config>& storage = this->storage_;
    const uint32_t slot = t.walk.scalar_slot();
    ptx::mbarrier_wait(&storage.bar_gate_scalars_full[slot], t.walk.scalar_parity());
    ptx::mbarrier_wait(&storage.bar_token_scalars_full[slot], t.walk.scalar_parity());
    if (t.gate_scalars().rows < 64) this->clear_masked_rows(t.gate_scalars().rows);
    t.begin_phase();
    KdaStateGradients state;
    KdaWideStateProducts<Config>(t).run(state);
    ptx::mbarrier_wait(&storage.bar_scores_full, t.walk.parity());
    KdaDecays decays;
    load_decays(t, decays);
    KdaKeyGradients gradients;
    this->add_pairs(state, decays, gradients);
    ptx::mbarrier_arrive(&storage.bar_scores_empty);
    ptx::mbarrier_arrive(&storage.bar_key_sums_full);
    t.begin_phase();
    this->finish_gate(gradients);
    ptx::mbarrier_arrive(&storage.bar_gate_scalars_empty[slot]);
    t.begin_phase();
    this->finish_norms(gradients);
    ptx::mbarrier_arrive(&storage.bar_token_scalars_empty[slot]);
  }
};

}  // namespace warpgrad::cuda::sm90
