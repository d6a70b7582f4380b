#include <algorithm>
#include <cstring>
#include <functional>
#include <queue>

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
// To choose the splits: more tiles than these are even enough, and what a tile takes besides its steps, in steps.
constexpr int64_t kMaxBalancedTiles = 4096;
constexpr double kTileSteps = 1;
constexpr double kPartSteps = 2;  // with parts of dK and dV written, and read again
constexpr double kUncachedFactor = 1.08;

int64_t div_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

class Planner {
 public:
  explicit Planner(const ops::AttentionBackwardParams& params)
      : params_(params), options_(params.options), q_(params.q), k_(params.k), v_(params.v) {}

  AttentionBwdPlan run() {
    plan_.kernel = &find_attention_bwd_kernel(params_.q.dtype, q_.dim, v_.dim, options_.softcap > 0);
    plan_.in_turn = params_.deterministic && !plan_.kernel->dq_apart;
    lay_out_tiles(best_splits());
    const int64_t all_row_blocks = q_.batches * q_.heads * row_blocks_;
    WG_CHECK(num_tiles_ < kMaxLength && all_row_blocks < kMaxLength, ErrorCode::kUnsupported,
             "attentionBackward: too many rows for one call");
    plan_.num_tiles = static_cast<int>(num_tiles_);
    plan_.row_blocks = static_cast<int>(row_blocks_);
    plan_.all_row_blocks = static_cast<int>(all_row_blocks);
    plan_.dq_heads_per_section = dq_section_heads();
    lay_out_workspace();
    return std::move(plan_);
  }

 private:
  // Of one sequence.
  int64_t longest_keys() const {
    if (!q_.packed) return k_.rows;
    const auto& cu_k = options_.cu_seqlens_k;
    int64_t longest = 0;
    for (size_t i = 1; i < cu_k.size(); ++i) longest = std::max<int64_t>(longest, cu_k[i] - cu_k[i - 1]);
    return longest;
  }

  // With several query heads a kv head, tiles may be too few and too long to keep every multiprocessor at work. Then
  // the heads of a group are split over blocks, whose parts of dK and dV cost another pass.
  int best_splits() {
    const int64_t group = q_.heads / k_.heads;
    if (group == 1) return 1;
    int64_t best = 1;
    double best_steps = 0;
    for (int64_t split_heads = group; split_heads > 0; split_heads /= 2) {
      const int64_t splits = div_up(group, split_heads);
      lay_out_tiles(splits);
      if (num_tiles_ > kMaxBalancedTiles) break;
      const double steps = duration();
      if (splits == 1 || steps < best_steps) {
        best = splits;
        best_steps = steps;
      }
    }
    return static_cast<int>(best);
  }

  // Of the main kernel, in steps of one multiprocessor: each takes the next tile when it is done with one.
  double duration() const {
    std::priority_queue<double, std::vector<double>, std::greater<>> ends(std::greater<>(),
                                                                          std::vector<double>(kMultiprocessors, 0));
    const double tile_steps = plan_.splits > 1 ? kPartSteps : kTileSteps;
    double last = 0;
    const auto run_sequence = [&](const AttentionBwdSequence& sequence) {
      const int64_t heads = k_.batches * k_.heads * plan_.splits;
      for (int64_t first_head = 0; first_head < heads; first_head += sequence.heads_per_section) {
        const int64_t section = std::min<int64_t>(sequence.heads_per_section, heads - first_head);
        for (int64_t i = 0; i < sequence.key_blocks; ++i) {
          const int64_t n = plan_.in_turn ? sequence.key_blocks - 1 - i : i;
          const double steps = tile_steps + split_heads() * row_blocks_of(sequence, n);
          for (int64_t head = 0; head < section; ++head) {
            last = std::max(last, ends.top() + steps);
            ends.push(ends.top() + steps);
            ends.pop();
          }
        }
      }
    };
    if (q_.packed) {
      std::for_each(plan_.sequences.begin(), plan_.sequences.end(), run_sequence);
    } else {
      run_sequence(plan_.dense);
    }
    // Uneven tiles drift apart from head to head, and rows that another still needs have left the cache.
    const AttentionBwdSequence& longest = plan_.sequences.empty() ? plan_.dense : plan_.sequences.front();
    const bool outgrows_cache = uneven(longest.k_len) && split_bytes(longest.q_len) > 2 * kSectionBytes;
    return outgrows_cache ? kUncachedFactor * last : last;
  }

  // How many row blocks see a key of key block `n`.
  double row_blocks_of(const AttentionBwdSequence& sequence, int64_t n) const {
    const int64_t diagonal = sequence.k_len - sequence.q_len, any = sequence.k_len + sequence.q_len;
    const int64_t first_key = n * plan_.kernel->block_n;
    const int64_t last_key = std::min<int64_t>(first_key + plan_.kernel->block_n, sequence.k_len) - 1;
    const int64_t first_query = std::max<int64_t>(0, first_key - diagonal - std::min(options_.window_right, any));
    const int64_t last_query =
        std::min<int64_t>(sequence.q_len - 1, last_key - diagonal + std::min(options_.window_left, any));
    if (first_query > last_query) return 0;
    return static_cast<double>(last_query / plan_.kernel->block_m - first_query / plan_.kernel->block_m + 1);
  }

  int64_t split_heads() const { return div_up(q_.heads / k_.heads, plan_.splits); }

  void lay_out_tiles(int64_t splits) {
    plan_.splits = static_cast<int>(splits);
    plan_.sequences.clear();
    num_tiles_ = row_blocks_ = 0;
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
  }

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
        std::clamp<int64_t>(section_heads(q_len, k_len, result.key_blocks), 1, k_.batches * k_.heads * plan_.splits));
    return result;
  }

  // How many splits of kv heads are worked on side by side, key block by key block.
  int64_t section_heads(int64_t q_len, int64_t k_len, int64_t key_blocks) const {
    // In turn, half as many again as run at once: the key blocks of a head begin one after the other, as their turns
    // come, with some time between them. More would not stay in the cache.
    if (plan_.in_turn) return div_up(kMultiprocessors * 3 / 2, std::max<int64_t>(key_blocks, 1));
    // Where the first keys are seen by the most queries, many, to make room to start with the longest tiles; else one
    // after the other, which keeps its rows in the cache.
    return uneven(k_len) ? kSectionBytes / std::max<int64_t>(split_bytes(q_len), 1) : 1;
  }

  // Of the kernel of dQ, like the forward: where the last rows see the most keys, as many query heads
  // side by side as have their K and V in the cache; else those of one kv head.
  int dq_section_heads() const {
    const int64_t k_len = longest_keys();
    const int64_t head_bytes = std::max<int64_t>(kElementBytes * k_len * (q_.dim + v_.dim), 1);
    const int64_t kv_heads =
        uneven(k_len) ? std::clamp<int64_t>(kSectionBytes / head_bytes, 1, k_.batches * k_.heads) : 1;
    return static_cast<int>(kv_heads * (q_.heads / k_.heads));
  }

  // Whether the first keys are seen by the most queries.
  bool uneven(int64_t k_len) const { return options_.window_right < k_len && options_.window_left >= k_len; }

  // Of the rows of Q, dO and dQ that go with one split of a kv head.
  int64_t split_bytes(int64_t q_len) const {
    const int64_t row_bytes = kElementBytes * (q_.dim + v_.dim) + static_cast<int64_t>(sizeof(float)) * q_.dim;
    return q_len * split_heads() * row_bytes;
  }

  void add(AttentionBwdSequence& sequence) {
    sequence.first_tile = static_cast<int32_t>(num_tiles_);
    sequence.first_row_block = static_cast<int32_t>(row_blocks_);
    num_tiles_ += k_.batches * k_.heads * plan_.splits * sequence.key_blocks;
    // A block of threads of the kernel of dQ takes two, of one sequence.
    const int64_t together = plan_.kernel->dq_apart ? kDqWarpgroups : 1;
    row_blocks_ += together * div_up(sequence.q_len, together * plan_.kernel->block_m);
  }

  void lay_out_workspace() {
    AttentionBwdPlan::Workspace& workspace = plan_.workspace;
    const size_t blocks = plan_.all_row_blocks;
    workspace.lse_log2 = take(blocks * plan_.kernel->block_m * sizeof(float));
    workspace.delta = take(blocks * plan_.kernel->block_m * sizeof(float));
    workspace.dq_accum = take(blocks * plan_.kernel->block_floats * sizeof(float));
    workspace.dq_turn = take(plan_.in_turn ? blocks * sizeof(int32_t) : 0);
    const size_t parts = plan_.splits > 1 ? plan_.splits * k_.batches * k_.rows * k_.heads : 0;
    workspace.dk_parts = take(parts * k_.dim * sizeof(float));
    workspace.dv_parts = take(parts * v_.dim * sizeof(float));
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
