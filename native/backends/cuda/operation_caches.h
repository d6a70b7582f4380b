#pragma once

#include <algorithm>
#include <list>
#include <memory>
#include <vector>

#include "backends/cuda/operation.h"
#include "backends/cuda/sm90/attention_bwd/launch.h"
#include "backends/cuda/sm90/attention_fwd/launch.h"
#include "backends/cuda/sm90/kda/launch.h"

namespace warpgrad::cuda {

// What is kept of an attention forward for later calls of the same layout and options.
struct AttentionFwdPlanned {
  ops::AttentionForwardParams params;
  sm90::AttentionFwdPlan plan;
  sm90::AttentionFwdMaps maps;
  StoragePtr workspace;

  bool serves(const ops::AttentionForwardParams& wanted) const {
    return params.q.same_layout(wanted.q) && params.k.same_layout(wanted.k) && params.v.same_layout(wanted.v) &&
           params.options == wanted.options;
  }
};

// The same of an attention backward.
struct AttentionBwdPlanned {
  ops::AttentionBackwardParams params;
  sm90::AttentionBwdPlan plan;
  sm90::AttentionBwdMaps maps;
  StoragePtr header;

  bool serves(const ops::AttentionBackwardParams& wanted) const {
    return params.d_out.same_layout(wanted.d_out) && params.q.same_layout(wanted.q) && params.k.same_layout(wanted.k) &&
           params.v.same_layout(wanted.v) && params.options == wanted.options &&
           params.deterministic == wanted.deterministic &&
           static_cast<bool>(params.sink) == static_cast<bool>(wanted.sink);
  }
};

// The chunks of a KDA, of either direction.
struct KdaPlanned {
  std::vector<int32_t> cu_seqlens;
  int64_t batches, tokens, value_heads, key_dim, value_dim;
  bool batch_invariant;
  sm90::KdaPlan plan;
  StoragePtr tables;
};

// The entries used last, the latest first.
template <class Entry>
class RecentlyUsed {
 public:
  template <class Serves, class Make>
  Entry& find_or_make(Serves serves, Make make) {
    const auto found = std::find_if(entries_.begin(), entries_.end(), serves);
    if (found != entries_.end()) {
      entries_.splice(entries_.begin(), entries_, found);
    } else {
      entries_.push_front(make());
      if (entries_.size() > kMostEntries) entries_.pop_back();
    }
    return entries_.front();
  }

 private:
  static constexpr size_t kMostEntries = 32;

  std::list<Entry> entries_;
};

struct OperationCaches {
  RecentlyUsed<AttentionFwdPlanned> attention_fwd;
  RecentlyUsed<AttentionBwdPlanned> attention_bwd;
  RecentlyUsed<KdaPlanned> kda;
};

inline OperationCaches& operation_caches(Stream& stream) {
  std::shared_ptr<OperationCaches>& caches = cuda_stream(stream).caches;
  if (!caches) caches = std::make_shared<OperationCaches>();
  return *caches;
}

}  // namespace warpgrad::cuda
