#pragma once

#include <cstdint>

#include "backends/cuda/sm90/kda/gradients/params.h"
#include "backends/cuda/sm90/kda/gradients/storage.cuh"
#include "backends/cuda/sm90/ptx/bulk_copy.cuh"
#include "backends/cuda/sm90/ptx/mbarrier.cuh"

namespace warpgrad::cuda::sm90 {

// One thread: the loads of every tile, in the order in which the slots become free.
template <class Config>
class KdaGradientsProducer {
 public:
  __device__ __forceinline__ KdaGradientsProducer(KdaGradientsStorage<Config>& storage,
                                                  const KdaGradientsParams& params)
      : storage_(storage), params_(params) {}

  __device__ __forceinline__ void run() {
    for (; walk_.is_inside(params_); walk_.advance()) {
      const auto [chunk_idx, head] = walk_.place(params_);
      const KdaChunk chunk = params_.chunks[chunk_idx];
      const int qk_head = head / params_.group;
      load_token_scalars();
      load_e();
      load_tokens(kKdaDV, storage_.smem_dv.bytes, params_.tensor_map_dv, head, chunk);
      load_tokens(kKdaDOut, storage_.smem_d_out.bytes, params_.tensor_map_d_out, head, chunk);
      load_states(kKdaState, storage_.smem_state, params_.states);
      load_states(kKdaDState, storage_.smem_d_state, params_.d_states);
      load_g(head, chunk);
      load_tokens(kKdaK, storage_.smem_k.bytes, params_.tensor_map_k, qk_head, chunk);
      load_tokens(kKdaQ, storage_.smem_q.bytes, params_.tensor_map_q, qk_head, chunk);
    }
  }

 protected:
  __device__ __forceinline__ uint64_t* begin(KdaGradientsInput input, uint32_t bytes) {
    ptx::mbarrier_sleep(&storage_.bar_empty[input], walk_.parity() ^ 1);
    ptx::mbarrier_arrive_expect_tx(&storage_.bar_full[input], bytes);
    return &storage_.bar_full[input];
  }

  __device__ __forceinline__ void load_e() {
    const uint32_t bytes = params_.value_panels * kKdaPanelBytes;
    uint64_t* full = begin(kKdaE, bytes);
    ptx::bulk_load(storage_.smem_e.bytes, params_.e + static_cast<size_t>(walk_.tile) * bytes, bytes, full);
  }

  __device__ __forceinline__ void load_states(KdaGradientsInput input, SmemTile<KdaStateTile>* smem,
                                              const uint8_t* images) {
    const int value_panels = params_.value_panels;
    const uint32_t panel_bytes = params_.record.key_panels * kKdaPanelBytes;
    uint64_t* full = begin(input, value_panels * panel_bytes);
    const uint8_t* image = images + static_cast<size_t>(walk_.tile) * value_panels * panel_bytes;
#pragma unroll 1
    for (int i = 0; i < value_panels; ++i) {
      ptx::bulk_load(smem[i].bytes, image + i * panel_bytes, panel_bytes, full);
    }
  }

  __device__ __forceinline__ void load_tokens(KdaGradientsInput input, uint8_t* smem, const CUtensorMap& map, int head,
                                              const KdaChunk& chunk) {
    load_panels<2, 64>(begin(input, 2 * kKdaPanelBytes), smem, map, head, chunk);
  }

  __device__ __forceinline__ void load_g(int head, const KdaChunk& chunk) {
    const uint32_t slot = walk_.g_slot();
    ptx::mbarrier_sleep(&storage_.bar_g_empty[slot], walk_.g_parity() ^ 1);
    uint64_t* full = &storage_.bar_g_full[slot];
    ptx::mbarrier_arrive_expect_tx(full, Config::kGateTileBytes);
    load_panels<Config::kGatePanels, Config::kGatePanelColumns>(full, storage_.smem_g[slot], params_.tensor_map_g, head,
                                                                chunk);
  }

  template <int kPanels, int kColumns>
  __device__ __forceinline__ void load_panels(uint64_t* full, uint8_t* smem, const CUtensorMap& map, int head,
                                              const KdaChunk& chunk) {
#pragma unroll 1
    for (int i = 0; i < kPanels; ++i) {
      ptx::tensor_load(smem + i * kKdaPanelBytes, map,
                       {kda_first_key<Config>() + i * kColumns, chunk.token, head, chunk.batch}, full);
    }
  }

  __device__ __forceinline__ void load_token_scalars() {
    const uint32_t slot = walk_.scalar_slot();
    ptx::mbarrier_sleep(&storage_.bar_token_scalars_empty[slot], walk_.scalar_parity() ^ 1);
    uint64_t* full = &storage_.bar_token_scalars_full[slot];
    ptx::mbarrier_arrive_expect_tx(full, sizeof(KdaTokenScalars));
    ptx::bulk_load(&storage_.token_scalars[slot], record() + params_.record.q_norm(), sizeof(KdaTokenScalars), full);
  }
  __device__ __forceinline__ const uint8_t* record() const {
    return params_.records + static_cast<size_t>(walk_.tile) * params_.record.bytes();
  }

  KdaGradientsStorage<Config>& storage_;
  const KdaGradientsParams& params_;
  KdaTileWalk<Config> walk_;
};

}  // namespace warpgrad::cuda::sm90
