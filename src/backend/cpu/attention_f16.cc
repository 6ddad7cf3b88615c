#define INFINIGEN_ENTRY_TYPE F16
#include "backend/cpu/attention_typed-inl.h"
