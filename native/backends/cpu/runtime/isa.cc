#include "backends/cpu/runtime/isa.h"

#include "core/check.h"

namespace warpgrad::cpu {

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kPlain: return "plain";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx512: return "avx512";
    case Isa::kAvx512Bf16: return "avx512bf16";
  }
  return "unknown";
}

Isa detect_isa() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (avx512 && __builtin_cpu_supports("avx512bf16")) return Isa::kAvx512Bf16;
  if (avx512) return Isa::kAvx512;
  if (avx2) return Isa::kAvx2;
#endif
  return Isa::kPlain;
}

Isa parse_isa(const std::string& name) {
  for (Isa isa : {Isa::kPlain, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
    if (name != isa_name(isa)) continue;
    const Isa best = detect_isa();
    WG_CHECK(isa <= best, ErrorCode::kUnsupported, "this processor has ", isa_name(best), " at most, not ", name);
    return isa;
  }
  throw Error(ErrorCode::kUnsupported, concat("expected plain, avx2, avx512 or avx512bf16, got ", name));
}

}  // namespace warpgrad::cpu
