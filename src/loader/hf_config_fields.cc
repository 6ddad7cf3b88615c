#include "loader/hf_config_fields.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "loader/json_stream.h"

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

std::string Shown(const nlohmann::json& value) {
  // `replace`: a string that is not UTF-8 would otherwise throw.
  const std::string quoted = Quoted(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  return quoted.substr(1, quoted.size() - 2);
}

FieldReader::FieldReader(const nlohmann::json& object, std::string path, std::string prefix)
    : object_(object), path_(std::move(path)), prefix_(std::move(prefix)) {
  CHECK(object.is_object());
}

bool FieldReader::Has(const char* name) const {
  const auto found = object_.find(name);
  return found != object_.end() && !found->is_null();
}

const nlohmann::json* FieldReader::Get(const char* name) {
  seen_.insert(name);
  return Has(name) ? &*object_.find(name) : nullptr;
}

std::string FieldReader::At(std::string_view name) const {
  return fmt::format("{}: field {}", path_, Quoted(prefix_ + std::string(name)));
}

void FieldReader::Fail(Error error) {
  if (!error_) error_ = std::move(error);
}

Status FieldReader::status() const {
  if (error_) return *error_;
  return Ok{};
}

int64_t FieldReader::Size(const char* name, int64_t limit, std::optional<int64_t> absent) {
  const nlohmann::json* value = Get(name);
  if (value == nullptr) {
    if (!absent) Fail(Invalid("{} is missing", At(name)));
    return absent.value_or(1);
  }
  // Negative numbers are stored as signed, all others as unsigned.
  if (value->is_number_unsigned()) {
    const uint64_t number = value->get<uint64_t>();
    if (number >= 1 && number <= static_cast<uint64_t>(limit)) return static_cast<int64_t>(number);
  }
  Fail(Invalid("{} is {}, expected a whole number from 1 to {}", At(name), Shown(*value), limit));
  return 1;
}

bool FieldReader::Bool(const char* name, bool absent) {
  const nlohmann::json* value = Get(name);
  if (value == nullptr) return absent;
  if (value->is_boolean()) return value->get<bool>();
  Fail(Invalid("{} is {}, expected true or false", At(name), Shown(*value)));
  return absent;
}

double FieldReader::Positive(const char* name, std::optional<double> absent) {
  const nlohmann::json* value = Get(name);
  if (value == nullptr) {
    if (!absent) Fail(Invalid("{} is missing", At(name)));
    return absent.value_or(1.0);
  }
  if (value->is_number()) {
    const double number = value->get<double>();
    if (std::isfinite(number) && number > 0.0) return number;
  }
  Fail(Invalid("{} is {}, expected a number above 0", At(name), Shown(*value)));
  return 1.0;
}

std::string FieldReader::String(const char* name, std::string absent) {
  const nlohmann::json* value = Get(name);
  if (value == nullptr) return absent;
  if (value->is_string()) return value->get<std::string>();
  Fail(Invalid("{} is {}, expected a string", At(name), Shown(*value)));
  return absent;
}

std::vector<int64_t> FieldReader::TokenIds(const char* name) {
  const nlohmann::json* value = Get(name);
  if (value == nullptr) return {};
  std::vector<int64_t> ids;
  const auto add = [&](const nlohmann::json& id) {
    if (id.is_number_unsigned() && id.get<uint64_t>() <= INT32_MAX)
      ids.push_back(id.get<int64_t>());
    else
      Fail(Invalid("{} is {}, expected a token id or a list of token ids", At(name), Shown(*value)));
  };
  if (value->is_array())
    for (const nlohmann::json& id : *value) add(id);
  else
    add(*value);
  return ids;
}

void FieldReader::Only(const char* name, const nlohmann::json& only) {
  const nlohmann::json* value = Get(name);
  if (value == nullptr || *value == only) return;
  Fail(Unsupported("{} is {}; only {} is supported", At(name), Shown(*value), Shown(only)));
}

void FieldReader::RefuseUnknown(bool (*harmless)(std::string_view)) {
  for (const auto& [name, value] : object_.items()) {
    if (seen_.count(name) == 0 && !harmless(name))
      Fail(Unsupported("{} ({}) is unknown: it may change what the model computes", At(name), Shown(value)));
  }
}

}  // namespace infinigen
