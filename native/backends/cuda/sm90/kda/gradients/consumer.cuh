#pragma once

#include <cstdint>

#include "backends/cuda/sm90/kda/gradients/decays.cuh"
#include "backends/cuda/sm90/kda/gradients/pairs.cuh"
#include "backends/cuda/sm90/kda/gradients/state_products.cuh"

namespace warpgrad::cuda::sm90 {

// One warpgroup: 64 keys of every tile.
template <class Config>
class KdaGradientsConsumer {
 public:
  __device__ __forceinline__ KdaGradientsConsumer(KdaGradientsStorage<Config>& storage,
                                                  const KdaGradientsParams& params, int warpgroup, int warp)
      : t_(storage, params, warpgroup, warp), storage_(storage) {}

  __device__ __forceinline__ void run() {
    for (; t_.walk.is_inside(t_.params); t_.walk.advance()) {
      const uint32_t slot = t_.walk.scalar_slot();
      ptx::mbarrier_wait(&storage_.bar_gate_scalars_full[slot], t_.walk.scalar_parity());
      if (t_.gate_scalars().rows < 64) clear_masked_rows(t_.gate_scalars().rows);
      t_.begin_phase();
      KdaStateGradients state;
      KdaDecays decays;
      KdaStateProducts<Config>(t_).run(state, decays);
      KdaKeyGradients gradients;
      add_pairs(state, decays, gradients);
      ptx::mbarrier_arrive(&storage_.bar_key_sums_full);
      t_.begin_phase();
      finish_gate(gradients);
      ptx::mbarrier_arrive(&storage_.bar_gate_scalars_empty[slot]);
      t_.begin_phase();
      finish_norms(gradients);
      ptx::mbarrier_arrive(&storage_.bar_token_scalars_empty[slot]);
    }
  }

 protected:
  // Rows past the end of a ragged chunk hold what comes after it in memory: zero, so that nothing of it matters, not
  // even NaN. The images have zeros there; the gate of a zero is masked where it is computed.
  __device__ __forceinline__ void clear_masked_rows(int rows) {
    if constexpr (!Config::kWide) ptx::mbarrier_wait(&storage_.bar_values_full, t_.walk.parity());
    t_.wait_qk();
    t_.wait_g();
    ptx::mbarrier_wait(&storage_.bar_token_scalars_full[t_.walk.scalar_slot()], t_.walk.scalar_parity());
    const int thread = threadIdx.x % Config::kConsumerThreads;
    const auto clear = [&](uint8_t* tile, int panels) {
      for (int i = thread; i < panels * kKdaPanelBytes / 16; i += Config::kConsumerThreads) {
        if (i % (kKdaPanelBytes / 16) >= rows * 8) reinterpret_cast<uint4*>(tile)[i] = make_uint4(0, 0, 0, 0);
      }
    };
    if constexpr (!Config::kWide) clear(storage_.smem_d_out_dv.bytes, 4);
    clear(storage_.smem_k.bytes, 2);
    clear(storage_.smem_q.bytes, 2);
    clear(storage_.smem_g[t_.walk.g_slot()], Config::kGatePanels);
    KdaTokenScalars& scalars = storage_.token_scalars[t_.walk.scalar_slot()];
    if (thread >= rows && thread < 64) scalars.q_norm[thread] = scalars.k_norm[thread] = scalars.beta[thread] = 0;
    ptx::fence_proxy_async();
    t_.sync_consumers();
  }

  __device__ __forceinline__ void add_pairs(KdaStateGradients& state, const KdaDecays& decays,
                                            KdaKeyGradients& gradients) {
    t_.wait_qk();
    t_.begin_phase();
    store_q_k();
    KdaPairs<Config>(t_).run(state, decays, gradients);
  }

  // q k of each token over 64 keys, a warp those of 16 tokens: the diagonal of q k^T. The warp's sums of other tokens
  // stay zero.
  __device__ __forceinline__ void store_q_k() {
    float low[4] = {}, high[4] = {};
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      uint32_t q[4], k[4];
      ptx::ldmatrix_x4(t_.row_block(storage_.smem_q.bytes, t_.warpgroup, block), q);
      ptx::ldmatrix_x4(t_.row_block_as_b(storage_.smem_k.bytes, t_.warpgroup, block), k);
      ptx::mma_m16n8k16<kKdaType>(low, q, k[0], k[1]);
      ptx::mma_m16n8k16<kKdaType>(high, q, k[2], k[3]);
    }
    if (t_.group() >> 1 != t_.quad()) return;
    const bool odd = t_.group() & 1;
    float* sums = storage_.key_sums[kKdaSumQK][4 * t_.warpgroup + t_.warp] + 16 * t_.warp + t_.group();
    sums[0] = odd ? low[1] : low[0];
    sums[8] = odd ? high[3] : high[2];
  }

  // dg: the reverse cumulative sum of dG; then through the gate, with the parts of dA_log and dt_bias.
  __device__ __forceinline__ void finish_gate(KdaKeyGradients& gradients) {
    add_up_tokens<true, 32>(t_.quad(), gradients.dg, gradients.d_last);
    if (t_.gate_scalars().rows < 64) clear_masked_tokens<Config, 4>(t_, gradients.dg);
    const KdaGate<Config> gate(t_);
    const KdaGateTile<Config> tile(t_);
    float d_a_log = 0, d_bias[2] = {0, 0};
    float dx[32];
    load_gate_inputs(t_, dx);
    gate.backward(dx, gradients.dg, d_a_log);
#pragma unroll
    for (int i = 0; i < 32; ++i) d_bias[kda_key_half(i)] += dx[i];
    __syncwarp();
#pragma unroll
    for (int block = 0; block < 4; ++block) tile.store(block, dx + 8 * block);
    if constexpr (Config::kGate != ops::GateKind::kGiven) store_gate_parts(gate, d_a_log, d_bias);
    ptx::mbarrier_arrive(&storage_.bar_dg_full);
  }

  __device__ __forceinline__ void store_gate_parts(const KdaGate<Config>& gate, float d_a_log,
                                                   const float (&d_bias)[2]) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) d_a_log += __shfl_xor_sync(~0u, d_a_log, distance);
    if (t_.lane == 0) storage_.d_a_log[4 * t_.warpgroup + t_.warp] = d_a_log * gate.d_a_log_factor();
    if (!t_.params.d_dt_bias_parts) return;
    float* parts = t_.params.d_dt_bias_parts + static_cast<int64_t>(t_.walk.tile) * t_.params.key_dim;
    const int first_key = kda_first_key<Config>();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = d_bias[half];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const int key = first_key + t_.key() + 8 * half;
      if (t_.quad() == 0 && key < t_.params.key_dim) parts[key] = sum;
    }
  }

  // The diagonal of A, dq_i += a_i beta_i k_i and dk_i += a_i beta_i q_i; then back through the norm:
  // dx = r (dy - y (y dy)), r = 1 and y dy left out without it.
  __device__ __forceinline__ void finish_norms(const KdaKeyGradients& gradients) {
    const KdaTokenScalars& scalars = t_.token_scalars();
    const KdaTokenSums& sums = storage_.token_sums;
    ptx::mbarrier_wait(&storage_.bar_token_sums_full, t_.walk.parity());
    const uint32_t address_q = t_.key_block(storage_.smem_q.bytes), address_k = t_.key_block(storage_.smem_k.bytes);
    uint32_t frag_q[4][4], frag_k[4][4];
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      ptx::ldmatrix_x4_trans(address_q + kda_block_step(block), frag_q[block]);
      ptx::ldmatrix_x4_trans(address_k + kda_block_step(block), frag_k[block]);
    }
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      const NormTokens q{t_, scalars.q_norm, sums.q_dq, sums.k_to_dq, block};
      const NormTokens k{t_, scalars.k_norm, sums.k_dk, sums.q_to_dk, block};
      store_through_norm(address_q + kda_block_step(block), frag_q[block], frag_k[block], q, gradients.dq + 8 * block);
      store_through_norm(address_k + kda_block_step(block), frag_k[block], frag_q[block], k, gradients.dk + 8 * block);
    }
    ptx::mbarrier_arrive(&storage_.bar_dqk_full);
  }

  struct NormTokens {
    float r[4], y_dy[4], from_other[4];

    __device__ __forceinline__ NormTokens(const KdaConsumerThread<Config>& t, const float* norms, const float* sums,
                                          const float* others, int block) {
      t.load_tokens(norms, block, r);
      t.load_tokens(sums, block, y_dy);
      t.load_tokens(others, block, from_other);
    }
  };

  __device__ __forceinline__ void store_through_norm(uint32_t address, const uint32_t (&fragment)[4],
                                                     const uint32_t (&other)[4], const NormTokens& tokens,
                                                     const float* gradient) {
    uint32_t out[4];
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      float dx[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int x = 2 * m + e, token = kda_token(x);
        const float dy = fmaf(kda_element(other, x), tokens.from_other[token], gradient[x]);
        dx[e] = tokens.r[token] * fmaf(-kda_element(fragment, x), tokens.y_dy[token], dy);
      }
      out[m] = ptx::cvt_pair<kKdaType>(dx[0], dx[1]);
    }
    ptx::stmatrix_x4_trans(address, out[0], out[1], out[2], out[3]);
  }

  KdaConsumerThread<Config> t_;
  KdaGradientsStorage<Config>& storage_;
};

}  // namespace warpgrad::cuda::sm90
