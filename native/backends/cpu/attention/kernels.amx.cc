#include "backends/cpu/attention/backward_keys.h"
#include "backends/cpu/attention/forward_rows.h"
#include "backends/cpu/attention/tile_products.h"

// The kernels with their products in tiles, for bfloat16 on processors with AMX. Everything else that these processors
// do is in the units for avx512bf16.
namespace warpgrad::cpu::WARPGRAD_ISA {

void forward_block(const ForwardBlock& block) {
  const TileScope scope;
  run_block<TileProducts>(block);
}

// begin must be a multiple of kTileKeys, here and in pack_values.
void pack_keys(Format, Rows keys, int64_t begin, int64_t end, int64_t elems, void* packed) {
  pack_row_tiles(keys, begin, end - begin, elems, static_cast<float*>(packed) + begin * tile_words(elems));
}

void pack_values(Format, Rows values, int64_t begin, int64_t end, int64_t elems, void* packed) {
  pack_summed_tiles(values, begin, end - begin, elems, static_cast<float*>(packed) + begin / 2 * tile_rows(elems));
}

int64_t backward_workspace_elems(Format, HeadShape shape, int64_t num_keys) {
  return Workspace<TileProducts>(shape, num_keys, nullptr).elems;
}

void backward_keys(const BackwardTask& task) {
  const TileScope scope;
  BackwardKeys<TileProducts>(task).run();
}

}  // namespace warpgrad::cpu::WARPGRAD_ISA
