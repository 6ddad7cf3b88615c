// The types from which clients of runtime build requests and read answers: Request and its result, KvStats, Tokenizer,
// ChatPrompt, TextStream, and UTF-8 helpers.
#pragma once

#include "engine/request.h"
#include "kv/stats.h"
#include "text/chat_prompt.h"
#include "text/text_stream.h"
#include "text/tokenizer.h"
#include "text/unicode.h"
