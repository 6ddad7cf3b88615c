// One needle case on the screen, for people: the text from afar, the planted sentence in its surroundings, the
// question, the answer as it comes, and what it took. About 24 lines; colours only on a terminal.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cli/needle_case.h"
#include "cli/needle_run.h"
#include "model/executor.h"
#include "runtime/report.h"

namespace infinigen {

struct ShowStyle {
  size_t width = 88;  // columns of text
  bool colours = false;
};
// Of standard output: its width (60 to 110 columns) and whether it is a terminal; NO_COLOR is obeyed.
ShowStyle DetectStyle();

// Everything that is known before the model runs, up to "Answer:". `source`: what the filler is.
std::string ShowCase(const NeedleCase& planted, std::string_view source, const ShowStyle& style);

// What follows the answer.
std::string ShowOutcome(const NeedleCase& planted, const NeedleAnswer& answer, const Timing& timing,
                        const PoolUse& pool, const KvStats& stats, const ExecutorOptions& options,
                        const ShowStyle& style);

// What the place of the first sought string is called under a picture of the context.
std::string MarkOf(const NeedleCase& planted);

bool IsBlank(std::string_view text);

// Words of a text: runs of bytes that are no spaces.
int64_t CountWords(std::string_view text);

// `text` in lines of at most `width` columns, each after two spaces; of more than `most` lines the first ones, or with
// `from_end` the last. Line ends count as spaces.
std::string Wrapped(std::string_view text, size_t width, size_t most, bool from_end);

}  // namespace infinigen
