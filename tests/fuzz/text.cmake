foreach(target tokenizer_json tokenizer_sentencepiece tokenizer_tiktoken tokenizer_vocab_merges tokenizer_config
        tokenizer_text)
  infinigen_fuzz(${target} infinigen_text)
  target_compile_definitions(fuzz_${target} PRIVATE INFINIGEN_TEST_DATA="${PROJECT_SOURCE_DIR}/tests")
endforeach()
infinigen_fuzz(chat_template infinigen_text)
