// Callbacks from runtime and eval to their caller. A library has no terminal and handles no signals, so the caller
// passes functions for warnings, progress and cancellation. Each may be empty. They are called on the thread that
// called runtime, and must not call back into it.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace infinigen {

enum class WorkKind : uint8_t { kCalibration, kPrefill, kDownload };

struct WorkProgress {
  WorkKind kind = WorkKind::kPrefill;
  int64_t done = 0, total = 0;  // units of work; of a download: bytes
  int64_t tokens = 0;           // tokens that all units together process; of a download: 0
};

struct Callbacks {
  // One sentence without a line end.
  std::function<void(std::string_view message)> on_warning;
  // Long work begins that the caller did not request by name: "calibrating NAME on TEXT (once per model)",
  // "downloading hf:ORG/NAME (1.2 GiB) to DIRECTORY".
  std::function<void(std::string_view message)> on_notice;
  // Progress of a long evaluation in words. Each text replaces the one before; an empty text removes it.
  std::function<void(std::string_view text)> on_status;
  std::function<void(const WorkProgress& progress)> on_progress;
  // Called between units of work; true ends the work early.
  std::function<bool()> cancelled;

  void Warn(std::string_view message) const {
    if (on_warning) on_warning(message);
  }
  void Notice(std::string_view message) const {
    if (on_notice) on_notice(message);
  }
  void Status(std::string_view text) const {
    if (on_status) on_status(text);
  }
  void Progress(const WorkProgress& progress) const {
    if (on_progress) on_progress(progress);
  }
  bool Cancelled() const { return cancelled && cancelled(); }
};

}  // namespace infinigen
