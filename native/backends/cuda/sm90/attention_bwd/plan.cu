#include <algorithm>
#include <cstring>

#include "backends/cuda/sm90/attention_bwd/kernels.h"
#include "backends/cuda/sm90/attention_bwd/launch.h"
#include "backends/cuda/sm90/tile/attention_operand.h"
#include "core/check.h"

namespace warpgrad::cuda::sm90 {
namespace {

constexpr int64_t kMaxLength = int64_t{1} << 29;  // keeps positions of any band in 32 bits
constexpr int64_t kSectionBytes =
    32 * 1024 * 1024;  // of the rows of Q, dO and dQ that the L2 cache keeps for a section
constexpr int64_t kElementBytes = 2;
constexpr size_t kAlignment = 256;
constexpr int64_t kMultiprocessors = 132;  // of an H100 or H200; others only lose some speed

int64_t div_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

class Planner {
 public:
  explicit Planner(const ops::AttentionBackwardParams& params)
      : params_(params), options_(params.options), q_(params.q), k_(params.k), v_(params.v) {}

  AttentionBwdPlan run() {
    plan_.kernel = &find_attention_bwd_kernel(params_.q.dtype, q_.dim, v_.dim, options_.softcap > 0);
    if (q_.packed) {
      const auto& cu_q = options_.cu_seqlens_q;
      const auto& cu_k = options_.cu_seqlens_k;
      for (size_t i = 1; i < cu_q.size(); ++i) {
        plan_.sequences.push_back(sequence(cu_q[i - 1], cu_q[i] - cu_q[i - 1], cu_k[i - 1], cu_k[i] - cu_k[i - 1]));
      }
      std::stable_sort(plan_.sequences.begin(), plan_.sequences.end(),
                       [](const auto& a, const auto& b) { return a.q_len > b.q_len; });
      for (AttentionBwdSequence& sequence : plan_.sequences) add(sequence);
    } else {
      plan_.dense = sequence(0, q_.rows, 0, k_.rows);
      add(plan_.dense);
    }
    const int64_t all_row_blocks = q_.batches * q_.heads * row_blocks_;
    WG_CHECK(num_tiles_ < kMaxLength && all_row_blocks < kMaxLength, ErrorCode::kUnsupported,
             "attentionBackward: too many rows for one call");
    plan_.num_tiles = static_cast<int>(num_tiles_);
    plan_.row_blocks = static_cast<int>(row_blocks_);
    plan_.all_row_blocks = static_cast<int>(all_row_blocks);
    lay_out_workspace();
    return std::move(plan_);
  }

 private:
  AttentionBwdSequence sequence(int64_t q_start, int64_t q_len, int64_t k_start, int64_t k_len) const {
    WG_CHECK(q_len < kMaxLength && k_len < kMaxLength, ErrorCode::kUnsupported,
             "attentionBackward: sequences must be shorter than ", kMaxLength, ", got ", q_len, " queries and ", k_len,
             " keys");
    AttentionBwdSequence result{};
    result.q_start = static_cast<int32_t>(q_start);
    result.q_len = static_cast<int32_t>(q_len);
    result.k_start = static_cast<int32_t>(k_start);
    result.k_len = static_cast<int32_t>(k_len);
    result.key_blocks = static_cast<int32_t>(div_up(k_len, plan_.kernel->block_n));
    result.heads_per_section = static_cast<int32_t>(
        std::clamp<int64_t>(section_heads(q_len, k_len, result.key_blocks), 1, k_.batches * k_.heads));
    return result;
  }

  // How many kv heads are worked on side by side, key block by key block.
  int64_t section_heads(int64_t q_len, int64_t k_len, int64_t key_blocks) const {
    // In turn, half as many again as run at once: the key blocks of a head begin one after the other, as their turns
    // come, with some time between them. More would not stay in the cache.
    if (params_.deterministic) return div_up(kMultiprocessors * 3 / 2, std::max<int64_t>(key_blocks, 1));
    // Where the first keys are seen by the most queries, many, to make room to start with the longest tiles; else one
    // after the other, which keeps its rows in the cache.
    const bool uneven = options_.window_right < k_len && options_.window_left >= k_len;
    if (!uneven) return 1;
    const int64_t row_bytes = kElementBytes * (q_.dim + v_.dim) + static_cast<int64_t>(sizeof(float)) * q_.dim;
    return kSectionBytes / std::max<int64_t>(q_len * (q_.heads / k_.heads) * row_bytes, 1);
  }

  void add(AttentionBwdSequence& sequence) {
    sequence.first_tile = static_cast<int32_t>(num_tiles_);
    sequence.first_row_block = static_cast<int32_t>(row_blocks_);
    num_tiles_ += k_.batches * k_.heads * sequence.key_blocks;
    row_blocks_ += div_up(sequence.q_len, plan_.kernel->block_m);
  }

  void lay_out_workspace() {
    AttentionBwdPlan::Workspace& workspace = plan_.workspace;
    const size_t blocks = plan_.all_row_blocks;
    workspace.lse_log2 = take(blocks * plan_.kernel->block_m * sizeof(float));
    workspace.delta = take(blocks * plan_.kernel->block_m * sizeof(float));
    workspace.dq_accum = take(blocks * plan_.kernel->block_floats * sizeof(float));
    workspace.dq_turn = take(params_.deterministic ? blocks * sizeof(int32_t) : 0);
    workspace.d_sink_parts = take(params_.sink ? blocks * sizeof(float) : 0);
    workspace.bytes = bytes_;
  }
  size_t take(size_t bytes) {
    const size_t offset = bytes_;
    bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return offset;
  }

  const ops::AttentionBackwardParams& params_;
  const ops::AttentionOptions& options_;
  const AttentionOperand q_, k_, v_;
  AttentionBwdPlan plan_{};
  int64_t num_tiles_ = 0, row_blocks_ = 0;
  size_t bytes_ = 0;
};

}  // namespace

size_t AttentionBwdPlan::header_bytes() const {
  return kAttentionBwdCounterBytes + sequences.size() * sizeof(AttentionBwdSequence);
}

void AttentionBwdPlan::write_header(void* host) const {
  std::memset(host, 0, kAttentionBwdCounterBytes);
  if (sequences.empty()) return;
  std::memcpy(static_cast<char*>(host) + kAttentionBwdCounterBytes, sequences.data(),
              sequences.size() * sizeof(AttentionBwdSequence));
}

AttentionBwdPlan plan_attention_bwd(const ops::AttentionBackwardParams& params) {
  return Planner(params).run();
}

}  // namespace warpgrad::cuda::sm90
