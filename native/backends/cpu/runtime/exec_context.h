#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

#include "backends/cpu/runtime/isa.h"
#include "backends/cpu/runtime/page_cache.h"
#include "backends/cpu/runtime/thread_pool.h"
#include "core/out_of_memory.h"

namespace warpgrad::cpu {

// Uninitialised memory for a kernel's workspace, aligned to a cache line.
template <class Element>
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t num_elems)
      : data_(static_cast<Element*>(allocate_pages(num_elems * sizeof(Element))), Free{num_elems * sizeof(Element)}),
        num_elems_(num_elems) {
    if (!data_) throw out_of_memory("cpu", num_elems * sizeof(Element), " for the workspace");
  }
  Element* data() const { return data_.get(); }
  size_t size() const { return num_elems_; }

 private:
  struct Free {
    size_t bytes = 0;
    void operator()(Element* pointer) const { free_pages(pointer, bytes); }
  };
  std::unique_ptr<Element[], Free> data_;
  size_t num_elems_ = 0;
};

// What a CPU kernel may use while it runs: the instruction set and the threads.
class ExecContext {
 public:
  ExecContext(Isa isa, ThreadPool& pool, const CancelFlag& cancel) : isa_(isa), pool_(pool), cancel_(cancel) {}

  Isa isa() const { return isa_; }
  int num_threads() const { return pool_.num_threads(); }

  // See ThreadPool::parallel_for.
  void parallel_for(int64_t num_tasks, ThreadPool::Task body) {
    stopped_.store(false);
    pool_.parallel_for(num_tasks, cancel_, stopped_, body);
  }

  // True once a task has failed or the work was cancelled: a task that waits for an earlier one must give up.
  bool stopped() const { return stopped_.load(std::memory_order_relaxed) || cancel_.is_set(); }

 private:
  Isa isa_;
  ThreadPool& pool_;
  const CancelFlag& cancel_;
  std::atomic<bool> stopped_{false};
};

}  // namespace warpgrad::cpu
