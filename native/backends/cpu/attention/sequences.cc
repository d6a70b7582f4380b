#include "backends/cpu/attention/sequences.h"

#include <cmath>
#include <cstring>

namespace warpgrad::cpu::attention {

Format format_for(DType dtype, Isa isa) {
  const bool pairs = dtype == DType::kBFloat16 && isa >= Isa::kAvx512Bf16;
  return {dtype, pairs, pairs && isa == Isa::kAvx512Amx};
}

ScoreMap make_score_map(const ops::AttentionOptions& options) {
  constexpr double kLog2E = 1.44269504088896340736;
  const float sign = options.scale > 0 ? 1.0f : (options.scale < 0 ? -1.0f : 0.0f);
  const double scale = options.scale == 0 ? 1.0 : std::fabs(static_cast<double>(options.scale));
  if (options.softcap > 0) {
    return {sign, static_cast<float>(scale / options.softcap), static_cast<float>(options.softcap * kLog2E)};
  }
  return {sign, static_cast<float>(scale * kLog2E), 0};
}

void clear_unused_rows(const TensorView& tensor, int64_t used_rows) {
  if (tensor.rank != 3) return;
  const int64_t row_bytes = tensor.shape[1] * tensor.shape[2] * static_cast<int64_t>(dtype_bytes(tensor.dtype));
  std::memset(tensor.as<char>() + used_rows * row_bytes, 0, (tensor.shape[0] - used_rows) * row_bytes);
}

}  // namespace warpgrad::cpu::attention
