#pragma once

// The functions of kda::Kernels for one instruction set; problem.h says what each does.

#include "backends/cpu/kda/problem.h"

namespace warpgrad::cpu::WARPGRAD_ISA {

void kda_prepare(const kda::Problem&, const kda::Chunk&, int64_t head, const float* kept_T, const kda::Prepared&);
void kda_forward_step(const kda::Problem&, const kda::Chunk&, int64_t head, int column_block, const kda::Prepared&,
                      const kda::Kept&, float* S, float* scratch);
void kda_keep_T(const kda::Problem&, const kda::Chunk&, const kda::Prepared&, const kda::Kept&);
void kda_load_state(const kda::Problem&, const kda::Operand&, int64_t index, int64_t head, int column_block, float* S);
void kda_store_state(const kda::Problem&, const kda::Operand&, int64_t index, int64_t head, int column_block,
                     const float* S);
bool kda_load_d_out(const kda::Problem&, const kda::Chunk&, int64_t head, const kda::Prepared&, const kda::Kept&,
                    const kda::ChunkAdjoint&);
void kda_backward_rows(const kda::Problem&, const kda::Chunk&, int64_t head, int column_block, const kda::Prepared&,
                       const kda::ChunkAdjoint&);
void kda_backward_state(const kda::Problem&, const kda::Chunk&, int column_block, const kda::Prepared&,
                        const kda::ChunkAdjoint&);
void kda_gradients(const kda::Problem&, const kda::Chunk&, int64_t head, const kda::Prepared&, const kda::Kept&,
                   const kda::ChunkAdjoint&, float* dq, float* dk, float* partial, float* scratch);
void kda_token_adjoint(const kda::Problem&, const kda::Chunk&, int64_t head, int column_block, const kda::Prepared&,
                       const kda::ChunkAdjoint&);
void kda_token_gradients(const kda::Problem&, const kda::Chunk&, int64_t head, const kda::Prepared&, const kda::Kept&,
                         const kda::ChunkAdjoint&, float* dq, float* dk, float* partial, float* scratch);
void kda_store_qk_gradients(const kda::Problem&, const kda::Chunk&, int64_t qk_head, float* dq, float* dk);

}  // namespace warpgrad::cpu::WARPGRAD_ISA
