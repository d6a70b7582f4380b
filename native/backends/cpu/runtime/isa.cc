#include "backends/cpu/runtime/isa.h"

#include "core/check.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace warpgrad::cpu {
namespace {

// AMX with bfloat16, tile registers that the system saves, and its leave to use them, which holds for all threads of
// the process. https://docs.kernel.org/arch/x86/xstate.html
bool may_use_amx() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;  // CPUID leaf 7, edx
  constexpr unsigned kTileState = 1u << 17 | 1u << 18;          // XCR0: configuration and data
  constexpr int kRequestPermission = 0x1023, kTileData = 18;    // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
  if ((edx & kAmxBf16) == 0 || (edx & kAmxTile) == 0) return false;
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & kTileState) == kTileState && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

}  // namespace

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kPlain: return "plain";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx512: return "avx512";
    case Isa::kAvx512Bf16: return "avx512bf16";
    case Isa::kAvx512Amx: return "amx";
  }
  return "unknown";
}

Isa detect_isa() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
  if (bf16 && may_use_amx()) return Isa::kAvx512Amx;
  if (bf16) return Isa::kAvx512Bf16;
  if (avx512) return Isa::kAvx512;
  if (avx2) return Isa::kAvx2;
#endif
  return Isa::kPlain;
}

Isa parse_isa(const std::string& name) {
  for (Isa isa : {Isa::kPlain, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAvx512Amx}) {
    if (name != isa_name(isa)) continue;
    const Isa best = detect_isa();
    WG_CHECK(isa <= best, ErrorCode::kUnsupported, "this processor has ", isa_name(best), " at most, not ", name);
    return isa;
  }
  throw Error(ErrorCode::kUnsupported, concat("expected plain, avx2, avx512, avx512bf16 or amx, got ", name));
}

}  // namespace warpgrad::cpu
