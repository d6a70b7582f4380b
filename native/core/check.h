#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace warpgrad {

// Codes are the ones that JavaScript sees (see lib/errors.ts).
enum class ErrorCode {
  kInvalidArgument,  // ERR_OUT_OF_RANGE: a shape, a stride or an option that the operation can't take
  kUnsupported,      // ERR_WARPGRAD_UNSUPPORTED
  kOutOfMemory,      // ERR_WARPGRAD_OUT_OF_MEMORY
  kDeviceFailure,    // ERR_WARPGRAD_DEVICE_FAILURE
  kCancelled,        // ERR_WARPGRAD_CANCELLED: the environment ended while the work was queued
  kInternal,         // ERR_WARPGRAD_INTERNAL: a broken invariant of this library
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

template <class... Parts>
std::string concat(Parts&&... parts) {
  std::ostringstream stream;
  (stream << ... << std::forward<Parts>(parts));
  return stream.str();
}

}  // namespace warpgrad

// WG_CHECK(condition, code, message parts...): throws warpgrad::Error when the condition is false.
#define WG_CHECK(condition, code, ...)                                                  \
  do {                                                                                  \
    if (!(condition)) throw ::warpgrad::Error((code), ::warpgrad::concat(__VA_ARGS__)); \
  } while (false)
