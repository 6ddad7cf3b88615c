// Text for clients of runtime: tokenizers, chat prompts, text as it comes out token by token, and UTF-8.
#pragma once

#include "text/chat_prompt.h"
#include "text/text_stream.h"
#include "text/tokenizer.h"
#include "text/unicode.h"
