// Text for clients of runtime: tokenizers, chat prompts, and text as it comes out token by token.
#pragma once

#include "text/chat_prompt.h"
#include "text/text_stream.h"
#include "text/tokenizer.h"
#include "text/unicode.h"
