#include <algorithm>
#include <cstring>

#include "backends/cuda/sm90/attention_fwd/kernels.h"
#include "backends/cuda/sm90/attention_fwd/launch.h"
#include "backends/cuda/sm90/limits.h"
#include "backends/cuda/sm90/tile/attention_operand.h"
#include "core/check.h"

namespace warpgrad::cuda::sm90 {
namespace {

constexpr int64_t kMaxLength = int64_t{1} << 29;     // keeps key positions of any band in 32 bits
constexpr int64_t kSectionBytes = 32 * 1024 * 1024;  // K and V that the L2 cache keeps for the heads of one section
constexpr int64_t kElementBytes = 2;

int64_t div_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

struct Shape {
  bool packed;
  int64_t batches, q_rows, k_rows, heads, kv_heads, qk_dim, v_dim;

  explicit Shape(const ops::AttentionForwardParams& params) {
    const TensorView &q = params.q, &k = params.k, &v = params.v;
    const int last = q.rank - 1;
    packed = q.rank == 3;
    batches = packed ? 1 : q.shape[0];
    q_rows = q.shape[last - 2];
    k_rows = k.shape[last - 2];
    heads = q.shape[last - 1];
    kv_heads = k.shape[last - 1];
    qk_dim = q.shape[last];
    v_dim = v.shape[last];
  }
};

// How many heads of a kv head share a tile: all, unless the rows of a warpgroup that then stay unused cost more tiles
// than short sequences save.
int choose_pack(const Shape& shape, int64_t longest, int consumer_warpgroups) {
  const int64_t group = shape.heads / shape.kv_heads;
  if (group > kWarpgroupRows) return 1;
  const int64_t rows = consumer_warpgroups * kWarpgroupRows;
  const int64_t packed_blocks = div_up(longest, consumer_warpgroups * (kWarpgroupRows / group));
  return packed_blocks <= group * div_up(longest, rows) ? static_cast<int>(group) : 1;
}

class Planner {
 public:
  explicit Planner(const ops::AttentionForwardParams& params) : options_(params.options), shape_(params) {
    dtype_ = params.q.dtype;
  }

  AttentionFwdPlan run() {
    const auto& cu_q = options_.cu_seqlens_q;
    const auto& cu_k = options_.cu_seqlens_k;
    int64_t longest_q = shape_.packed ? 0 : shape_.q_rows, longest_k = shape_.packed ? 0 : shape_.k_rows;
    for (size_t i = 1; i < cu_q.size(); ++i) {
      longest_q = std::max<int64_t>(longest_q, cu_q[i] - cu_q[i - 1]);
      longest_k = std::max<int64_t>(longest_k, cu_k[i] - cu_k[i - 1]);
    }
    WG_CHECK(longest_q < kMaxLength && longest_k < kMaxLength, ErrorCode::kUnsupported,
             "attentionForward: sequences must be shorter than ", kMaxLength, ", got ", longest_q, " queries and ",
             longest_k, " keys");
    plan_.kernel = &find_attention_fwd_kernel(dtype_, shape_.qk_dim, shape_.v_dim, attention_fwd_maps_scores(options_),
                                              mean_keys(longest_k));
    plan_.k_row_end = shape_.packed ? kPackedRowEnd : static_cast<int>(std::max<int64_t>(longest_k, 1));
    plan_.used_q_rows = shape_.packed ? cu_q.back() : shape_.q_rows;
    plan_.pack = choose_pack(shape_, longest_q, plan_.kernel->consumer_warpgroups);
    plan_.warpgroup_queries = kWarpgroupRows / plan_.pack;

    if (shape_.packed) {
      add_packed(cu_q, cu_k);
    } else {
      plan_.dense = sequence(0, shape_.q_rows, 0, shape_.k_rows);
      add_tiles(plan_.dense, shape_.batches);
    }
    plan_.num_tiles = static_cast<int>(num_tiles_);
    return std::move(plan_);
  }

 private:
  // Roughly what a row of the longest sequence sees: half of a side without a window.
  int64_t mean_keys(int64_t longest_k) const {
    const int64_t half = longest_k / 2;
    return std::min(options_.window_left, half) + std::min(options_.window_right, longest_k - half);
  }

  AttentionFwdSequence sequence(int64_t q_start, int64_t q_len, int64_t k_start, int64_t k_len) const {
    AttentionFwdSequence result{};
    result.q_start = static_cast<int32_t>(q_start);
    result.q_len = static_cast<int32_t>(q_len);
    result.k_start = static_cast<int32_t>(k_start);
    result.k_len = static_cast<int32_t>(k_len);
    const int64_t block_queries = plan_.kernel->consumer_warpgroups * plan_.warpgroup_queries;
    result.row_blocks = static_cast<int32_t>(div_up(q_len, block_queries));
    // Where the last rows see the most keys, many heads at once make room to start with the longest tiles; else one kv
    // head after the other keeps K and V in the cache.
    const int64_t groups_per_kv = shape_.heads / shape_.kv_heads / plan_.pack;
    const bool uneven = options_.window_right < k_len && options_.window_left >= k_len;
    const int64_t head_bytes = std::max<int64_t>(k_len * (shape_.qk_dim + shape_.v_dim) * kElementBytes, 1);
    const int64_t kv_heads =
        uneven ? std::clamp<int64_t>(kSectionBytes / head_bytes, 1, shape_.batches * shape_.kv_heads) : 1;
    result.heads_per_section = static_cast<int32_t>(kv_heads * groups_per_kv);
    return result;
  }

  void add_tiles(AttentionFwdSequence& sequence, int64_t batches) {
    sequence.first_tile = static_cast<int32_t>(num_tiles_);
    num_tiles_ += batches * (shape_.heads / plan_.pack) * sequence.row_blocks;
    WG_CHECK(num_tiles_ < kMaxLength, ErrorCode::kUnsupported, "attentionForward: too many rows for one call");
  }

  void add_packed(const std::vector<int32_t>& cu_q, const std::vector<int32_t>& cu_k) {
    for (size_t i = 1; i < cu_q.size(); ++i) {
      if (cu_q[i] == cu_q[i - 1]) continue;
      plan_.sequences.push_back(sequence(cu_q[i - 1], cu_q[i] - cu_q[i - 1], cu_k[i - 1], cu_k[i] - cu_k[i - 1]));
    }
    std::stable_sort(plan_.sequences.begin(), plan_.sequences.end(),
                     [](const auto& a, const auto& b) { return a.k_len > b.k_len; });
    for (AttentionFwdSequence& sequence : plan_.sequences) add_tiles(sequence, 1);
  }

  const ops::AttentionOptions& options_;
  const Shape shape_;
  DType dtype_;
  AttentionFwdPlan plan_{};
  int64_t num_tiles_ = 0;
};

}  // namespace

size_t AttentionFwdPlan::workspace_bytes() const {
  return kAttentionFwdCounterBytes + sequences.size() * sizeof(AttentionFwdSequence);
}

void AttentionFwdPlan::write_workspace(void* host) const {
  std::memset(host, 0, kAttentionFwdCounterBytes);
  if (sequences.empty()) return;
  std::memcpy(static_cast<char*>(host) + kAttentionFwdCounterBytes, sequences.data(),
              sequences.size() * sizeof(AttentionFwdSequence));
}

AttentionFwdPlan plan_attention_fwd(const ops::AttentionForwardParams& params) {
  return Planner(params).run();
}

}  // namespace warpgrad::cuda::sm90
