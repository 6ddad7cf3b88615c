// Tickets: points in the work of a queue, as events. Private to backend/cuda.
//
// A queue has a ring of events. A ticket names its queue and its number there; a ring later its event is recorded again
// by the same queue, so that whoever still waits for it waits a little longer than needed, never too short.
//
// What a graph records is its own: an event that was recorded while work was captured cannot be waited for outside.
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
    if (of_graph && !in_graph_) return;  // of an earlier step: the queue that runs graphs has passed it
    CUDA_CHECK(cudaStreamWaitEvent(stream, of_graph ? graph_events_[ticket.value & ~kGraphBit] : Event(ticket)));
  }

  // The host waits.
  void Synchronize(Ticket ticket) const { CUDA_CHECK(cudaEventSynchronize(Event(ticket))); }

  // Both are of the same queue, and `early` is no later.
  static bool Covers(Ticket late, Ticket early) {
    return QueueBits(late) == QueueBits(early) && early.value <= late.value;
  }

  void BeginGraph() { in_graph_ = true, graph_count_ = 0; }
  void EndGraph() { in_graph_ = false; }

 private:
  static constexpr size_t kRing = 1024;  // more than any step or prefill unit has in flight on a queue
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
