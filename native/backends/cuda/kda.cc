#include <utility>

#include "backends/cuda/backend.h"
#include "backends/cuda/operation.h"
#include "backends/cuda/operation_caches.h"
#include "backends/cuda/sm90/kda/launch.h"
#include "backends/cuda/sm90/kda/stages.h"
#include "backends/cuda/sm90/tile/attention_operand.h"

namespace warpgrad::cuda {

// Brings operands into the form that the kernels read and write: bfloat16 (or float32, for gates), whole 16-byte units,
// and so a multiple of 8 columns. What has another form is copied, zeros behind its last column.
class CudaBackend::KdaOperands {
 public:
  KdaOperands(CudaBackend& backend, Stream& stream, const StorageUses& uses)
      : backend_(backend), stream_(stream), uses_(uses) {}

  template <class Params>
  void read_inputs(Params& params) {
    for (TensorView* operand : {&params.q, &params.k, &params.v}) read(*operand, DType::kBFloat16);
    read(params.g, gate_type(params.g.dtype));
    if (params.dt_bias) read(params.dt_bias, DType::kFloat32);
  }
  void read(TensorView& operand, DType type) {
    if (operand.num_elems() == 0 || (has_form(operand, type) && sm90::is_copyable(operand))) return;
    const TensorView room = make_room(operand, type);
    backend_.copy(stream_, first_columns(room, operand), operand, {uses_.reads, {rooms_.back()}});
    operand = room;
  }

  // The result goes to the operand's place in `finish`.
  void write(TensorView& operand, DType type) {
    if (!operand || operand.num_elems() == 0 || has_form(operand, type)) return;
    const TensorView room = make_room(operand, type);
    results_.push_back({operand, room, rooms_.back()});
    operand = room;
  }
  void finish() {
    for (const Result& result : results_) {
      backend_.copy(stream_, result.wanted, first_columns(result.room, result.wanted),
                    {{result.storage}, uses_.writes});
    }
  }

  static DType gate_type(DType type) { return type == DType::kFloat16 ? DType::kFloat32 : type; }

 private:
  struct Result {
    TensorView wanted, room;
    StoragePtr storage;
  };

  static int64_t padded(int64_t columns) { return (columns + 7) / 8 * 8; }
  static bool has_form(const TensorView& operand, DType type) {
    return operand.dtype == type && operand.shape[operand.rank - 1] % 8 == 0;
  }
  static TensorView first_columns(const TensorView& room, const TensorView& operand) {
    TensorView columns = room;
    columns.shape[room.rank - 1] = operand.shape[room.rank - 1];
    return columns;
  }
  TensorView make_room(const TensorView& operand, DType type) {
    TensorView room = operand;
    int64_t& columns = room.shape[room.rank - 1];
    columns = padded(columns);
    room.dtype = type;
    room.set_contiguous_strides();
    rooms_.push_back(backend_.workspace(static_cast<size_t>(room.num_elems()) * dtype_bytes(type), stream_));
    room.data = rooms_.back()->data();
    if (columns != operand.shape[room.rank - 1]) backend_.zero(stream_, rooms_.back());
    return room;
  }

  CudaBackend& backend_;
  Stream& stream_;
  const StorageUses& uses_;
  std::vector<StoragePtr> rooms_;
  std::vector<Result> results_;
};

template <class Params>
const KdaPlanned& CudaBackend::kda_planned(Stream& stream, const Params& params) {
  const std::vector<int32_t>& cu_seqlens = params.options.cu_seqlens;
  const int64_t batches = params.q.shape[0], tokens = params.q.shape[1], value_heads = params.v.shape[2];
  const int64_t key_dim = params.q.shape[3], value_dim = params.v.shape[3];
  const bool batch_invariant = params.options.batch_invariant;
  return operation_caches(stream).kda.find_or_make(
      [&](const KdaPlanned& entry) {
        return entry.batches == batches && entry.tokens == tokens && entry.value_heads == value_heads &&
               entry.key_dim == key_dim && entry.value_dim == value_dim && entry.batch_invariant == batch_invariant &&
               entry.cu_seqlens == cu_seqlens;
      },
      [&] {
        const DeviceGuard guard(device_->index());
        const sm90::KdaRecurrenceWidth width{value_heads, sm90::kda_panels(key_dim), sm90::kda_panels(value_dim),
                                             sm90::multiprocessor_count("kda")};
        KdaPlanned fresh{cu_seqlens, batches,   tokens,          value_heads,
                         key_dim,    value_dim, batch_invariant, sm90::plan_kda(params.options, batches, tokens, width),
                         nullptr};
        std::vector<char> tables(fresh.plan.table_bytes());
        fresh.plan.write_tables(tables.data());
        fresh.tables = upload(tables, stream);
        return fresh;
      });
}

int64_t CudaBackend::kda_saved_elems(const ops::KdaSavedDims& dims) const {
  const sm90::KdaImageBytes bytes(dims.chunks, dims.value_heads, dims.key_dim, dims.value_dim);
  return static_cast<int64_t>(bytes.saved() / sizeof(float));
}

void CudaBackend::kda_forward(Stream& stream, ops::KdaForwardParams params, StorageUses uses) {
  sm90::expect_kda_forward_kernels(params);
  ops::check_saved("kdaForward", params.saved, kda_saved_elems(saved_dims(params.options, params.q, params.v)));
  const KdaPlanned& planned = kda_planned(stream, params);
  KdaOperands operands(*this, stream, uses);
  operands.read_inputs(params);
  operands.write(params.out, DType::kBFloat16);
  const sm90::KdaProblem problem =
      sm90::kda_problem(params, planned.plan, static_cast<const char*>(planned.tables->data()));
  const StoragePtr records = workspace(params.saved ? 0 : sm90::KdaImageBytes(problem).records, stream);
  const StoragePtr segment_states = workspace(problem.segment_state_bytes(), stream);
  StorageUses launch_uses = uses;
  launch_uses.reads.push_back(planned.tables);
  enqueue("kdaForward", stream, launch_uses, [&](cudaStream_t handle) {
    sm90::launch_kda_forward(problem, params, static_cast<char*>(records->data()),
                             static_cast<char*>(segment_states->data()), handle);
  });
  operands.finish();
}

void CudaBackend::kda_backward(Stream& stream, ops::KdaBackwardParams params, StorageUses uses) {
  sm90::expect_kda_backward_kernels(params);
  ops::check_saved("kdaBackward", params.saved, kda_saved_elems(saved_dims(params.options, params.q, params.v)));
  const KdaPlanned& planned = kda_planned(stream, params);
  KdaOperands operands(*this, stream, uses);
  operands.read_inputs(params);
  operands.read(params.d_out, DType::kBFloat16);
  for (TensorView* gradient : {&params.dq, &params.dk, &params.dv}) operands.write(*gradient, DType::kBFloat16);
  operands.write(params.dg, params.g.dtype);
  operands.write(params.d_dt_bias, DType::kFloat32);
  const sm90::KdaProblem problem =
      sm90::kda_problem(params, planned.plan, static_cast<const char*>(planned.tables->data()));

  const sm90::KdaImageBytes images(problem);
  std::vector<StoragePtr> scratch;
  const auto take = [&](bool wanted, size_t bytes) {
    if (!wanted) return static_cast<char*>(nullptr);
    scratch.push_back(workspace(bytes, stream));
    return static_cast<char*>(scratch.back()->data());
  };
  const size_t part_bytes = static_cast<size_t>(problem.batches) * problem.tokens * problem.value_heads *
                            problem.key_dim * dtype_bytes(DType::kBFloat16);
  const size_t head_floats = static_cast<size_t>(problem.num_chunks) * problem.value_heads * sizeof(float);
  const bool grouped = problem.group() > 1;
  sm90::KdaBackwardMemory memory{};
  memory.d_states = take(true, images.states);
  memory.saved_is_filled = static_cast<bool>(params.saved);
  memory.segment_states = take(!memory.saved_is_filled, problem.segment_state_bytes());
  memory.saved = params.saved ? params.saved.as<char>() : take(true, images.saved());
  memory.gradients_scratch = take(true, sm90::kda_gradients_scratch_bytes(problem));
  memory.dq_parts = take(grouped, part_bytes);
  memory.dk_parts = take(grouped, part_bytes);
  memory.d_a_log_parts =
      reinterpret_cast<float*>(take(static_cast<bool>(params.d_a_log), head_floats * problem.key_parts()));
  memory.d_dt_bias_parts =
      reinterpret_cast<float*>(take(static_cast<bool>(params.d_dt_bias), head_floats * problem.key_dim));
  StorageUses launch_uses = uses;
  launch_uses.reads.push_back(planned.tables);
  enqueue("kdaBackward", stream, launch_uses,
          [&](cudaStream_t handle) { sm90::launch_kda_backward(problem, params, memory, handle); });
  operands.finish();
}

}  // namespace warpgrad::cuda
