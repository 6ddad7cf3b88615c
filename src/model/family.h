// Model families: everything that is specific to one kind of checkpoint, as one table for each family. A family is a
// file in model/families/ and a line in family.cc; docs/families.md shows how to add one. Called while a model is
// opened, from any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "json/fields.h"
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
};

// In the order in which messages name them.
std::span<const ModelFamily* const> Families();
const ModelFamily* FindFamily(std::string_view model_type);  // null if unknown

// The name of a parameter's tensor. Precondition: the family has the role.
std::string TensorName(const ModelFamily& family, std::string_view prefix, const Parameter& parameter);
bool IsExtraTensor(const ModelFamily& family, std::string_view prefix, std::string_view name);

}  // namespace infinigen
