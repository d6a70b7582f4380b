#include <cstdint>

#include "backends/cuda/sm90/check.h"
#include "backends/cuda/sm90/kda/stages.h"
#include "backends/cuda/sm90/kda/state.cuh"
#include "backends/cuda/sm90/tile/swizzled_tile.cuh"

namespace warpgrad::cuda::sm90 {
namespace {

constexpr int kThreads = 512;
constexpr int kColumns = 4;  // of the state, a block: a float4 each key

struct Params {
  const KdaSegmented* sequences;
  KdaStates initial_states;
  float* segment_states;  // [segment][value head][values, then columns of the transition][kKeys]
  int32_t value_heads, values;
};

template <int kKeys>
class Combiner {
 public:
  // Threads of a group have a key each and share the columns of M out among the groups.
  static constexpr int kGroups = kThreads / kKeys, kOwn = kKeys / kGroups;
  struct Storage {
    float4 state[kKeys];
    float4 parts[kGroups][kKeys];
  };

  __device__ __forceinline__ Combiner(Storage& storage, const Params& params)
      : storage_(storage), params_(params), key_(threadIdx.x % kKeys), group_(threadIdx.x / kKeys) {}

  // S_{s+1} = M_s S_s + B_s, where B_s makes room for S_s.
  __device__ __forceinline__ void run(const KdaSegmented& sequence, int head, int first_column) {
    const int64_t head_floats = static_cast<int64_t>(params_.values + kKeys) * kKeys;
    const int64_t segment_floats = params_.value_heads * head_floats;
    float* segment = params_.segment_states + sequence.first_segment * segment_floats + head * head_floats;
    float4 state = initial_state(sequence.sequence, head, first_column);
    float transition[kOwn], next[kOwn];
    if (sequence.num_segments > 1) load_transition(segment, transition);
    for (int i = 0; i < sequence.num_segments - 1; ++i, segment += segment_floats) {
      if (i + 2 < sequence.num_segments) load_transition(segment + segment_floats, next);
      float4 end{};
      if (group_ == 0) {
        end = load_columns(segment, first_column);
        store_columns(segment, first_column, state);
        storage_.state[key_] = state;
      }
      __syncthreads();
      storage_.parts[group_][key_] = multiply(transition);
      __syncthreads();
      if (group_ == 0) state = sum_of_parts(end);
#pragma unroll
      for (int j = 0; j < kOwn; ++j) transition[j] = next[j];
    }
    if (group_ == 0) store_columns(segment, first_column, state);
  }

 private:
  __device__ __forceinline__ float4 initial_state(int sequence, int head, int first_column) const {
    const KdaStates& states = params_.initial_states;
    float values[kColumns] = {};
    const float* state = states.data + sequence * states.sequence_stride + head * states.head_stride;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int value = first_column + c;
      if (key_ < states.key_dim && value < states.value_dim) {
        values[c] = state[key_ * states.key_stride + value * states.value_stride];
      }
    }
    return {values[0], values[1], values[2], values[3]};
  }

  __device__ __forceinline__ void load_transition(const float* segment, float (&columns)[kOwn]) const {
    const float* first = segment + (params_.values + group_ * kOwn) * kKeys + key_;
#pragma unroll
    for (int j = 0; j < kOwn; ++j) columns[j] = first[j * kKeys];
  }
  __device__ __forceinline__ float4 load_columns(const float* segment, int first_column) const {
    const float* first = segment + first_column * kKeys + key_;
    return {first[0], first[kKeys], first[2 * kKeys], first[3 * kKeys]};
  }
  __device__ __forceinline__ void store_columns(float* segment, int first_column, const float4& values) const {
    float* first = segment + first_column * kKeys + key_;
    first[0] = values.x;
    first[kKeys] = values.y;
    first[2 * kKeys] = values.z;
    first[3 * kKeys] = values.w;
  }

  // What this group's columns of M give to the key.
  __device__ __forceinline__ float4 multiply(const float (&transition)[kOwn]) const {
    float4 sum{};
#pragma unroll
    for (int j = 0; j < kOwn; ++j) sum = multiply_add(transition[j], storage_.state[group_ * kOwn + j], sum);
    return sum;
  }
  __device__ __forceinline__ float4 sum_of_parts(float4 sum) const {
#pragma unroll
    for (int i = 0; i < kGroups; ++i) sum = multiply_add(1, storage_.parts[i][key_], sum);
    return sum;
  }
  static __device__ __forceinline__ float4 multiply_add(float factor, const float4& x, const float4& sum) {
    return {fmaf(factor, x.x, sum.x), fmaf(factor, x.y, sum.y), fmaf(factor, x.z, sum.z), fmaf(factor, x.w, sum.w)};
  }

  Storage& storage_;
  const Params& params_;
  const int key_, group_;
};

template <int kKeys>
__global__ void __launch_bounds__(kThreads) kda_combine_kernel(const __grid_constant__ Params params) {
  __shared__ typename Combiner<kKeys>::Storage storage;
  const int head = blockIdx.y % params.value_heads, sequence = blockIdx.y / params.value_heads;
  Combiner<kKeys>(storage, params).run(params.sequences[sequence], head, blockIdx.x * kColumns);
}

}  // namespace

void launch_kda_combine(const KdaProblem& problem, const TensorView& initial_state, float* segment_states,
                        cudaStream_t stream) {
  Params params{};
  params.sequences = problem.segments.sequences;
  params.initial_states = KdaStates(initial_state, problem.options->state_vk);
  params.segment_states = segment_states;
  params.value_heads = static_cast<int32_t>(problem.value_heads);
  params.values = problem.value_panels * kPanelColumns;
  const dim3 blocks(params.values / kColumns, static_cast<unsigned>(problem.num_sequences * problem.value_heads));
  const auto kernel = problem.key_panels == 1 ? kda_combine_kernel<64> : kda_combine_kernel<128>;
  kernel<<<blocks, kThreads, 0, stream>>>(params);
  check_cuda(cudaGetLastError(), "kdaForward", "launch of the combination of segments");
}

}  // namespace warpgrad::cuda::sm90
