#include "backends/cpu/simd/micro_kernel.h"
#include "backends/cpu/simd/vec.h"
#include "core/dtype.h"

namespace warpgrad::cpu::WARPGRAD_ISA {
namespace {

// ---- Conversion of contiguous elements, each through float32 and with one rounding ---------------------------------
struct Float32 {
  using Element = float;
  static Vec load_some(const float* from, int count) {
    return count == kLanes ? load(from) : load_partial(from, count);
  }
  static void store_some(float* to, Vec x, int count) { count == kLanes ? store(to, x) : store_partial(to, x, count); }
};

struct Float16 {
  using Element = uint16_t;
  static Vec load_some(const uint16_t* from, int count) { return from_float16(load_half_partial(from, count)); }
  static void store_some(uint16_t* to, Vec x, int count) { store_half_partial(to, to_float16(x), count); }
};

struct BFloat16 {
  using Element = uint16_t;
  static Vec load_some(const uint16_t* from, int count) { return from_bfloat16(load_half_partial(from, count)); }
  static void store_some(uint16_t* to, Vec x, int count) { store_half_partial(to, to_bfloat16(x), count); }
};

// Toward zero, saturating, NaN to 0.
WARPGRAD_INLINE IVec truncate_to_int(Vec x) {
  const IVec above = x >= 0x1p31f;
  const IVec below = x < -0x1p31f;
  const IVec inside = __builtin_convertvector((above | below | (x != x)) ? Vec{} : x, IVec);
  return above ? splat_int(INT32_MAX) : (below ? splat_int(INT32_MIN) : inside);
}

struct Int32 {
  using Element = int32_t;
  static IVec load_bits(const int32_t* from, int count) {
    const float* floats = reinterpret_cast<const float*>(from);
    return bits_of(count == kLanes ? load(floats) : load_partial(floats, count));
  }
  static Vec load_some(const int32_t* from, int count) { return to_float(load_bits(from, count)); }
  static void store_some(int32_t* to, Vec x, int count) {
    Float32::store_some(reinterpret_cast<float*>(to), float_of_bits(truncate_to_int(x)), count);
  }
};

// For bfloat16 from integers: past 24 bits, what float32 would round away becomes one sticky bit far below bfloat16's
// last, so that only the second rounding counts.
struct StickyInt32 {
  using Element = int32_t;
  static Vec load_some(const int32_t* from, int count) {
    const IVec x = Int32::load_bits(from, count);
    const IVec sticky = (x & ~0xff) | ((x & 0xff) != 0 ? splat_int(0x80) : IVec{});
    return to_float((x >= 1 << 24) | (x <= -(1 << 24)) ? sticky : x);
  }
};

template <class Dst, class Src>
void convert_all(void* dst, const void* src, int64_t num_elems) {
  auto* to = static_cast<typename Dst::Element*>(dst);
  auto* from = static_cast<const typename Src::Element*>(src);
  int64_t i = 0;
  for (; i + kLanes <= num_elems; i += kLanes) Dst::store_some(to + i, Src::load_some(from + i, kLanes), kLanes);
  const int rest = static_cast<int>(num_elems - i);
  if (rest > 0) Dst::store_some(to + i, Src::load_some(from + i, rest), rest);
}

template <class Dst>
void convert_from(DType src_dtype, void* dst, const void* src, int64_t num_elems) {
  using FromInt = std::conditional_t<std::is_same_v<Dst, BFloat16>, StickyInt32, Int32>;
  switch (src_dtype) {
    case DType::kFloat32: return convert_all<Dst, Float32>(dst, src, num_elems);
    case DType::kFloat16: return convert_all<Dst, Float16>(dst, src, num_elems);
    case DType::kBFloat16: return convert_all<Dst, BFloat16>(dst, src, num_elems);
    case DType::kInt32: return convert_all<Dst, FromInt>(dst, src, num_elems);
  }
}

// ---- The yardstick -------------------------------------------------------------------------------------------------
constexpr int kYardstickDepth = 128;

// Operands of 20 KB, filled with numbers that keep the sums normal.
struct YardstickOperands {
  alignas(64) float a[kYardstickDepth * kMicroRows];
  alignas(64) float b[kYardstickDepth * kMicroColumns];
};

template <class Multiply>
WARPGRAD_INLINE float repeat_product(int64_t repeats, Multiply multiply_once) {
  Vec acc[kMicroRows][kMicroVecs];
  zero(acc);
  for (int64_t i = 0; i < repeats; ++i) multiply_once(acc);
  Vec sum{};
  for (auto& row : acc) {
    for (Vec x : row) sum += x;
  }
  return reduce_add(sum);
}

}  // namespace

// Contiguous src to contiguous dst, of different dtypes.
void convert_contiguous(DType dst_dtype, void* dst, DType src_dtype, const void* src, int64_t num_elems) {
  switch (dst_dtype) {
    case DType::kFloat32: return convert_from<Float32>(src_dtype, dst, src, num_elems);
    case DType::kFloat16: return convert_from<Float16>(src_dtype, dst, src, num_elems);
    case DType::kBFloat16: return convert_from<BFloat16>(src_dtype, dst, src, num_elems);
    case DType::kInt32: return convert_from<Int32>(src_dtype, dst, src, num_elems);
  }
}

// Runs the micro-kernel `repeats` times; answers the floating-point operations of that, 0 where the instruction set
// has no products for the dtype.
double run_micro_kernel(DType dtype, int64_t repeats, volatile float* sink) {
  static thread_local YardstickOperands operands;
  const bool pairs = dtype == DType::kBFloat16;
  if (pairs && !kHasBf16Products) return 0;
  const float value = pairs ? std::bit_cast<float>(0x3c003c00u) : 1.0f / 128;
  for (float& x : operands.a) x = value;
  for (float& x : operands.b) x = value;
  const double multiply_adds = static_cast<double>(kYardstickDepth) * kMicroRows * kMicroColumns * repeats;
#if defined(__AVX512BF16__)
  if (pairs) {
    const auto* a = reinterpret_cast<const PairWord*>(operands.a);
    const auto* b = reinterpret_cast<const PairWord*>(operands.b);
    *sink = repeat_product(repeats, [=](Vec(&acc)[kMicroRows][kMicroVecs]) __attribute__((always_inline)) {
      multiply_pairs<AOrder::kColumnMajor>(kYardstickDepth, a, kMicroRows, b, kMicroColumns, acc);
    });
    return 4 * multiply_adds;
  }
#endif
  const float *a = operands.a, *b = operands.b;
  *sink = repeat_product(repeats, [=](Vec(&acc)[kMicroRows][kMicroVecs]) __attribute__((always_inline)) {
    multiply<AOrder::kColumnMajor>(kYardstickDepth, a, kMicroRows, b, kMicroColumns, acc);
  });
  return 2 * multiply_adds;
}

}  // namespace warpgrad::cpu::WARPGRAD_ISA
