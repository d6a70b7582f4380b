#pragma once

#include <string>

namespace warpgrad::cpu {

// Instruction sets that the kernels are compiled for, each including the ones before it. Only what multiplies bfloat16
// differs between the last two.
enum class Isa { kPlain, kAvx2, kAvx512, kAvx512Bf16, kAvx512Amx };

const char* isa_name(Isa isa);  // "plain", "avx2", "avx512", "avx512bf16", "amx"

// The best one of this processor that the system lets this process use: it asks the system for the tile registers.
Isa detect_isa();

// The one named, for testing each path; throws Error(kUnsupported) if the processor lacks it or the name is unknown.
Isa parse_isa(const std::string& name);

}  // namespace warpgrad::cpu
