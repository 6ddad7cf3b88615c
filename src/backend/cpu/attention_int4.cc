#define INFINIGEN_ENTRY_TYPE Int4
#include "backend/cpu/attention_typed-inl.h"
