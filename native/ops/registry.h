#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/device.h"
#include "ops/backend.h"

namespace warpgrad::ops {

// A GPU as the driver names it, and whether this build can use it.
struct GpuInfo {
  int index = 0;
  std::string name;
  int compute_capability_major = 0;
  int compute_capability_minor = 0;
  uint64_t memory_bytes = 0;
  std::string unusable_because;  // empty when usable
};

struct GpuReport {
  bool compiled = false;   // whether this build has GPU kernels
  int driver_version = 0;  // 13000 for 13.0; 0 without a driver
  std::string reason;      // why there is no GPU; empty when there is one
  std::vector<GpuInfo> devices;
};

GpuReport gpu_report();

// The backends of one environment (a Node main thread or worker thread), each made when first asked for.
class Registry {
 public:
  Registry(int cpu_threads, std::string cpu_isa);  // "auto": the processor's best; checked here
  ~Registry();

  Backend& backend(Device device);

  void configure_cpu(int threads, const std::string& isa);
  int cpu_threads() const;
  std::string cpu_isa() const;                 // the one in use
  static std::vector<std::string> cpu_isas();  // all that this processor has
  double cpu_micro_kernel_gflops(DType dtype);

  void shut_down();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace warpgrad::ops
