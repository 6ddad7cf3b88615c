#include "text/class_rules.h"

namespace infinigen {
namespace {

void ApplyLlama(const ClassRules& rules, TokenizerSpec& spec) {
  spec.bpe.unk_token.clear();
  spec.bpe.fuse_unk = true;
  spec.bpe.byte_fallback = true;
  spec.bpe.ignore_merges = false;

  PreTokenizerStep metaspace;
  metaspace.kind = PreTokenizerStep::Kind::kMetaspace;
  metaspace.replacement = kMetaspaceMark;
  metaspace.split = false;
  metaspace.prepend_scheme = !rules.add_prefix_space ? PrependScheme::kNever
                             : rules.legacy          ? PrependScheme::kAlways
                                                     : PrependScheme::kFirst;
  spec.pre_tokenizers = {metaspace};

  spec.decoders = MetaspaceDecoders(/*prefix_space=*/rules.add_prefix_space);
}

void ApplyGpt2(const ClassRules& rules, TokenizerSpec& spec) {
  spec.bpe = {};
  PreTokenizerStep byte_level;
  byte_level.pattern = kGpt2Pattern;
  byte_level.add_prefix_space = rules.add_prefix_space;
  spec.pre_tokenizers = {byte_level};
  spec.decoders = {DecoderStep{}};
}

}  // namespace

TokenizerClass ClassOf(std::string declared, const std::string& model_type) {
  if (declared.ends_with("Fast")) declared.resize(declared.size() - 4);
  if (declared.empty() && (model_type == "opt" || model_type == "gpt2")) declared = "GPT2Tokenizer";
  if (declared == "LlamaTokenizer") return TokenizerClass::kLlama;
  if (declared == "GPT2Tokenizer") return TokenizerClass::kGpt2;
  return TokenizerClass::kGeneric;
}

void ApplyClassRules(const ClassRules& rules, TokenizerSpec& spec) {
  if (rules.tokenizer_class == TokenizerClass::kGeneric) return;
  spec.normalizers.clear();
  if (rules.tokenizer_class == TokenizerClass::kLlama)
    ApplyLlama(rules, spec);
  else
    ApplyGpt2(rules, spec);
}

}  // namespace infinigen
