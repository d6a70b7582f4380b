#include <algorithm>
#include <cstdint>

#include "backends/cuda/sm90/check.h"
#include "backends/cuda/sm90/kda/recurrence/config.cuh"
#include "backends/cuda/sm90/kda/recurrence/instance.h"
#include "backends/cuda/sm90/kda/stages.h"
#include "backends/cuda/sm90/tile/attention_operand.h"

namespace warpgrad::cuda::sm90 {
namespace {

constexpr char kOperation[] = "kdaForward";

struct Kernel {
  int key_panels, value_parts;
  KdaRecurrenceResult result;
  bool several_works;  // of a block
  cudaError_t (*run)(const KdaRecurrenceParams& params, int blocks, cudaStream_t stream);
};

template <int kKeyPanels, int kWarpgroups, KdaRecurrenceResult kResult>
constexpr Kernel row() {
  using Config = KdaRecurrenceConfig<kKeyPanels, kWarpgroups, kResult>;
  return {kKeyPanels, Config::kValueParts, kResult, Config::kSeveralWorks, run_kda_recurrence<Config>};
}

using enum KdaRecurrenceResult;
constexpr Kernel kKernels[] = {
    row<1, 1, kOut>(), row<1, 1, kOutAndImages>(), row<1, 1, kImages>(), row<1, 1, kSegment>(),  //
    row<1, 2, kOut>(), row<1, 2, kOutAndImages>(), row<1, 2, kImages>(), row<1, 2, kSegment>(),  //
    row<2, 1, kOut>(), row<2, 1, kOutAndImages>(), row<2, 1, kImages>(), row<2, 1, kSegment>(),  //
    row<2, 2, kOut>(), row<2, 2, kOutAndImages>(), row<2, 2, kImages>(), row<2, 2, kSegment>(),  //
    row<4, 2, kOut>(), row<4, 2, kOutAndImages>(), row<4, 2, kImages>(),                         //
};

void run(const KdaProblem& problem, KdaRecurrenceParams params, int num_sequences, KdaRecurrenceResult result,
         cudaStream_t stream) {
  const int64_t panels = num_sequences * problem.value_heads * params.work_panels;
  if (panels == 0) return;
  // 64 columns of V a block, so that more multiprocessors work, unless they do not all find room at once: then 128, for
  // which the records are read once. From three turns on 64 again: their turns are shorter and fill up the last one.
  const int64_t room = multiprocessor_count(kOperation);
  const bool narrow = problem.key_panels == 4 || problem.value_panels == 1 || params.work_panels % 2 != 0 ||
                      panels <= room || panels > 2 * room;
  const int value_parts = narrow ? 1 : 2;
  for (const Kernel& kernel : kKernels) {
    if (kernel.key_panels != problem.key_panels || kernel.value_parts != value_parts || kernel.result != result)
      continue;
    params.num_works = static_cast<int32_t>(panels / value_parts);
    // Blocks of one work each go to whichever multiprocessor is free. Where no work is longer than half of what a
    // multiprocessor has to do, shares that are fixed are even enough, and nothing ends or begins between works.
    const int64_t chunks = problem.value_heads * params.work_panels / value_parts * problem.num_chunks;
    const bool stays = kernel.several_works && 2 * problem.most_chunks * room <= chunks;
    const int64_t blocks = stays ? std::min<int64_t>(params.num_works, room) : params.num_works;
    check_cuda(kernel.run(params, static_cast<int>(blocks), stream), kOperation, "launch");
    return;
  }
  throw Error(ErrorCode::kInternal, concat(kOperation, ": no recurrence for ", problem.key_dim, " keys"));
}

// The states of all segments with values first, those of a transition behind the others.
KdaStates segment_view(const KdaProblem& problem, float* segment_states) {
  const int64_t keys = problem.key_panels * kPanelColumns, values = problem.value_panels * kPanelColumns + keys;
  KdaStates states;
  states.data = segment_states;
  states.sequence_stride = problem.value_heads * values * keys;
  states.head_stride = values * keys;
  states.key_stride = 1;
  states.value_stride = keys;
  states.key_dim = static_cast<int32_t>(keys);
  states.value_dim = static_cast<int32_t>(values);
  return states;
}

}  // namespace

void launch_kda_recurrence(const KdaProblem& problem, const void* records, const TensorView& initial_state,
                           const TensorView& out, const TensorView& final_state, const TensorView& chunk_states,
                           void* state_images, void* e_images, float* segment_states, cudaStream_t stream) {
  KdaRecurrenceParams params{};
  params.records = static_cast<const uint8_t*>(records);
  params.chunks = problem.chunks;
  params.sequences = problem.sequences;
  params.initial_state = KdaStates(initial_state, problem.options->state_vk);
  params.final_state = KdaStates(final_state, problem.options->state_vk);
  params.chunk_states = KdaStates(chunk_states, problem.options->state_vk);
  if (problem.num_chunks > 0) params.tensor_map_v = make_rows_map(kOperation, problem.v, problem.tokens, kKdaChunkRows);
  params.v = problem.v.as<const uint16_t>();
  params.v_batch_stride = problem.v.strides[0];
  params.v_token_stride = problem.v.strides[1];
  params.v_head_stride = problem.v.strides[2];
  const bool with_out = out && problem.num_chunks > 0;
  if (with_out) params.out.map = make_rows_map(kOperation, out, problem.tokens, kKdaChunkRows);
  params.out.data = out.as<uint16_t>();
  params.out.tokens = problem.tokens;
  params.out.value_heads = static_cast<int32_t>(problem.value_heads);
  params.out.value_dim = static_cast<int32_t>(problem.value_dim);
  params.state_images = static_cast<uint8_t*>(state_images);
  params.e_images = static_cast<uint8_t*>(e_images);
  params.value_heads = static_cast<int32_t>(problem.value_heads);
  params.value_dim = static_cast<int32_t>(problem.value_dim);
  params.value_panels = problem.value_panels;
  params.work_panels = problem.value_panels;
  const KdaRecurrenceResult result = !with_out ? kImages : state_images ? kOutAndImages : kOut;
  const KdaSegments& segments = problem.segments;
  if (segments.count == 0) {
    run(problem, params, problem.num_sequences, result, stream);
    return;
  }
  KdaRecurrenceParams transitions = params;
  transitions.sequences = segments.transitions;
  transitions.final_state = segment_view(problem, segment_states);
  transitions.work_panels += problem.key_panels;
  run(problem, transitions, segments.num_transitions, kSegment, stream);
  launch_kda_combine(problem, initial_state, segment_states, stream);
  params.sequences = segments.runs;
  params.initial_state = segment_view(problem, segment_states);
  run(problem, params, segments.count, result, stream);
}

}  // namespace warpgrad::cuda::sm90
