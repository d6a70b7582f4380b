#include "backends/cuda/sm90/kda/gradients/wide/scores.h"

#include "backends/cuda/sm90/kda/gradients/consumer_thread.cuh"
#include "backends/cuda/sm90/kda/gradients/wide/scores.cuh"
#include "backends/cuda/sm90/ptx/bulk_copy.cuh"
#include "backends/cuda/sm90/ptx/math.cuh"
#include "backends/cuda/sm90/ptx/matrix.cuh"
#include "backends/cuda/sm90/ptx/mbarrier.cuh"
#include "backends/cuda/sm90/ptx/sync.cuh"
#include "backends/cuda/sm90/ptx/wgmma.cuh"

namespace warpgrad::cuda::sm90 {
namespace {

constexpr int kThreads = 2 * kWarpgroupThreads;
using ValueTile = SwizzledTile<64, 256>;  // [token][value]
using Product = ptx::Wgmma<kKdaType, 64>;

struct Storage {
  KdaScores scores;
  SmemTile<KdaScoreTile> t;
  SmemTile<ValueTile> du, v, u, d_out;  // dU becomes dY, v becomes dv
  float dy_v[2][64];                    // of the values of a warpgroup
  alignas(16) float beta[64];
  uint64_t bar_first_full, bar_second_full;
};
static_assert(sizeof(Storage) <= kMaxSharedMemoryBytes);

// One (chunk, value head) a block.
class KdaScoresBlock {
 public:
  __device__ __forceinline__ KdaScoresBlock(Storage& storage, const KdaGradientsParams& params)
      : storage_(storage),
        params_(params),
        tile_(blockIdx.x),
        head_(tile_ % params.value_heads),
        chunk_(params.chunks[tile_ / params.value_heads]),
        warpgroup_(__shfl_sync(~0u, threadIdx.x / kWarpgroupThreads, 0)),
        warp_(threadIdx.x / kWarpThreads % 4),
        lane_(threadIdx.x % kWarpThreads) {}

  __device__ __forceinline__ void run() {
    if (threadIdx.x == 0) {
      ptx::mbarrier_init(&storage_.bar_first_full, 1);
      ptx::mbarrier_init(&storage_.bar_second_full, 1);
      ptx::fence_mbarrier_init();
      load();
    }
    __syncthreads();
    ptx::mbarrier_wait(&storage_.bar_first_full, 0);
    make_dy();
    ptx::mbarrier_wait(&storage_.bar_second_full, 0);
    ptx::fence_proxy_async();
    __syncthreads();
    make_scores();
    if (threadIdx.x < 64) {
      storage_.scores.dy_v[threadIdx.x] = storage_.dy_v[0][threadIdx.x] + storage_.dy_v[1][threadIdx.x];
    }
    ptx::fence_proxy_async();
    __syncthreads();
    if (threadIdx.x == 0) store_images();
    store_dv();
    if (threadIdx.x == 0) ptx::bulk_wait_group<0>();
  }

 private:
  __device__ __forceinline__ uint8_t* record() const {
    return params_.records + static_cast<int64_t>(tile_) * params_.record.bytes();
  }
  __device__ __forceinline__ uint32_t value_bytes() const { return params_.record.value_panels * kKdaPanelBytes; }
  __device__ __forceinline__ int64_t value_image() const { return static_cast<int64_t>(tile_) * value_bytes(); }

  __device__ __forceinline__ void load() {
    uint64_t* const first = &storage_.bar_first_full;
    ptx::mbarrier_arrive_expect_tx(first, sizeof(storage_.t) + 2 * value_bytes() + sizeof(storage_.beta));
    ptx::bulk_load(&storage_.t, params_.t + tile_ * kda_t_bytes(), sizeof(storage_.t), first);
    ptx::bulk_load(&storage_.du, params_.du + value_image(), value_bytes(), first);
    ptx::bulk_load(storage_.beta, record() + params_.record.beta(), sizeof(storage_.beta), first);
    load_tokens(storage_.v, params_.tensor_map_v, first);
    uint64_t* const second = &storage_.bar_second_full;
    ptx::mbarrier_arrive_expect_tx(second, 2 * value_bytes());
    ptx::bulk_load(&storage_.u, params_.u + value_image(), value_bytes(), second);
    load_tokens(storage_.d_out, params_.tensor_map_d_out, second);
  }
  __device__ __forceinline__ void load_tokens(SmemTile<ValueTile>& tile, const CUtensorMap& map, uint64_t* full) {
    for (int i = 0; i < params_.record.value_panels; ++i) {
      ptx::tensor_load(tile.bytes + i * kKdaPanelBytes, map, {i * kPanelColumns, chunk_.token, head_, chunk_.batch},
                       full);
    }
  }

  // dY = T^T dU over dU, dv = beta dY over v: every other panel of 64 values a warpgroup.
  __device__ __forceinline__ void make_dy() {
    float sums[2] = {0, 0};  // rows of dY v
    const int row = 16 * warp_ + lane_ / 4;
    const float beta[2] = {storage_.beta[row], storage_.beta[row + 8]};
    const uint64_t a = KdaScoreTile::inner_rows_descriptor(ptx::shared_address(&storage_.t));
    const uint64_t b = ValueTile::inner_rows_descriptor(ptx::shared_address(&storage_.du));
#pragma unroll 1
    for (int panel = warpgroup_; panel < params_.record.value_panels; panel += 2) {
      float dy[32];
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        Product::template ss<1, 1>(dy, a + KdaScoreTile::inner_rows_step(k),
                                   b + panel * ValueTile::kPanelStep + ValueTile::inner_rows_step(k), k > 0);
      }
      ptx::wgmma_commit_group();
      ptx::wgmma_wait_group<0>();
      ptx::pin_registers(dy);
      ptx::bar_sync(1 + warpgroup_, kWarpgroupThreads);  // every warp has read its panel of dU
      finish_dy(panel, dy, beta, sums);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sums[i] += __shfl_xor_sync(~0u, sums[i], 1);
      sums[i] += __shfl_xor_sync(~0u, sums[i], 2);
      if (lane_ % 4 == 0) storage_.dy_v[warpgroup_][row + 8 * i] = sums[i];
    }
  }

  __device__ __forceinline__ void finish_dy(int panel, const float (&dy)[32], const float (&beta)[2],
                                            float (&sums)[2]) {
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      uint32_t v[4], rounded[4], scaled[4];
      ptx::ldmatrix_x4(row_block(storage_.v.bytes, panel, q), v);
      kda_finish_dy_block(dy + 8 * q, v, beta, sums, rounded, scaled);
      ptx::stmatrix_x4(row_block(storage_.du.bytes, panel, q), rounded[0], rounded[1], rounded[2], rounded[3]);
      ptx::stmatrix_x4(row_block(storage_.v.bytes, panel, q), scaled[0], scaled[1], scaled[2], scaled[3]);
    }
  }

  // dA = -dY U^T (first warpgroup), dAqk = scale dO U^T (second), strictly lower. The diagonal of dAqk is kept apart,
  // in float32. Rows past the chunk's end are zero, whatever there is of dO.
  __device__ __forceinline__ void make_scores() {
    const bool is_d_aqk = warpgroup_ == 1;
    const auto& left = is_d_aqk ? storage_.d_out : storage_.du;
    const uint64_t a = ValueTile::inner_columns_descriptor(ptx::shared_address(&left));
    const uint64_t b = ValueTile::inner_columns_descriptor(ptx::shared_address(&storage_.u));
    float accum[32] = {};
#pragma unroll 1
    for (int panel = 0; panel < params_.record.value_panels; ++panel) {
      const uint64_t step = panel * ValueTile::kPanelStep;
      ptx::pin_registers(accum);
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        Product::template ss<0, 0>(accum, a + step + ValueTile::inner_columns_step(k),
                                   b + step + ValueTile::inner_columns_step(k), 1);
      }
      ptx::wgmma_commit_group();
      ptx::wgmma_wait_group<0>();
      ptx::pin_registers(accum);
    }
    const float factor = is_d_aqk ? params_.scale : -1;
    const auto& tile = is_d_aqk ? storage_.scores.smem_d_aqk : storage_.scores.smem_da;
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      float y[8];
#pragma unroll
      for (int x = 0; x < 8; ++x) {
        const int row = 16 * warp_ + lane_ / 4 + 8 * (x >> 1 & 1),
                  column = 16 * q + 8 * (x >> 2) + 2 * (lane_ % 4) + (x & 1);
        const float value = row < chunk_.rows ? factor * accum[8 * q + x] : 0;
        if (is_d_aqk && row == column) storage_.scores.d_aqk_diagonal[row] = value;
        y[x] = column < row ? value : 0;
      }
      ptx::stmatrix_x4(row_block(tile.bytes, 0, q), ptx::cvt_pair<kKdaType>(y[0], y[1]),
                       ptx::cvt_pair<kKdaType>(y[2], y[3]), ptx::cvt_pair<kKdaType>(y[4], y[5]),
                       ptx::cvt_pair<kKdaType>(y[6], y[7]));
    }
  }

  __device__ __forceinline__ void store_images() {
    ptx::bulk_store(record(), &storage_.scores, kKdaScoresBytes);
    ptx::bulk_store(params_.du + value_image(), &storage_.du, value_bytes());
    ptx::bulk_commit_group();
  }

  __device__ __forceinline__ void store_dv() {
    const int row_units = params_.value_dim / 8;
    const int64_t token = static_cast<int64_t>(chunk_.batch) * params_.tokens + chunk_.token;
    uint4* const dv = reinterpret_cast<uint4*>(params_.dv);
    for (int i = threadIdx.x; i < chunk_.rows * row_units; i += kThreads) {
      const int row = i / row_units, unit = i % row_units;
      dv[((token + row) * params_.value_heads + head_) * row_units + unit] =
          ptx::ld_shared_v4(ValueTile::chunk_address(ptx::shared_address(&storage_.v), row, unit));
    }
  }

  // Address for ldmatrix and stmatrix of rows 16 warp .. + 15 and columns 16 block .. + 15 of a panel.
  __device__ __forceinline__ uint32_t row_block(const void* tile, int panel, int block) const {
    return ValueTile::chunk_address(ptx::shared_address(tile), 16 * warp_ + lane_ % 16,
                                    8 * panel + 2 * block + lane_ / 16);
  }

  Storage& storage_;
  const KdaGradientsParams& params_;
  const int tile_, head_;
  const KdaChunk chunk_;
  const int warpgroup_, warp_, lane_;
};

__global__ void __launch_bounds__(kThreads, 1) kda_scores_kernel(const __grid_constant__ KdaGradientsParams params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(kSwizzleAtomBytes) uint8_t smem[];
  KdaScoresBlock(*reinterpret_cast<Storage*>(smem), params).run();
#endif
}

}  // namespace

cudaError_t run_kda_scores(const KdaGradientsParams& params, cudaStream_t stream) {
  const cudaError_t status =
      cudaFuncSetAttribute(kda_scores_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Storage));
  if (status != cudaSuccess) return status;
  kda_scores_kernel<<<params.num_tiles, kThreads, sizeof(Storage), stream>>>(params);
  return cudaGetLastError();
}

}  // namespace warpgrad::cuda::sm90
