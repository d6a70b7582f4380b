#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace warpgrad::cuda {

struct DeviceInfo {
  int index = 0;
  std::string name;
  int compute_capability_major = 0;
  int compute_capability_minor = 0;
  uint64_t memory_bytes = 0;
};

struct ProbeResult {
  int driver_version = 0;  // as CUDA writes it: 13000 for 13.0; 0 without a driver
  std::string reason;      // why there are no devices; empty when there are
  std::vector<DeviceInfo> devices;
};

// Looks for the NVIDIA driver and its devices without linking against anything of CUDA. Makes no context.
ProbeResult probe();

}  // namespace warpgrad::cuda
