#include <napi.h>

#include "binding/environment.h"
#include "binding/operations.h"
#include "binding/stream_handle.h"
#include "binding/tensor_handle.h"
#include "core/check.h"

namespace warpgrad::binding {

namespace {

// initialize(cpuThreads, cpuIsa): once an environment, before anything else.
Napi::Value initialize(const Napi::CallbackInfo& info) {
  return guarded(info, [&] {
    Environment::of(info.Env())
        .initialize(info[0].As<Napi::Number>().Int32Value(), info[1].As<Napi::String>().Utf8Value());
    return info.Env().Undefined();
  });
}

// configureCpu(threads, isa): blocks until queued work is done.
Napi::Value configure_cpu(const Napi::CallbackInfo& info) {
  return guarded(info, [&] {
    Environment::of(info.Env())
        .registry()
        .configure_cpu(info[0].As<Napi::Number>().Int32Value(), info[1].As<Napi::String>().Utf8Value());
    return info.Env().Undefined();
  });
}

Napi::Value cpu_info(const Napi::CallbackInfo& info) {
  return guarded(info, [&]() -> Napi::Value {
    const Napi::Env env = info.Env();
    const ops::Registry& registry = Environment::of(env).registry();
    const std::vector<std::string> isas = ops::Registry::cpu_isas();
    Napi::Array names = Napi::Array::New(env, isas.size());
    for (size_t i = 0; i < isas.size(); ++i) names.Set(static_cast<uint32_t>(i), Napi::String::New(env, isas[i]));
    Napi::Object result = Napi::Object::New(env);
    result.Set("threads", registry.cpu_threads());
    result.Set("instructionSet", registry.cpu_isa());
    result.Set("instructionSets", names);
    return result;
  });
}

Napi::Value gpu_info(const Napi::CallbackInfo& info) {
  return guarded(info, [&]() -> Napi::Value {
    const Napi::Env env = info.Env();
    const ops::GpuReport report = ops::gpu_report();
    Napi::Array devices = Napi::Array::New(env, report.devices.size());
    for (size_t i = 0; i < report.devices.size(); ++i) {
      const ops::GpuInfo& gpu = report.devices[i];
      Napi::Object device = Napi::Object::New(env);
      device.Set("index", gpu.index);
      device.Set("name", gpu.name);
      device.Set("computeCapability", concat(gpu.compute_capability_major, ".", gpu.compute_capability_minor));
      device.Set("memoryBytes", static_cast<double>(gpu.memory_bytes));
      device.Set("unusableBecause", gpu.unusable_because);
      devices.Set(static_cast<uint32_t>(i), device);
    }
    Napi::Object result = Napi::Object::New(env);
    result.Set("compiled", report.compiled);
    result.Set("driverVersion", report.driver_version);
    result.Set("reason", report.reason);
    result.Set("devices", devices);
    return result;
  });
}

// memoryStats(isCuda, deviceIndex)
Napi::Value memory_stats(const Napi::CallbackInfo& info) {
  return guarded(info, [&]() -> Napi::Value {
    const Device device{info[0].As<Napi::Boolean>() ? DeviceType::kCuda : DeviceType::kCpu,
                        info[1].As<Napi::Number>().Int32Value()};
    const MemoryStats stats = Environment::of(info.Env()).registry().backend(device).memory_stats();
    Napi::Object result = Napi::Object::New(info.Env());
    result.Set("liveBytes", static_cast<double>(stats.live_bytes));
    result.Set("peakBytes", static_cast<double>(stats.peak_bytes));
    result.Set("allocations", static_cast<double>(stats.allocations));
    return result;
  });
}

// microKernelGflops(dtype): blocks for about a tenth of a second.
Napi::Value micro_kernel_gflops(const Napi::CallbackInfo& info) {
  return guarded(info, [&]() -> Napi::Value {
    const DType dtype = read_dtype(info[0]);
    return Napi::Number::New(info.Env(), Environment::of(info.Env()).registry().cpu_micro_kernel_gflops(dtype));
  });
}

Napi::FunctionReference export_class(Napi::Object exports, const char* name, Napi::Function constructor) {
  exports.Set(name, constructor);
  return Napi::Persistent(constructor);
}

Napi::Object init(Napi::Env env, Napi::Object exports) {
  auto* environment = new Environment(env);
  env.SetInstanceData(environment);
  environment->stream_constructor = export_class(exports, "NativeStream", StreamHandle::define(env));
  environment->event_constructor = export_class(exports, "NativeEvent", EventHandle::define(env));
  environment->graph_constructor = export_class(exports, "NativeGraph", GraphHandle::define(env));
  exports.Set("initialize", Napi::Function::New(env, initialize));
  exports.Set("configureCpu", Napi::Function::New(env, configure_cpu));
  exports.Set("cpuInfo", Napi::Function::New(env, cpu_info));
  exports.Set("gpuInfo", Napi::Function::New(env, gpu_info));
  exports.Set("memoryStats", Napi::Function::New(env, memory_stats));
  exports.Set("microKernelGflops", Napi::Function::New(env, micro_kernel_gflops));
  define_tensors(env, exports);
  define_operations(env, exports);
  return exports;
}

}  // namespace

NODE_API_MODULE(warpgrad, init)

}  // namespace warpgrad::binding
