#pragma once

#include <cuda.h>

#include <cstddef>

namespace warpgrad::cuda::sm90 {

// A map of each of the operands that an enumeration names, the last of its names being kCount, encoded again only for
// another address. All else that makes up the maps must stay the same.
template <class Operand>
class TensorMapCache {
 public:
  template <class Encode>
  const CUtensorMap& get(Operand operand, const void* address, Encode encode) {
    Entry& entry = entries_[static_cast<size_t>(operand)];
    if (entry.address != address) {
      entry.map = encode();
      entry.address = address;
    }
    return entry.map;
  }

 private:
  struct Entry {
    const void* address = nullptr;
    CUtensorMap map;
  };
  Entry entries_[static_cast<size_t>(Operand::kCount)];
};

}  // namespace warpgrad::cuda::sm90
