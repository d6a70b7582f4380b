#include "ops/registry.h"

#include <map>
#include <utility>

#include "backends/cpu/backend.h"
#include "backends/cuda/probe.h"
#include "core/check.h"
#ifdef WARPGRAD_WITH_CUDA
#include "backends/cuda/backend.h"
#endif

namespace warpgrad::ops {

namespace {

#ifdef WARPGRAD_WITH_CUDA
constexpr bool kCompiled = true;
#else
constexpr bool kCompiled = false;
#endif
constexpr const char* kNoKernels = "this build has no GPU kernels";
constexpr int kMinDriverVersion = 13000;  // of the CUDA runtime that is linked in

// Why a device can't be used, or an empty string.
std::string unusable_because(const cuda::ProbeResult& probed, const cuda::DeviceInfo& device) {
  if (!kCompiled) return kNoKernels;
  if (device.compute_capability_major != 9 || device.compute_capability_minor != 0) {
    return concat("its compute capability is ", device.compute_capability_major, ".", device.compute_capability_minor,
                  "; the kernels are for 9.0 (Hopper)");
  }
  if (probed.driver_version < kMinDriverVersion) {
    return concat("the driver supports CUDA ", probed.driver_version / 1000, ".", probed.driver_version % 1000 / 10,
                  "; CUDA 13.0 or later is needed (driver 580 or later)");
  }
  return "";
}

cpu::Isa resolve_isa(const std::string& name) {
  return name == "auto" ? cpu::detect_isa() : cpu::parse_isa(name);
}

}  // namespace

struct Registry::Impl {
  int cpu_threads;
  cpu::Isa cpu_isa;
  std::unique_ptr<cpu::CpuBackend> cpu;
  std::map<int, std::unique_ptr<Backend>> gpus;

  cpu::CpuBackend& cpu_backend() {
    if (!cpu) cpu = std::make_unique<cpu::CpuBackend>(cpu_threads, cpu_isa);
    return *cpu;
  }

  Backend& gpu_backend(int index) {
#ifdef WARPGRAD_WITH_CUDA
    std::unique_ptr<Backend>& backend = gpus[index];
    if (!backend) backend = std::make_unique<cuda::CudaBackend>(index);
    return *backend;
#else
    throw Error(ErrorCode::kUnsupported, kNoKernels);
#endif
  }
};

Registry::Registry(int cpu_threads, std::string cpu_isa)
    : impl_(std::make_unique<Impl>(Impl{cpu_threads, resolve_isa(cpu_isa), nullptr, {}})) {}

Registry::~Registry() = default;

Backend& Registry::backend(Device device) {
  if (device.type == DeviceType::kCpu) return impl_->cpu_backend();
  return impl_->gpu_backend(device.index);
}

void Registry::configure_cpu(int threads, const std::string& isa) {
  const cpu::Isa resolved = resolve_isa(isa);
  if (impl_->cpu) impl_->cpu->configure(threads, resolved);
  impl_->cpu_threads = threads;
  impl_->cpu_isa = resolved;
}

int Registry::cpu_threads() const {
  return impl_->cpu_threads;
}

std::string Registry::cpu_isa() const {
  return cpu::isa_name(impl_->cpu_isa);
}

std::vector<std::string> Registry::cpu_isas() {
  std::vector<std::string> names;
  for (int isa = 0; isa <= static_cast<int>(cpu::detect_isa()); ++isa) {
    names.push_back(cpu::isa_name(static_cast<cpu::Isa>(isa)));
  }
  return names;
}

double Registry::cpu_micro_kernel_gflops(DType dtype) {
  return impl_->cpu_backend().micro_kernel_gflops(dtype);
}

void Registry::shut_down() {
  for (auto& [index, backend] : impl_->gpus) {
    if (backend) backend->shut_down();
  }
  if (impl_->cpu) impl_->cpu->shut_down();
}

GpuReport gpu_report() {
  const cuda::ProbeResult probed = cuda::probe();
  GpuReport report{kCompiled, probed.driver_version, probed.reason, {}};
  for (const cuda::DeviceInfo& device : probed.devices) {
    report.devices.push_back({device.index, device.name, device.compute_capability_major,
                              device.compute_capability_minor, device.memory_bytes, unusable_because(probed, device)});
  }
  return report;
}

}  // namespace warpgrad::ops
