#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "backends/cuda/sm90/check.h"
#include "backends/cuda/sm90/kda/stages.h"
#include "backends/cuda/sm90/limits.h"
#include "backends/cuda/sm90/ptx/math.cuh"

namespace warpgrad::cuda::sm90 {
namespace {

constexpr char kOperation[] = "kdaBackward";
constexpr int kVectorElems = 8;  // of 16 bits
constexpr int kGroupSumThreads = 256;

struct KdaGroupSumParams {
  const uint4* parts[2];  // dq and dk, [token][value head][key]
  uint4* sums[2];         // [token][head][key]
  int64_t rows;           // tokens x heads
  int32_t group;
};

// A thread adds up 8 keys of a token and head, always from the first value head of the group to the last.
__global__ void __launch_bounds__(kGroupSumThreads)
    kda_group_sum_kernel(const __grid_constant__ KdaGroupSumParams params) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= params.rows) return;
  const int row_vectors = blockDim.x;
  const uint4* part = params.parts[blockIdx.y] + row * params.group * row_vectors + threadIdx.x;
  float2 sum[4] = {};
  for (int i = 0; i < params.group; ++i) {
    const uint4 vector = part[i * row_vectors];
    const uint32_t pairs[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 values = ptx::widen_pair<DType::kBFloat16>(pairs[j]);
      sum[j].x += values.x;
      sum[j].y += values.y;
    }
  }
  uint32_t pairs[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) pairs[j] = ptx::cvt_pair<DType::kBFloat16>(sum[j].x, sum[j].y);
  params.sums[blockIdx.y][row * row_vectors + threadIdx.x] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

// Parts [row][column], a row a chunk or more, to sums [column]; nothing when there are no columns.
struct KdaColumnSum {
  const float* parts;
  float* sums;
  int32_t columns, rows;

  __host__ __device__ int blocks() const { return (columns + kWarpThreads - 1) / kWarpThreads; }
};

struct KdaChunkSumParams {
  KdaColumnSum d_dt_bias, d_a_log;
};

constexpr int kChunkSumWarps = 32;

// A block adds up 32 columns: each warp every 32nd row in order, then one warp what the others have.
__global__ void __launch_bounds__(kChunkSumWarps* kWarpThreads)
    kda_chunk_sum_kernel(const __grid_constant__ KdaChunkSumParams params) {
  const int d_dt_bias_blocks = params.d_dt_bias.blocks(), block = blockIdx.x;
  const bool is_d_dt_bias = block < d_dt_bias_blocks;
  const KdaColumnSum& job = is_d_dt_bias ? params.d_dt_bias : params.d_a_log;
  const int lane_idx = threadIdx.x % kWarpThreads, warp_idx = threadIdx.x / kWarpThreads;
  const int column = (is_d_dt_bias ? block : block - d_dt_bias_blocks) * kWarpThreads + lane_idx;
  const bool inside = column < job.columns;
  float sum = 0;
  if (inside) {
#pragma unroll 4
    for (int row = warp_idx; row < job.rows; row += kChunkSumWarps) {
      sum += job.parts[static_cast<int64_t>(row) * job.columns + column];
    }
  }
  __shared__ float warp_sums[kChunkSumWarps][kWarpThreads];
  warp_sums[warp_idx][lane_idx] = sum;
  __syncthreads();
  if (warp_idx > 0 || !inside) return;
  for (int i = 1; i < kChunkSumWarps; ++i) sum += warp_sums[i][lane_idx];
  job.sums[column] = sum;
}

void launch_group_sums(const KdaProblem& problem, const KdaGradients& parts, const TensorView& dq, const TensorView& dk,
                       cudaStream_t stream) {
  // Behind the last of packed sequences there is nothing to add up.
  const auto& cu_seqlens = problem.options->cu_seqlens;
  const int64_t tokens = cu_seqlens.empty() ? problem.batches * problem.tokens : cu_seqlens.back();
  const int row_vectors = static_cast<int>(problem.key_dim) / kVectorElems;
  const int block_rows = kGroupSumThreads / row_vectors;
  KdaGroupSumParams params{};
  params.parts[0] = parts.dq.as<const uint4>();
  params.parts[1] = parts.dk.as<const uint4>();
  params.sums[0] = dq.as<uint4>();
  params.sums[1] = dk.as<uint4>();
  params.rows = tokens * problem.qk_heads;
  params.group = problem.group();
  if (params.rows == 0) return;
  const dim3 grid(static_cast<unsigned>((params.rows + block_rows - 1) / block_rows), 2);
  kda_group_sum_kernel<<<grid, dim3(row_vectors, block_rows), 0, stream>>>(params);
  check_cuda(cudaGetLastError(), kOperation, "launch of the sums over groups");
}

KdaColumnSum column_sum(const float* parts, const TensorView& sums, int rows) {
  if (!sums) return {};
  return {parts, sums.as<float>(), static_cast<int32_t>(sums.num_elems()), rows};
}

}  // namespace

void launch_kda_sums(const KdaProblem& problem, const KdaGradients& parts, const TensorView& dq, const TensorView& dk,
                     const TensorView& d_a_log, const TensorView& d_dt_bias, cudaStream_t stream) {
  if (problem.group() > 1) launch_group_sums(problem, parts, dq, dk, stream);
  KdaChunkSumParams params{};
  params.d_dt_bias = column_sum(parts.d_dt_bias_parts, d_dt_bias, problem.num_chunks);
  params.d_a_log = column_sum(parts.d_a_log_parts, d_a_log, problem.num_chunks * problem.key_parts());
  const int blocks = params.d_dt_bias.blocks() + params.d_a_log.blocks();
  if (blocks == 0) return;
  kda_chunk_sum_kernel<<<blocks, kChunkSumWarps * kWarpThreads, 0, stream>>>(params);
  check_cuda(cudaGetLastError(), kOperation, "launch of the sums over chunks");
}

}  // namespace warpgrad::cuda::sm90
