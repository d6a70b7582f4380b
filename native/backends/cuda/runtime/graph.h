#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "backends/cuda/runtime/memory.h"
#include "backends/cuda/runtime/stream.h"

namespace warpgrad::cuda {

// Memory of the tensors that are made in a capture; nobody else gets it while the graph or such a tensor lives.
class GraphMemory : public std::enable_shared_from_this<GraphMemory> {
 public:
  explicit GraphMemory(std::shared_ptr<StreamState> captured);
  ~GraphMemory();
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;

  // Its blocks are there for any stream at once.
  std::shared_ptr<Arena> arena();

 private:
  std::shared_ptr<StreamState> captured_;
  std::shared_ptr<StreamState> own_;  // runs nothing but allocations
};

// What a capture collects besides the operations: what they use.
struct CaptureRecord {
  explicit CaptureRecord(const std::shared_ptr<StreamState>& captured)
      : memory(std::make_shared<GraphMemory>(captured)) {}
  void add(const StorageUses& uses);

  std::shared_ptr<GraphMemory> memory;
  std::vector<StoragePtr> outside;             // kept alive
  std::vector<std::weak_ptr<Storage>> writes;  // those in the graph's memory may be given up: later operations reuse it
};

// Puts a stream into capture and takes it out again: by end(), or by the destructor, which drops what was captured.
class Capture {
 public:
  explicit Capture(StreamState& stream);
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  cudaGraphExec_t end();

 private:
  cudaError_t leave(cudaGraph_t* graph) noexcept;

  StreamState& stream_;
  bool open_ = true;
};

// Captured operations with all that they use.
class CudaGraph : public Graph {
 public:
  CudaGraph(cudaGraphExec_t graph, std::shared_ptr<StreamState> stream, std::unique_ptr<CaptureRecord> record)
      : graph_(graph), stream_(std::move(stream)), record_(std::move(record)) {}
  ~CudaGraph() override { cudaGraphExecDestroy(graph_); }
  void replay() override;

 private:
  cudaGraphExec_t graph_;
  std::shared_ptr<StreamState> stream_;
  std::unique_ptr<CaptureRecord> record_;
};

}  // namespace warpgrad::cuda
