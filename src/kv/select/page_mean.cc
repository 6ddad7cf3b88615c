#include "kv/page_sums_view.h"
#include "kv/select.h"

namespace infinigen {
namespace {

IndexLayout PageSumIndex(const IndexShape& shape) { return PageSumsLayout{.head_dim = shape.head_dim}.index(); }

}  // namespace

// The mean of a page's keys stands for all of them, as in MoBA and InfLLM (kv/page_sums.h). A sum of f32 numbers cannot
// give a key back exactly, so nothing may be evicted.
const SelectMethod kSelectPageMean{.name = "page-mean",
                                   .summary = "the pages whose mean keys score best",
                                   .index = PageSumIndex,
                                   .can_guess = true,
                                   .rewrites_rows = false,
                                   .page_rows = kPageRows};

}  // namespace infinigen
