#pragma once

// Limits of a Hopper multiprocessor (compute capability 9.0) that kernels are planned against.

namespace warpgrad::cuda::sm90 {

constexpr int kMaxSharedMemoryBytes = 227 * 1024;  // of one block
constexpr int kRegistersPerBlock = 64 * 1024;
constexpr int kWarpThreads = 32;
constexpr int kWarpgroupThreads = 128;
constexpr int kWarpgroupRows = 64;  // rows of one wgmma

}  // namespace warpgrad::cuda::sm90
