#include "backends/cuda/probe.h"

#include <dlfcn.h>

#include "core/check.h"

namespace warpgrad::cuda {

namespace {

// From the CUDA driver API's documentation; the values are part of its binary interface.
constexpr int kSuccess = 0;
constexpr int kAttributeComputeCapabilityMajor = 75;
constexpr int kAttributeComputeCapabilityMinor = 76;

template <class Function>
Function* find(void* library, const char* symbol) {
  return reinterpret_cast<Function*>(dlsym(library, symbol));
}

}  // namespace

ProbeResult probe() {
  ProbeResult result;
  // Never closed: the driver does not survive being unloaded.
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    result.reason = "no NVIDIA driver: libcuda.so.1 was not found";
    return result;
  }
  const auto init = find<int(unsigned)>(library, "cuInit");
  const auto driver_version = find<int(int*)>(library, "cuDriverGetVersion");
  const auto device_count = find<int(int*)>(library, "cuDeviceGetCount");
  const auto device_get = find<int(int*, int)>(library, "cuDeviceGet");
  const auto device_name = find<int(char*, int, int)>(library, "cuDeviceGetName");
  const auto device_attribute = find<int(int*, int, int)>(library, "cuDeviceGetAttribute");
  const auto total_memory = find<int(size_t*, int)>(library, "cuDeviceTotalMem_v2");
  if (!init || !driver_version || !device_count || !device_get || !device_name || !device_attribute || !total_memory) {
    result.reason = "the NVIDIA driver library libcuda.so.1 lacks functions of the driver API";
    return result;
  }
  driver_version(&result.driver_version);
  if (const int status = init(0); status != kSuccess) {
    result.reason = concat("the NVIDIA driver could not be initialised: cuInit gave status ", status);
    return result;
  }
  int count = 0;
  device_count(&count);
  for (int index = 0; index < count; ++index) {
    int device = 0;
    if (device_get(&device, index) != kSuccess) continue;
    DeviceInfo info;
    info.index = index;
    char name[256] = {};
    device_name(name, sizeof(name), device);
    info.name = name;
    device_attribute(&info.compute_capability_major, kAttributeComputeCapabilityMajor, device);
    device_attribute(&info.compute_capability_minor, kAttributeComputeCapabilityMinor, device);
    size_t bytes = 0;
    total_memory(&bytes, device);
    info.memory_bytes = bytes;
    result.devices.push_back(info);
  }
  if (result.devices.empty()) result.reason = "the NVIDIA driver reports no device";
  return result;
}

}  // namespace warpgrad::cuda
