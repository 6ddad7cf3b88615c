// Fields of config.json that do not change what a trained model computes.
#include <algorithm>
#include <iterator>

#include "model/config_reader.h"

namespace infinigen {
namespace {

// Grouped by reason; each name was found in what a version of transformers, or a well-known exporter, writes.
constexpr std::string_view kHarmless[] = {
    // Bookkeeping.
    "_name_or_path", "name_or_path", "_commit_hash", "transformers_version", "unsloth_version", "unsloth_fixed",
    "transformers.js_config", "is_llama_config", "tokenizer_class", "tokenizer_name", "prefix", "finetuning_task",
    "task_specific_params", "id2label", "label2id", "num_labels", "problem_type", "max_sequence_length",
    "output_projection",
    // How transformers runs it, not what it computes.
    "use_cache", "return_dict", "output_hidden_states", "output_attentions", "torchscript", "use_bfloat16",
    "tf_legacy_loss", "chunk_size_feed_forward", "pretraining_tp", "attn_implementation", "_attn_implementation",
    "_attn_implementation_autoset", "_attn_implementation_internal", "_flash_attn_2_enabled", "_experts_implementation",
    "_experts_implementation_internal", "_output_attentions", "experts_implementation", "tie_last_hidden_states",
    "is_decoder", "gradient_checkpointing", "use_return_dict",
    // Training.
    "dropout", "attention_dropout", "activation_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop",
    "layerdrop", "init_std", "initializer_range", "neftune_noise_alpha",
    // Token ids that the tokenizer or a training script uses.
    "pad_token_id", "sep_token_id", "unk_token_id", "decoder_start_token_id",
    // Sampling defaults that older versions kept here: the user states them.
    "max_length", "min_length", "max_new_tokens", "min_new_tokens", "do_sample", "early_stopping", "num_beams",
    "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty",
    "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "encoder_repetition_penalty",
    "bad_words_ids", "num_return_sequences", "output_scores", "output_logits", "return_dict_in_generate",
    "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty",
    "suppress_tokens", "begin_suppress_tokens", "epsilon_cutoff", "eta_cutoff", "assistant_confidence_threshold",
    "assistant_lookbehind", "target_lookbehind", "num_assistant_tokens", "num_assistant_tokens_schedule",
    "penalty_alpha", "guidance_scale", "renormalize_logits"};

}  // namespace

bool IsHarmlessConfigField(std::string_view name) {
  return std::find(std::begin(kHarmless), std::end(kHarmless), name) != std::end(kHarmless);
}

}  // namespace infinigen
