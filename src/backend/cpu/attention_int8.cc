#define INFINIGEN_ENTRY_TYPE Int8
#include "backend/cpu/attention_typed-inl.h"
