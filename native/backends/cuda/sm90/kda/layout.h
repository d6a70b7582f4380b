#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#define WG_HOST_DEVICE __host__ __device__
#else
#define WG_HOST_DEVICE
#endif

// How the KDA kernels hand matrices to each other through device memory. Every matrix is stored as the image that it
// has in shared memory, so that one plain bulk copy brings it there: panels of 64 rows x 64 columns of bfloat16, 128
// bytes a row, in which the 16-byte unit u of row r stands at u ^ (r & 7). Dimensions are padded to whole panels with
// zeros.
namespace warpgrad::cuda::sm90 {

constexpr int kKdaChunkRows = 64;
constexpr int kKdaPanelBytes = 64 * 64 * 2;

// T and Aqk, lower triangular [64, 64]: panels of 16 columns, 32 bytes a row, each from its own 16 rows on; the 16-byte
// unit u of row r stands at u ^ (r >> 2 & 1) (a swizzle of 32 bytes). In shared memory all panels have room for 64
// rows.
constexpr int kKdaTrianglePanelBytes = 64 * 32;
WG_HOST_DEVICE constexpr int kda_triangle_panel(int panel) {
  return kKdaTrianglePanelBytes * panel - 256 * panel * (panel - 1);
}
constexpr int kKdaTriangleBytes = kda_triangle_panel(4);

// What the preparation makes of one (chunk, value head) for the recurrences; docs/kda.md names the matrices.
struct KdaRecordLayout {
  int key_panels;  // of 64 columns

  WG_HOST_DEVICE constexpr int kd() const { return 0; }                                    // Kd   [64, K]
  WG_HOST_DEVICE constexpr int kr() const { return key_panels * kKdaPanelBytes; }          // Kr   [64, K]
  WG_HOST_DEVICE constexpr int t() const { return 2 * key_panels * kKdaPanelBytes; }       // T    [64, 64]
  WG_HOST_DEVICE constexpr int qd() const { return t() + kKdaTriangleBytes; }              // Qd   [64, K]
  WG_HOST_DEVICE constexpr int aqk() const { return qd() + key_panels * kKdaPanelBytes; }  // Aqk  [64, 64]
  WG_HOST_DEVICE constexpr int decay() const { return aqk() + kKdaTriangleBytes; }         // exp(G_C), float32 [K]
  // The factors that the rows of q and k were multiplied by (1 without the L2 norm; not the scale), and beta: float32
  // [64]
  WG_HOST_DEVICE constexpr int q_norm() const { return decay() + key_panels * 256; }
  WG_HOST_DEVICE constexpr int k_norm() const { return q_norm() + 256; }
  WG_HOST_DEVICE constexpr int beta() const { return k_norm() + 256; }
  WG_HOST_DEVICE constexpr int bytes() const { return beta() + 256; }
};

// The other images, of one (chunk, value head) each:
//   E                                       [value panel][64 tokens, 64 values]
//   S and dS, transposed: the state at the start of the chunk and the gradient of the state at its end
//                                           [value panel][key panel][64 values, 64 keys]
WG_HOST_DEVICE constexpr size_t kda_e_bytes(int value_panels) {
  return size_t(value_panels) * kKdaPanelBytes;
}
WG_HOST_DEVICE constexpr size_t kda_state_bytes(int key_panels, int value_panels) {
  return size_t(key_panels) * value_panels * kKdaPanelBytes;
}
// Images of all chunks and heads: [chunk][value head].

// Up to 64 tokens of one sequence. Chunks are numbered through the sequences in order, as in ops/kda.h.
struct KdaChunk {
  int32_t batch, token;  // of the first row, in [B, T]
  int32_t rows;          // 1 to 64
  int32_t sequence;
};

// What a recurrence goes through in one go: a sequence, or a segment of one. They stand in the order in which the
// recurrences start on them: the longest first.
struct KdaSequence {
  int32_t first_chunk, num_chunks;     // none when empty
  int32_t initial_state, final_state;  // their numbers; -1: it has none
};

// Segments of a sequence, whose states are numbered from `first_segment` on.
struct KdaSegmented {
  int32_t sequence;
  int32_t first_segment, num_segments;
};

}  // namespace warpgrad::cuda::sm90
