#include "backends/cuda/sm90/kda/gradients/wide/scores.h"

#include "backends/cuda/sm90/kda/gradients/consumer_thread.cuh"
#include "backends/cuda/sm90/kda/gradients/wide/scores.cuh"
#include "backends/cuda/sm90/kda/run_kernel.cuh"
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
  SmemTile<ValueTile> e, dv, d_out;
  uint64_t bar_full;
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
      ptx::mbarrier_init(&storage_.bar_full, 1);
      ptx::fence_mbarrier_init();
      load();
    }
    __syncthreads();
    ptx::mbarrier_wait(&storage_.bar_full, 0);
    make_scores();
    ptx::fence_proxy_async();
    __syncthreads();
    if (threadIdx.x > 0) return;
    ptx::bulk_store(params_.scores + static_cast<int64_t>(tile_) * kKdaScoresBytes, &storage_.scores, kKdaScoresBytes);
    ptx::bulk_commit_group();
    ptx::bulk_wait_group<0>();
  }

 private:
  __device__ __forceinline__ void load() {
    const uint32_t bytes = params_.value_panels * kKdaPanelBytes;
    ptx::mbarrier_arrive_expect_tx(&storage_.bar_full, 3 * bytes);
    ptx::bulk_load(&storage_.e, params_.e + static_cast<int64_t>(tile_) * bytes, bytes, &storage_.bar_full);
    load_tokens(storage_.dv, params_.tensor_map_dv);
    load_tokens(storage_.d_out, params_.tensor_map_d_out);
  }
  __device__ __forceinline__ void load_tokens(SmemTile<ValueTile>& tile, const CUtensorMap& map) {
    for (int i = 0; i < params_.value_panels; ++i) {
      ptx::tensor_load(tile.bytes + i * kKdaPanelBytes, map, {i * kPanelColumns, chunk_.token, head_, chunk_.batch},
                       &storage_.bar_full);
    }
  }

  // A = scale dO E^T (first warpgroup), B = -dv E^T (second), strictly lower. The diagonals are kept apart, in
  // float32. Rows past the chunk's end are zero, whatever there is of dO and dv.
  __device__ __forceinline__ void make_scores() {
    const bool is_a = warpgroup_ == 0;
    const auto& left = is_a ? storage_.d_out : storage_.dv;
    const uint64_t a = ValueTile::inner_columns_descriptor(ptx::shared_address(&left));
    const uint64_t b = ValueTile::inner_columns_descriptor(ptx::shared_address(&storage_.e));
    float accum[32] = {};
#pragma unroll 1
    for (int panel = 0; panel < params_.value_panels; ++panel) {
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
    const float factor = is_a ? params_.scale : -1;
    const auto& tile = is_a ? storage_.scores.smem_a : storage_.scores.smem_b;
    float* const diagonal = is_a ? storage_.scores.a_diagonal : storage_.scores.b_diagonal;
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      float y[8];
#pragma unroll
      for (int x = 0; x < 8; ++x) {
        const int row = 16 * warp_ + lane_ / 4 + 8 * (x >> 1 & 1),
                  column = 16 * q + 8 * (x >> 2) + 2 * (lane_ % 4) + (x & 1);
        const float value = row < chunk_.rows ? factor * accum[8 * q + x] : 0;
        if (row == column) diagonal[row] = value;
        y[x] = column < row ? value : 0;
      }
      ptx::stmatrix_x4(row_block(tile.bytes, q), ptx::cvt_pair<kKdaType>(y[0], y[1]),
                       ptx::cvt_pair<kKdaType>(y[2], y[3]), ptx::cvt_pair<kKdaType>(y[4], y[5]),
                       ptx::cvt_pair<kKdaType>(y[6], y[7]));
    }
  }

  // Address for stmatrix of rows 16 warp .. + 15 and columns 16 block .. + 15.
  __device__ __forceinline__ uint32_t row_block(const void* tile, int block) const {
    return KdaScoreTile::chunk_address(ptx::shared_address(tile), 16 * warp_ + lane_ % 16, 2 * block + lane_ / 16);
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
  return run_kernel<kda_scores_kernel>(params.num_tiles, kThreads, sizeof(Storage), stream, params);
}

}  // namespace warpgrad::cuda::sm90
