// Tickets as CUDA events. Private to backend/cuda.
//
// Each queue has a ring of events. A ticket names its queue and its sequence number there. After kRing further tickets
// its event is recorded again by the same queue; a wait for the old ticket then takes a little longer than necessary,
// never too short.
//
// Events recorded inside a graph belong to the graph: other work cannot wait for them.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/check.h"

namespace infinigen {

class Tickets {
 public:
  ~Tickets() {
    for (const auto& ring : events_)
      for (const cudaEvent_t event : ring)
        if (event != nullptr) CUDA_CHECK(cudaEventDestroy(event));
    for (const cudaEvent_t event : graph_events_) CUDA_CHECK(cudaEventDestroy(event));
  }

  Status Open() {
    for (auto& ring : events_)
      for (cudaEvent_t& event : ring)
        RETURN_IF_ERROR(Asked(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "events"));
    return Ok();
  }

  Ticket Record(Queue queue, cudaStream_t stream) {
    if (in_graph_) return RecordInGraph(stream);
    const Ticket ticket{++counts_[Index(queue)] << kQueueBits | Index(queue)};
    CUDA_CHECK(cudaEventRecord(Event(ticket), stream));
    return ticket;
  }

  void Wait(cudaStream_t stream, Ticket ticket) const {
    if (ticket.value == 0) return;
    const bool of_graph = (ticket.value & kGraphBit) != 0;
    if (of_graph && !in_graph_) return;  // recorded in an earlier step, which the queue has finished
    CUDA_CHECK(cudaStreamWaitEvent(stream, of_graph ? graph_events_[ticket.value & ~kGraphBit] : Event(ticket)));
  }

  // Blocks the host.
  void Synchronize(Ticket ticket) const { CUDA_CHECK(cudaEventSynchronize(Event(ticket))); }

  // Whether `early` is complete when `late` is. Both are of the same queue.
  static bool Covers(Ticket late, Ticket early) {
    return QueueBits(late) == QueueBits(early) && early.value <= late.value;
  }

  void BeginGraph() { in_graph_ = true, graph_count_ = 0; }
  void EndGraph() { in_graph_ = false; }

 private:
  static constexpr size_t kRing = 1024;  // more than any step or prefill chunk has in flight on a queue
  static constexpr int kQueueBits = 2;
  static constexpr uint64_t kGraphBit = uint64_t{1} << 63;

  static uint64_t Index(Queue queue) { return static_cast<uint64_t>(queue); }
  static uint64_t QueueBits(Ticket ticket) { return ticket.value & ((1u << kQueueBits) - 1); }
  cudaEvent_t Event(Ticket ticket) const { return events_[QueueBits(ticket)][(ticket.value >> kQueueBits) % kRing]; }

  Ticket RecordInGraph(cudaStream_t stream) {
    const uint64_t index = graph_count_++;
    if (index == graph_events_.size())
      CUDA_CHECK(cudaEventCreateWithFlags(&graph_events_.emplace_back(), cudaEventDisableTiming));
    CUDA_CHECK(cudaEventRecord(graph_events_[index], stream));
    return {kGraphBit | index};
  }

  std::array<std::array<cudaEvent_t, kRing>, 1 << kQueueBits> events_{};
  std::array<uint64_t, 1 << kQueueBits> counts_{};
  std::vector<cudaEvent_t> graph_events_;
  uint64_t graph_count_ = 0;
  bool in_graph_ = false;
};

}  // namespace infinigen
