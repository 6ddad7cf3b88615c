#define INFINIGEN_ENTRY_TYPE float
#include "backend/cpu/attention_typed-inl.h"
