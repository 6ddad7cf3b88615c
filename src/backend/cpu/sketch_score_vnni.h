// Scores of one block of an integer sketch by AVX512-VNNI: a multiply-add of four bytes per 32-bit lane, u8 · s8, which
// is a unit of the sketch times a quarter of a query's byte. This Highway has no operation for it.
#pragma once

#include <cstddef>

#include "backend/cpu/sketch_query.h"

namespace infinigen {

// Whether this machine has it and Highway has not been told to leave it (tests hold a backend to one target). Asks the
// processor, which may take microseconds: ask once.
bool HasVnni();
// scores [group][64]; HasVnni() only.
void ScoreBlockVnni(const SketchQuery& query, const std::byte* block, float* scores);

}  // namespace infinigen
