#pragma once

// From a plain .cc unit to the copy of a function that suits the processor:
//
//   WARPGRAD_DECLARE_ISA(void scale(float* x, int64_t n);)              // in namespace warpgrad::cpu
//   WARPGRAD_SELECT_ISA(context.isa(), scale)(x, n);

#include "backends/cpu/runtime/isa.h"

#if defined(__x86_64__)
#define WARPGRAD_DECLARE_ISA(...) \
  namespace isa_plain {           \
  __VA_ARGS__                     \
  }                               \
  namespace isa_avx2 {            \
  __VA_ARGS__                     \
  }                               \
  namespace isa_avx512 {          \
  __VA_ARGS__                     \
  }                               \
  namespace isa_avx512bf16 {      \
  __VA_ARGS__                     \
  }
#define WARPGRAD_SELECT_ISA(isa, function)                                                        \
  ::warpgrad::cpu::select_isa(isa, isa_plain::function, isa_avx2::function, isa_avx512::function, \
                              isa_avx512bf16::function)
// What *.amx.cc units define besides; elsewhere those processors use the functions for avx512bf16.
#define WARPGRAD_DECLARE_AMX(...) \
  namespace isa_amx {             \
  __VA_ARGS__                     \
  }
#define WARPGRAD_SELECT_AMX(amx, isa, function) ((amx) ? isa_amx::function : WARPGRAD_SELECT_ISA(isa, function))
#else
#define WARPGRAD_DECLARE_ISA(...) \
  namespace isa_plain {           \
  __VA_ARGS__                     \
  }
#define WARPGRAD_SELECT_ISA(isa, function) (isa_plain::function)
#define WARPGRAD_DECLARE_AMX(...)
#define WARPGRAD_SELECT_AMX(amx, isa, function) WARPGRAD_SELECT_ISA(isa, function)
#endif

namespace warpgrad::cpu {

template <class Function>
Function* select_isa(Isa isa, Function* plain, Function* avx2, Function* avx512, Function* avx512bf16) {
  switch (isa) {
    case Isa::kPlain: return plain;
    case Isa::kAvx2: return avx2;
    case Isa::kAvx512: return avx512;
    case Isa::kAvx512Bf16: return avx512bf16;
    case Isa::kAvx512Amx: return avx512bf16;
  }
  return plain;
}

}  // namespace warpgrad::cpu
