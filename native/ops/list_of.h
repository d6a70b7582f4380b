#pragma once

#include <sstream>
#include <string>

namespace warpgrad::ops {

// The first `count` values as messages show them: [2, 128, 8, 64].
template <class Values>
std::string list_of(const Values& values, int count) {
  std::ostringstream stream;
  stream << '[';
  for (int i = 0; i < count; ++i) stream << (i > 0 ? ", " : "") << values[i];
  stream << ']';
  return stream.str();
}

}  // namespace warpgrad::ops
