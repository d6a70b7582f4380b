#include "backends/cpu/attention/backward_keys.h"

namespace warpgrad::cpu::WARPGRAD_ISA {

int64_t backward_workspace_elems(Format format, HeadShape shape, int64_t num_keys) {
#if defined(__AVX512BF16__)
  if (format.pairs) return Workspace<PairProducts>(shape, num_keys, nullptr).elems;
#endif
  return Workspace<FloatProducts>(shape, num_keys, nullptr).elems;
}

void backward_keys(const BackwardTask& task) {
#if defined(__AVX512BF16__)
  if (task.format.pairs) return BackwardKeys<PairProducts>(task).run();
#endif
  BackwardKeys<FloatProducts>(task).run();
}

// lse in units of log2. From 2^23 on float32 has whole numbers only, and the roundings of a score and of lse differ by
// several: lower by more than that, so that the largest score has P = 1, its limit, and not the power of a rounding.
static float lse_in_log2(float lse) {
  if (lse == -__builtin_inff()) return __builtin_inff();
  const float lse_log2 = lse * kLog2E;
  if (__builtin_fabsf(lse_log2) < 0x1p23f) return lse_log2;
  return lse_log2 * (lse_log2 > 0 ? 1 - 0x1p-21f : 1 + 0x1p-21f);
}

void backward_prepare(const PrepareTask& task) {
  with_source({task.dtype, false, false}, [&](auto source) __attribute__((always_inline)) {
    using Element = typename decltype(source)::Element;
    float d_sink = 0;
    for (int64_t row = task.row; row < task.row + task.num_rows; ++row) {
      const Element* d_out = static_cast<const Element*>(task.d_out.data) + row * task.d_out.stride;
      const Element* out = static_cast<const Element*>(task.out.data) + row * task.out.stride;
      Vec sum{};
      for (int64_t i = 0; i < task.dv; i += kLanes) {
        sum = fma(decltype(source)::words(d_out, i, task.dv), decltype(source)::words(out, i, task.dv), sum);
      }
      const float delta = reduce_add(sum);
      const float lse = task.lse[row];
      task.delta[row] = delta;
      task.lse_log2[row] = lse_in_log2(lse);
      // A row that sees neither a key nor a sink has no weights, and not the power of -inf + inf.
      if (task.d_sink == nullptr || lse == -__builtin_inff()) continue;
      d_sink -= exp(min(splat(0.0f), splat(task.sink - lse)))[0] * delta;
    }
    if (task.d_sink != nullptr) *task.d_sink = d_sink;
  });
}

}  // namespace warpgrad::cpu::WARPGRAD_ISA
