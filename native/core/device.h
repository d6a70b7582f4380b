#pragma once

#include <cstdint>

namespace warpgrad {

enum class DeviceType : uint8_t { kCpu, kCuda };

struct Device {
  DeviceType type = DeviceType::kCpu;
  int index = 0;

  friend bool operator==(const Device& a, const Device& b) { return a.type == b.type && a.index == b.index; }
};

}  // namespace warpgrad
