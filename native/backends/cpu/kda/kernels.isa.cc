// The table of this instruction set.

#include "backends/cpu/kda/chunk_units.h"

namespace warpgrad::cpu::WARPGRAD_ISA {

extern const kda::Kernels kda_kernels;
const kda::Kernels kda_kernels = {kda_prepare,     kda_forward_step,  kda_keep_T,          kda_load_state,
                                  kda_store_state, kda_load_d_out,    kda_backward_rows,   kda_backward_state,
                                  kda_gradients,   kda_token_adjoint, kda_token_gradients, kda_store_qk_gradients};

}  // namespace warpgrad::cpu::WARPGRAD_ISA
