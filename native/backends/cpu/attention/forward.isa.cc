#include "backends/cpu/attention/forward_rows.h"

namespace warpgrad::cpu::WARPGRAD_ISA {

int forward_block_rows() {
  return kMicroColumns;
}

void forward_block(const ForwardBlock& block) {
#if defined(__AVX512BF16__)
  if (block.format.pairs) return run_block<PairProducts>(block);
#endif
  run_block<FloatProducts>(block);
}

void pack_keys(Format format, Rows keys, int64_t begin, int64_t end, int64_t elems, void* packed) {
  const int64_t ld = words_of(format, elems);
  with_source(format, [&](auto source) __attribute__((always_inline)) {
    pack_rows<decltype(source)>(keys, begin, end - begin, elems, static_cast<float*>(packed) + begin * ld, ld);
  });
}

// begin must be even in pairs.
void pack_values(Format format, Rows values, int64_t begin, int64_t end, int64_t elems, void* packed) {
  with_source(format, [&](auto source) __attribute__((always_inline)) {
    float* to = static_cast<float*>(packed) + begin / decltype(source)::kPerWord * elems;
    pack_summed_rows<decltype(source)>(values, begin, end - begin, elems, to, elems);
  });
}

}  // namespace warpgrad::cpu::WARPGRAD_ISA
