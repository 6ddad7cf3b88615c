#define INFINIGEN_ENTRY_TYPE BF16
#include "backend/cpu/attention_typed-inl.h"
