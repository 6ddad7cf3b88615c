// StopStrings: cuts a stream of text at the first stop string. One object per sequence being generated; not shared
// between threads. Text that could still turn out to be the beginning of a stop string is held back, nothing else is.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace infinigen {

class StopStrings {
 public:
  // Empty strings stop nothing and are dropped.
  explicit StopStrings(std::vector<std::string> stops);

  // Takes the next piece, returns what may be shown now. After a match nothing is ever returned again.
  std::string Push(std::string_view piece);
  // The end of the text: what was held back can no longer become a stop string.
  std::string Finish();

  // True once a stop string has appeared; everything before it was returned, it and what follows never is. Of several,
  // the one that starts first wins.
  bool matched() const { return matched_; }
  const std::string& matched_stop() const { return matched_stop_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;  // a suffix of the text so far, each byte of which may belong to a stop string
  bool matched_ = false;
  std::string matched_stop_;
};

}  // namespace infinigen
