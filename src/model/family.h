// Model families: everything that is specific to one kind of checkpoint, as one table for each family. A family is a
// file in model/families/ and a line in family.cc; docs/families.md shows how to add one. Called while a model is
// opened, from any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

#include "json/fields.h"
#include "loader/tensor_source.h"
#include "model/config.h"
#include "model/parameters.h"

namespace infinigen {

// The name of a parameter in the files, between prefix and ".weight" or ".bias". '#' stands for the layer number. Roles
// with the same name share a tensor: their outputs (rows of a matrix) follow each other in the order of the table.
struct RoleName {
  WeightRole role;
  std::string_view module;
};

// The dimensions of a published model, for benchmarks with random weights.
struct PublishedShape {
  std::string_view name;
  std::string_view config;  // its config.json, reduced to dimensions
};

// A number in GGUF metadata that config.json has under another name.
struct GgufField {
  std::string_view key;  // after "ARCHITECTURE."
  std::string_view field;
};

// A field of config.json that says whether a role has a bias. GGUF files have the tensor or not.
struct GgufBias {
  WeightRole role;
  std::string_view field;
};

// How GGUF files describe a family; all static data. docs/gguf.md lists what all families share.
struct GgufFamily {
  std::span<const std::string_view> architectures;  // values of general.architecture
  std::span<const RoleName> modules;                // every role that a model of the family can have; no prefix
  std::span<const std::string_view> extra_tensors;  // as ModelFamily::extra_tensors, no prefix
  std::span<const GgufBias> biases;                 // which roles may have a bias
  std::span<const GgufField> fields;                // beside those of all families (model/gguf_config.cc)
  // Which two dimensions form a rotation plane. Converters reorder the rows of q and k in the families of kPairs.
  RopeOrder rope_order = RopeOrder::kHalves;
  // Adds fields of config.json that the metadata leaves out. `rotary_dims`: rotated dimensions of a head. May be null.
  void (*complete)(nlohmann::json& tree, int64_t rotary_dims) = nullptr;
};

// All members are static data.
struct ModelFamily {
  std::string_view name;                          // for messages and reports
  std::span<const std::string_view> model_types;  // values of config.json's model_type
  std::span<const std::string_view> classes;      // values of config.json's architectures; the usual one first
  // Prefixes that exporters use for all names except that of the output matrix; the usual one first.
  std::span<const std::string_view> prefixes;
  std::span<const RoleName> modules;  // every role that a model of the family can have
  // Names, after the prefix, of tensors that some exporters write although they are no parameters; '#' stands for a
  // number. Any other tensor without a role means that the config does not describe the model.
  std::span<const std::string_view> extra_tensors;
  std::span<const PublishedShape> shapes;
  // Reads the family's own fields of config.json. The sizes common to all families are in `config` already
  // (model/config_reader.h). Errors go to fields.Fail.
  void (*read)(FieldReader& fields, ModelConfig& config);
  // Part of the hash of a model (model/calibrate.h), so it must never change; a new family takes the next number.
  int64_t identity_number;
  const GgufFamily* gguf = nullptr;  // null: no GGUF files of this family
};

// In the order in which messages name them.
std::span<const ModelFamily* const> Families();
const ModelFamily* FindFamily(std::string_view model_type);        // null if unknown
const ModelFamily* FindGgufFamily(std::string_view architecture);  // null if unknown

// The name of a parameter's tensor. Precondition: the family has the role; for kGguf, the family has GGUF files.
std::string TensorName(const ModelFamily& family, std::string_view prefix, const Parameter& parameter,
                       TensorNaming naming = TensorNaming::kTransformers);
bool IsExtraTensor(const ModelFamily& family, std::string_view prefix, std::string_view name,
                   TensorNaming naming = TensorNaming::kTransformers);

}  // namespace infinigen
