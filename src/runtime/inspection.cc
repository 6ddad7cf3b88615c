#include "runtime/inspection.h"

#include "loader/checkpoint.h"

namespace infinigen {

Result<Inspection> InspectModel(const std::string& directory) {
  Inspection model;
  model.directory = directory;
  ASSIGN_OR_RETURN(model.config, LoadModelConfig(directory));
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(directory));
  if (!TokenizerFile(directory).empty()) {
    ASSIGN_OR_RETURN(model.tokenizer, Tokenizer::Load(directory));
  }
  for (const SafetensorsFile& file : checkpoint.files()) {
    StoredFile& stored = model.files.emplace_back();
    stored.path = file.path();
    for (const TensorEntry& tensor : file.tensors())
      stored.tensors.push_back({.name = tensor.name,
                                .dtype = std::string(tensor.dtype),
                                .shape = {tensor.shape().begin(), tensor.shape().end()},
                                .bytes = tensor.end - tensor.begin});
  }
  return model;
}

}  // namespace infinigen
