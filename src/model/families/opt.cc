// OPT: layer norms, learned positions that begin at row 2, biases everywhere, a ReLU MLP. Only OPT-350m has norms after
// the residual additions and an embedding narrower than the residual stream.
#include <algorithm>

#include "model/config_reader.h"
#include "model/families/families.h"

namespace infinigen {
namespace {

// PyTorch's default, which OPT never overrides.
constexpr float kOptNormEps = 1e-5f;
constexpr int64_t kOptPositionOffset = 2;

constexpr std::string_view kOptModelTypes[] = {"opt"};
constexpr std::string_view kOptClasses[] = {"OPTForCausalLM", "OPTModel"};
constexpr std::string_view kOptPrefixes[] = {"model.decoder.", "decoder."};
constexpr std::string_view kOptExtraTensors[] = {"version"};  // version of the file format

constexpr RoleName kOptModules[] = {
    {WeightRole::kEmbedding, "embed_tokens"},
    {WeightRole::kPositions, "embed_positions"},
    {WeightRole::kProjectIn, "project_in"},
    {WeightRole::kProjectOut, "project_out"},
    {WeightRole::kAttentionNorm, "layers.#.self_attn_layer_norm"},
    {WeightRole::kMlpNorm, "layers.#.final_layer_norm"},  // named "final" in every layer
    {WeightRole::kQuery, "layers.#.self_attn.q_proj"},
    {WeightRole::kKey, "layers.#.self_attn.k_proj"},
    {WeightRole::kValue, "layers.#.self_attn.v_proj"},
    {WeightRole::kOutput, "layers.#.self_attn.out_proj"},
    {WeightRole::kUp, "layers.#.fc1"},
    {WeightRole::kDown, "layers.#.fc2"},
    {WeightRole::kFinalNorm, "final_layer_norm"},
    {WeightRole::kLmHead, "lm_head"},
};

constexpr PublishedShape kOptShapes[] = {
    {"opt-125m", R"({"model_type": "opt", "num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12,
      "ffn_dim": 3072, "vocab_size": 50272, "max_position_embeddings": 2048})"},
    {"opt-1.3b", R"({"model_type": "opt", "num_hidden_layers": 24, "hidden_size": 2048, "num_attention_heads": 32,
      "ffn_dim": 8192, "vocab_size": 50272, "max_position_embeddings": 2048})"},
    {"opt-2.7b", R"({"model_type": "opt", "num_hidden_layers": 32, "hidden_size": 2560, "num_attention_heads": 32,
      "ffn_dim": 10240, "vocab_size": 50272, "max_position_embeddings": 2048})"},
    {"opt-6.7b", R"({"model_type": "opt", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
      "ffn_dim": 16384, "vocab_size": 50272, "max_position_embeddings": 2048})"},
    {"opt-13b", R"({"model_type": "opt", "num_hidden_layers": 40, "hidden_size": 5120, "num_attention_heads": 40,
      "ffn_dim": 20480, "vocab_size": 50272, "max_position_embeddings": 2048})"},
    {"opt-30b", R"({"model_type": "opt", "num_hidden_layers": 48, "hidden_size": 7168, "num_attention_heads": 56,
      "ffn_dim": 28672, "vocab_size": 50272, "max_position_embeddings": 2048})"},
};

void ReadOpt(FieldReader& fields, ModelConfig& config) {
  config.ffn = fields.Size("ffn_dim", kMaxFfn);
  config.kv_heads = config.heads;
  config.head_dim = std::max<int64_t>(1, config.hidden / config.heads);
  if (config.hidden % config.heads != 0 || config.head_dim > kHeadDimLimit)
    fields.Fail(Invalid("{} {} does not divide into num_attention_heads {} of at most {} dimensions",
                        fields.At("hidden_size"), config.hidden, config.heads, kHeadDimLimit));
  fields.Only("activation_function", "relu");
  config.tied_embeddings = fields.Bool("tie_word_embeddings", true);
  config.embed_dim = fields.Size("word_embed_proj_dim", kMaxHidden, config.hidden);
  config.positions = PositionKind::kLearned;
  config.position_offset = kOptPositionOffset;
  LayerSpec spec = PlainLayer(config.head_dim);
  spec.rope = LayerSpec::kNoRope;
  spec.qkv_bias = spec.o_bias = fields.Bool("enable_bias", true);
  spec.norm = {
      .kind = NormKind::kLayer, .eps = kOptNormEps, .affine = fields.Bool("layer_norm_elementwise_affine", true)};
  const bool norms_before = fields.Bool("do_layer_norm_before", true);
  spec.norm_placement = norms_before ? NormPlacement::kBefore : NormPlacement::kAfterResidual;
  spec.mlp = {.gated = false, .activation = Activation::kRelu, .bias = spec.o_bias};
  config.final_norm.reset();
  if (const bool removed = fields.Bool("_remove_final_layer_norm", false); norms_before && !removed)
    config.final_norm = spec.norm;
  config.SetLayers(config.layers, spec);
}

}  // namespace

constexpr ModelFamily kOptFamily = {.name = "opt",
                                    .model_types = kOptModelTypes,
                                    .classes = kOptClasses,
                                    .prefixes = kOptPrefixes,
                                    .modules = kOptModules,
                                    .extra_tensors = kOptExtraTensors,
                                    .shapes = kOptShapes,
                                    .read = ReadOpt,
                                    .identity_number = 1};

}  // namespace infinigen
