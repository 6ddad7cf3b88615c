// Model families: everything that is special to one kind of checkpoint, as one table per family. A family is a file in
// model/families/ and a line in family.cc; docs/families.md tells how to add one. Called while a model is opened, from
// any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "json/fields.h"
#include "model/config.h"
#include "model/parameters.h"

namespace infinigen {

// What a parameter is called in the files, between prefix and ".weight" or ".bias". '#' stands for the layer's number.
struct RoleName {
  WeightRole role;
  std::string_view module;
};

// A published model's dimensions, for benchmarks with random weights.
struct PublishedShape {
  std::string_view name;
  std::string_view config;  // the text of its config.json, as far as dimensions go
};

// All members are static data.
struct ModelFamily {
  std::string_view name;                          // in messages and reports
  std::span<const std::string_view> model_types;  // values of config.json's model_type
  std::span<const std::string_view> classes;      // values of config.json's architectures; the usual one first
  // Ways in which exporters begin the names of everything but the output matrix; the usual one first.
  std::span<const std::string_view> prefixes;
  std::span<const RoleName> modules;  // every role that a model of the family can have
  // Tensors that some exporters write although they carry no parameter, after the prefix; '#' stands for a number. Any
  // other tensor without a role means that the model is not what its config says.
  std::span<const std::string_view> extra_tensors;
  std::span<const PublishedShape> shapes;
  // Reads the family's own fields of config.json. The sizes that every family has are in `config` already
  // (model/config_reader.h); errors go to fields.Fail.
  void (*read)(FieldReader& fields, ModelConfig& config);
  // Takes part in the identity of a model (model/identity.h), so it never changes: the next family takes the next one.
  int64_t identity_number;
};

// In the order in which messages name them.
std::span<const ModelFamily* const> Families();
const ModelFamily* FindFamily(std::string_view model_type);  // null when there is none

// The tensor's name. The family must have the role.
std::string TensorName(const ModelFamily& family, std::string_view prefix, const Parameter& parameter);
bool IsExtraTensor(const ModelFamily& family, std::string_view prefix, std::string_view name);

}  // namespace infinigen
