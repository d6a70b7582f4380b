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
      load_values(0, head, chunk);
      load_g(head, chunk);
      load_qk(qk_head, chunk);
    }
  }

 protected:
  // Of 128 values. S and dS are [value panel][key panel] each, of which two and two are wanted.
  __device__ __forceinline__ void load_values(int part, int head, const KdaChunk& chunk) {
    const int panels = min(2, params_.value_panels), key_panels = min(2, params_.record.key_panels);
    const uint32_t state_bytes = key_panels * kKdaPanelBytes, e_bytes = panels * kKdaPanelBytes;
    uint64_t* const full = &storage_.bar_values_full;
    ptx::mbarrier_sleep(&storage_.bar_values_empty, (values_count_++ & 1) ^ 1);
    ptx::mbarrier_arrive_expect_tx(full, panels * 2 * (state_bytes + kKdaPanelBytes) + e_bytes);
    const int64_t value_panel = static_cast<int64_t>(walk_.tile) * params_.value_panels + 2 * part;
    ptx::bulk_load(storage_.smem_e.bytes, params_.e + value_panel * kKdaPanelBytes, e_bytes, full);
#pragma unroll 1
    for (int i = 0; i < panels; ++i) {
      uint8_t* const d_out_dv = storage_.smem_d_out_dv.bytes + i * KdaOutputTile::kPanelBytes;
      const int column = (2 * part + i) * kPanelColumns;
      ptx::tensor_load(d_out_dv, params_.tensor_map_d_out, {column, chunk.token, head, chunk.batch}, full);
      ptx::tensor_load(d_out_dv + kKdaPanelBytes, params_.tensor_map_dv, {column, chunk.token, head, chunk.batch},
                       full);
    }
#pragma unroll 1
    for (int i = 0; i < panels; ++i) {
      const int64_t state =
          ((value_panel + i) * params_.record.key_panels + kda_first_key<Config>() / kPanelColumns) * kKdaPanelBytes;
      ptx::bulk_load(storage_.smem_state[i].bytes, params_.states + state, state_bytes, full);
      ptx::bulk_load(storage_.smem_d_state[i].bytes, params_.d_states + state, state_bytes, full);
    }
  }

  __device__ __forceinline__ void load_qk(int head, const KdaChunk& chunk) {
    uint64_t* const full = &storage_.bar_qk_full;
    ptx::mbarrier_sleep(&storage_.bar_qk_empty, walk_.parity() ^ 1);
    ptx::mbarrier_arrive_expect_tx(full, 4 * kKdaPanelBytes);
    load_panels<2, 64>(full, storage_.smem_k.bytes, params_.tensor_map_k, head, chunk);
    load_panels<2, 64>(full, storage_.smem_q.bytes, params_.tensor_map_q, head, chunk);
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
  uint32_t values_count_ = 0;
};

}  // namespace warpgrad::cuda::sm90
