#pragma once

#include <cstdint>

#include "backends/cpu/runtime/exec_context.h"

namespace warpgrad::cpu::attention {

// body(task, worker) for every task. Work of fewer floating-point operations is done sooner by one thread than the
// others would be awake.
constexpr double kSerialOperations = 2e6;

template <class Body>
void run_tasks(ExecContext& context, int64_t num_tasks, bool serial, Body body) {
  if (num_tasks == 0) return;
  if (serial) {
    context.parallel_for(1, [&](int64_t, int) {
      for (int64_t task = 0; task < num_tasks; ++task) body(task, 0);
    });
  } else {
    context.parallel_for(num_tasks, [&](int64_t task, int worker) { body(task, worker); });
  }
}

}  // namespace warpgrad::cpu::attention
