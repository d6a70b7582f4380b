#include <algorithm>
#include <chrono>
#include <cstring>

#include "backends/cpu/kernels.h"
#include "backends/cpu/simd/dispatch.h"
#include "core/check.h"

namespace warpgrad::cpu {

WARPGRAD_DECLARE_ISA(void convert_contiguous(DType dst_dtype, void* dst, DType src_dtype, const void* src,
                                             int64_t num_elems);
                     double run_micro_kernel(DType dtype, int64_t repeats, volatile float* sink);)
WARPGRAD_DECLARE_AMX(double run_micro_kernel(DType dtype, int64_t repeats, volatile float* sink);)

namespace {

constexpr int64_t kTaskElems = 1 << 15;  // a few microseconds of copying

// A copy as rows of `inner` elements under the outer dimensions, with neighbouring dimensions merged where both sides
// allow it. Strides are in elements.
struct CopyPlan {
  int rank = 0;  // of the outer dimensions
  std::array<int64_t, kMaxRank> shape{}, dst_strides{}, src_strides{};
  int64_t num_rows = 1;
  int64_t inner = 1, inner_dst_stride = 1, inner_src_stride = 1;
};

CopyPlan plan_copy(const TensorView& dst, const TensorView& src) {
  CopyPlan plan;
  for (int i = 0; i < dst.rank; ++i) {
    if (dst.shape[i] == 1) continue;
    const int last = plan.rank - 1;
    if (plan.rank > 0 && plan.dst_strides[last] == dst.shape[i] * dst.strides[i] &&
        plan.src_strides[last] == dst.shape[i] * src.strides[i]) {
      plan.shape[last] *= dst.shape[i];
      plan.dst_strides[last] = dst.strides[i];
      plan.src_strides[last] = src.strides[i];
    } else {
      plan.shape[plan.rank] = dst.shape[i];
      plan.dst_strides[plan.rank] = dst.strides[i];
      plan.src_strides[plan.rank++] = src.strides[i];
    }
  }
  if (plan.rank > 0) {
    const int last = --plan.rank;
    plan.inner = plan.shape[last];
    plan.inner_dst_stride = plan.dst_strides[last];
    plan.inner_src_stride = plan.src_strides[last];
  }
  for (int i = 0; i < plan.rank; ++i) plan.num_rows *= plan.shape[i];
  return plan;
}

template <class Element>
void copy_strided(void* dst, int64_t dst_stride, const void* src, int64_t src_stride, int64_t count) {
  auto* to = static_cast<Element*>(dst);
  auto* from = static_cast<const Element*>(src);
  for (int64_t i = 0; i < count; ++i) to[i * dst_stride] = from[i * src_stride];
}

void copy_same_dtype(size_t elem_bytes, void* dst, int64_t dst_stride, const void* src, int64_t src_stride,
                     int64_t count) {
  if (dst_stride == 1 && src_stride == 1) {
    std::memcpy(dst, src, count * elem_bytes);
  } else if (elem_bytes == 4) {
    copy_strided<uint32_t>(dst, dst_stride, src, src_stride, count);
  } else {
    copy_strided<uint16_t>(dst, dst_stride, src, src_stride, count);
  }
}

class Copier {
 public:
  Copier(const TensorView& dst, const TensorView& src, Isa isa)
      : plan_(plan_copy(dst, src)), dst_(dst), src_(src), convert_(WARPGRAD_SELECT_ISA(isa, convert_contiguous)) {}

  const CopyPlan& plan() const { return plan_; }

  // Elements [begin, end) in row-major order.
  void copy(int64_t begin, int64_t end) const {
    while (begin < end) {
      int64_t row = begin / plan_.inner;
      const int64_t column = begin % plan_.inner;
      const int64_t count = std::min(end - begin, plan_.inner - column);
      int64_t dst_offset = column * plan_.inner_dst_stride, src_offset = column * plan_.inner_src_stride;
      for (int i = plan_.rank - 1; i >= 0; --i) {
        const int64_t index = row % plan_.shape[i];
        row /= plan_.shape[i];
        dst_offset += index * plan_.dst_strides[i];
        src_offset += index * plan_.src_strides[i];
      }
      copy_part(dst_offset, src_offset, count);
      begin += count;
    }
  }

 private:
  // Part of one row.
  void copy_part(int64_t dst_offset, int64_t src_offset, int64_t count) const {
    const size_t dst_bytes = dtype_bytes(dst_.dtype), src_bytes = dtype_bytes(src_.dtype);
    const int64_t dst_stride = plan_.inner_dst_stride, src_stride = plan_.inner_src_stride;
    char* to = dst_.as<char>() + dst_offset * static_cast<int64_t>(dst_bytes);
    const char* from = src_.as<const char>() + src_offset * static_cast<int64_t>(src_bytes);
    if (dst_.dtype == src_.dtype) {
      copy_same_dtype(dst_bytes, to, dst_stride, from, src_stride, count);
    } else if (dst_stride == 1 && src_stride == 1) {
      convert_(dst_.dtype, to, src_.dtype, from, count);
    } else {
      convert_strided(to, from, count);
    }
  }

  // Through buffers: gather, convert, scatter.
  void convert_strided(char* to, const char* from, int64_t count) const {
    constexpr int64_t kBufferElems = 512;
    uint32_t gathered[kBufferElems], converted[kBufferElems];
    const int64_t dst_step = plan_.inner_dst_stride * static_cast<int64_t>(dtype_bytes(dst_.dtype));
    const int64_t src_step = plan_.inner_src_stride * static_cast<int64_t>(dtype_bytes(src_.dtype));
    for (int64_t i = 0; i < count; i += kBufferElems) {
      const int64_t part = std::min(kBufferElems, count - i);
      copy_same_dtype(dtype_bytes(src_.dtype), gathered, 1, from + i * src_step, plan_.inner_src_stride, part);
      convert_(dst_.dtype, converted, src_.dtype, gathered, part);
      copy_same_dtype(dtype_bytes(dst_.dtype), to + i * dst_step, plan_.inner_dst_stride, converted, 1, part);
    }
  }

  CopyPlan plan_;
  const TensorView& dst_;
  const TensorView& src_;
  decltype(&isa_plain::convert_contiguous) convert_;
};

}  // namespace

void copy_convert(const TensorView& dst, const TensorView& src, ExecContext& context) {
  const int64_t num_elems = dst.num_elems();
  if (num_elems == 0) return;
  const Copier copier(dst, src, context.isa());
  context.parallel_for((num_elems + kTaskElems - 1) / kTaskElems, [&](int64_t task, int) {
    copier.copy(task * kTaskElems, std::min(num_elems, (task + 1) * kTaskElems));
  });
}

double micro_kernel_gflops(DType dtype, ExecContext& context) {
  constexpr int64_t kRepeats = 5'000;  // a millisecond or two
  constexpr int kTasksPerThread = 8;
  constexpr int kMeasurements = 5;
  const auto run = WARPGRAD_SELECT_AMX(context.isa() == Isa::kAvx512Amx && dtype == DType::kBFloat16, context.isa(),
                                       run_micro_kernel);
  WG_CHECK(dtype == DType::kFloat32 || dtype == DType::kBFloat16, ErrorCode::kInvalidArgument,
           "micro_kernel_gflops: dtype must be float32 or bfloat16, got ", dtype_name(dtype));
  volatile float sink = 0;
  const double task_operations = run(dtype, kRepeats, &sink);
  WG_CHECK(task_operations > 0, ErrorCode::kUnsupported, isa_name(context.isa()), " has no products for ",
           dtype_name(dtype));
  const int64_t num_tasks = int64_t{kTasksPerThread} * context.num_threads();
  double best = 0;
  for (int i = 0; i < kMeasurements; ++i) {
    const auto start = std::chrono::steady_clock::now();
    context.parallel_for(num_tasks, [&](int64_t, int) {
      volatile float result = 0;
      run(dtype, kRepeats, &result);
    });
    const std::chrono::duration<double, std::nano> elapsed = std::chrono::steady_clock::now() - start;
    best = std::max(best, task_operations * static_cast<double>(num_tasks) / elapsed.count());
  }
  return best;
}

}  // namespace warpgrad::cpu
