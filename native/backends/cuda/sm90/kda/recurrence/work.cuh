#pragma once

#include "backends/cuda/sm90/kda/recurrence/params.h"

namespace warpgrad::cuda::sm90 {

// What a block goes through in one go: a block has one or several, one after the other.
struct KdaRecurrenceWork {
  int first_chunk, num_chunks;
  int sequence, head;  // the place in the table; its states are looked up where they are used, to spare registers
  int value_panel;     // of the first warpgroup; those of a transition follow the others
};

// The works of a (sequence, value head) are neighbours, so that they share its records in the L2 cache.
template <class Config>
__device__ __forceinline__ KdaRecurrenceWork work_of(const KdaRecurrenceParams& params, int index) {
  const int splits = params.work_panels / Config::kValueParts;
  const int pair = index / splits;
  const int place = pair / params.value_heads;
  const KdaSequence& sequence = params.sequences[place];
  return {sequence.first_chunk, sequence.num_chunks, place, pair % params.value_heads,
          index % splits * Config::kValueParts};
}

}  // namespace warpgrad::cuda::sm90
