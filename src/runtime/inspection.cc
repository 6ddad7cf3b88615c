#include "runtime/inspection.h"

#include <map>
#include <string_view>
#include <utility>

#include "loader/tensor_source.h"

namespace infinigen {

Result<Inspection> InspectModel(const std::string& directory) {
  Inspection model;
  model.directory = directory;
  ASSIGN_OR_RETURN(model.config, LoadModelConfig(directory));
  ASSIGN_OR_RETURN(const std::unique_ptr<const TensorSource> source, OpenTensorSource(directory));
  if (!TokenizerFile(directory).empty()) {
    ASSIGN_OR_RETURN(model.tokenizer, Tokenizer::Load(directory));
  }
  std::map<std::string_view, std::vector<InspectedTensor>> files;
  for (const StoredTensor& tensor : source->tensors())
    files[tensor.path].push_back({.name = std::string(tensor.name),
                                  .dtype = std::string(tensor.type_name),
                                  .shape = {tensor.shape.begin(), tensor.shape.end()},
                                  .bytes = tensor.bytes.size()});
  for (auto& [path, tensors] : files) model.files.push_back({std::string(path), std::move(tensors)});
  return model;
}

}  // namespace infinigen
