// Requests for clients of runtime: what is submitted to an engine, what comes back, and the statistics of both.
#pragma once

#include "engine/request.h"
#include "kv/stats.h"
