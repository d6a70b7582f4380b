#include "ops/registry.h"

#include <utility>

#include "backends/cpu/backend.h"
#include "backends/cuda/probe.h"
#include "core/check.h"

namespace warpgrad::ops {

namespace {

cpu::Isa resolve_isa(const std::string& name) {
  return name == "auto" ? cpu::detect_isa() : cpu::parse_isa(name);
}

}  // namespace

struct Registry::Impl {
  int cpu_threads;
  cpu::Isa cpu_isa;
  std::unique_ptr<cpu::CpuBackend> cpu;

  cpu::CpuBackend& cpu_backend() {
    if (!cpu) cpu = std::make_unique<cpu::CpuBackend>(cpu_threads, cpu_isa);
    return *cpu;
  }
};

Registry::Registry(int cpu_threads, std::string cpu_isa)
    : impl_(std::make_unique<Impl>(Impl{cpu_threads, resolve_isa(cpu_isa), nullptr})) {}

Registry::~Registry() = default;

Backend& Registry::backend(Device device) {
  WG_CHECK(device.type == DeviceType::kCpu, ErrorCode::kUnsupported, "this build has no GPU kernels");
  return impl_->cpu_backend();
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
  if (impl_->cpu) impl_->cpu->shut_down();
}

GpuReport gpu_report() {
  const cuda::ProbeResult probed = cuda::probe();
  GpuReport report{probed.driver_version, probed.reason, {}};
  for (const cuda::DeviceInfo& device : probed.devices) {
    report.devices.push_back({device.index, device.name, device.compute_capability_major,
                              device.compute_capability_minor, device.memory_bytes, "this build has no GPU kernels"});
  }
  return report;
}

}  // namespace warpgrad::ops
