// Reads SentencePiece models of type BPE. The file is a protocol buffer; only a few of its fields are used, so it is
// parsed here without a library.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/utf8.h"
#include "text/added_tokens.h"
#include "text/tokenizer_files.h"

namespace infinigen {
namespace {

// Iterates over the fields of one protocol buffer message. Every length is checked against the remaining bytes. Groups
// and unknown wire types count as malformed.
class ProtobufReader {
 public:
  enum class Wire { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

  struct Field {
    uint32_t number = 0;
    Wire wire = Wire::kVarint;
    uint64_t value = 0;      // kVarint, kFixed32, kFixed64
    std::string_view bytes;  // kBytes

    float AsFloat() const { return std::bit_cast<float>(static_cast<uint32_t>(value)); }
  };

  explicit ProtobufReader(std::string_view message) : rest_(message), size_(message.size()) {}

  // nullopt at the end of the message and at the first malformed field.
  std::optional<Field> Next() {
    if (rest_.empty() || malformed_) return std::nullopt;
    Field field;
    uint64_t tag = 0;
    if (!Varint(tag) || tag >> 3 == 0 || tag >> 3 > UINT32_MAX) return Malformed();
    field.number = static_cast<uint32_t>(tag >> 3);
    field.wire = static_cast<Wire>(tag & 7);
    switch (field.wire) {
      case Wire::kVarint:
        if (!Varint(field.value)) return Malformed();
        return field;
      case Wire::kFixed64:
        if (!Fixed(8, field.value)) return Malformed();
        return field;
      case Wire::kFixed32:
        if (!Fixed(4, field.value)) return Malformed();
        return field;
      case Wire::kBytes: {
        uint64_t length = 0;
        if (!Varint(length) || length > rest_.size()) return Malformed();
        field.bytes = rest_.substr(0, length);
        rest_.remove_prefix(length);
        return field;
      }
    }
    return Malformed();
  }

  bool malformed() const { return malformed_; }
  // Number of bytes read so far.
  size_t offset() const { return size_ - rest_.size(); }

 private:
  std::optional<Field> Malformed() {
    malformed_ = true;
    return std::nullopt;
  }

  bool Varint(uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) return false;
      const uint8_t byte = static_cast<uint8_t>(rest_[0]);
      rest_.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  bool Fixed(size_t bytes, uint64_t& value) {
    if (rest_.size() < bytes) return false;
    value = 0;
    for (size_t i = 0; i < bytes; ++i) value |= static_cast<uint64_t>(static_cast<uint8_t>(rest_[i])) << (8 * i);
    rest_.remove_prefix(bytes);
    return true;
  }

  std::string_view rest_;
  size_t size_;
  bool malformed_ = false;
};

// Field numbers of sentencepiece_model.proto.
namespace model_field {
constexpr uint32_t kPieces = 1;
constexpr uint32_t kTrainerSpec = 2;
constexpr uint32_t kNormalizerSpec = 3;
}  // namespace model_field
namespace piece_field {
constexpr uint32_t kPiece = 1;
constexpr uint32_t kScore = 2;
constexpr uint32_t kType = 3;
}  // namespace piece_field
namespace trainer_field {
constexpr uint32_t kModelType = 3;
constexpr uint32_t kTreatWhitespaceAsSuffix = 24;
constexpr uint32_t kByteFallback = 35;
constexpr uint32_t kBosId = 41;
constexpr uint32_t kEosId = 42;
constexpr uint32_t kUnkPiece = 45;
constexpr uint32_t kBosPiece = 46;
constexpr uint32_t kEosPiece = 47;
}  // namespace trainer_field
namespace normalizer_field {
constexpr uint32_t kPrecompiledCharsmap = 2;
constexpr uint32_t kAddDummyPrefix = 3;
constexpr uint32_t kRemoveExtraWhitespaces = 4;
constexpr uint32_t kEscapeWhitespaces = 5;
}  // namespace normalizer_field

enum class PieceType : uint64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
constexpr uint64_t kModelTypeBpe = 2;

struct Piece {
  float score = 0;
  PieceType type = PieceType::kNormal;
};

struct Settings {
  uint64_t model_type = 1;  // default of the format: unigram
  bool byte_fallback = false;
  bool whitespace_as_suffix = false;
  int32_t bos_id = 1;
  int32_t eos_id = 2;
  std::string unk_piece = "<unk>";
  std::string bos_piece = "<s>";
  std::string eos_piece = "</s>";
  bool has_charsmap = false;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
};

class ModelReader {
 public:
  explicit ModelReader(const std::string& name) : name_(name) {}

  Status Read(std::string_view bytes) {
    ProtobufReader reader(bytes);
    while (const auto field = reader.Next()) {
      if (field->wire != ProtobufReader::Wire::kBytes) continue;
      if (field->number == model_field::kPieces) RETURN_IF_ERROR(ReadPiece(field->bytes));
      if (field->number == model_field::kTrainerSpec) RETURN_IF_ERROR(ReadTrainer(field->bytes));
      if (field->number == model_field::kNormalizerSpec) RETURN_IF_ERROR(ReadNormalizer(field->bytes));
    }
    if (reader.malformed())
      return Invalid("{}: neither tiktoken ranks nor a complete SentencePiece model: malformed at byte {}", name_,
                     reader.offset());
    if (pieces.empty()) return Invalid("{}: the SentencePiece model has no pieces", name_);
    return Ok{};
  }

  TokenVocabulary vocabulary;
  std::vector<Piece> pieces;  // [id]
  Settings settings;

 private:
  Status ReadPiece(std::string_view bytes) {
    const size_t id = pieces.size();
    Piece piece;
    std::string_view text;
    ProtobufReader reader(bytes);
    while (const auto field = reader.Next()) {
      if (field->number == piece_field::kPiece) text = field->bytes;
      if (field->number == piece_field::kScore) piece.score = field->AsFloat();
      if (field->number == piece_field::kType) piece.type = static_cast<PieceType>(field->value);
    }
    if (reader.malformed()) return Invalid("{}: piece {} is malformed", name_, id);
    if (piece.type < PieceType::kNormal || piece.type > PieceType::kByte)
      return Invalid("{}: piece {} has unknown type {}", name_, id, static_cast<uint64_t>(piece.type));
    if (std::isnan(piece.score)) return Invalid("{}: piece {}: the score is not a number", name_, id);
    if (ValidUtf8Prefix(text) != text.size()) return Invalid("{}: piece {} is not valid UTF-8", name_, id);
    if (const Status added = vocabulary.Add(text, static_cast<int64_t>(id)); !added.ok())
      return Invalid("{}: {}", name_, added.error().message);
    pieces.push_back(piece);
    return Ok{};
  }

  Status ReadTrainer(std::string_view bytes) {
    ProtobufReader reader(bytes);
    while (const auto field = reader.Next()) {
      switch (field->number) {
        case trainer_field::kModelType:
          settings.model_type = field->value;
          break;
        case trainer_field::kTreatWhitespaceAsSuffix:
          settings.whitespace_as_suffix = field->value != 0;
          break;
        case trainer_field::kByteFallback:
          settings.byte_fallback = field->value != 0;
          break;
        case trainer_field::kBosId:
          settings.bos_id = static_cast<int32_t>(field->value);
          break;
        case trainer_field::kEosId:
          settings.eos_id = static_cast<int32_t>(field->value);
          break;
        case trainer_field::kUnkPiece:
          settings.unk_piece = field->bytes;
          break;
        case trainer_field::kBosPiece:
          settings.bos_piece = field->bytes;
          break;
        case trainer_field::kEosPiece:
          settings.eos_piece = field->bytes;
          break;
        default:
          break;
      }
    }
    return reader.malformed() ? Status(Invalid("{}: trainer_spec is malformed", name_)) : Ok{};
  }

  Status ReadNormalizer(std::string_view bytes) {
    ProtobufReader reader(bytes);
    while (const auto field = reader.Next()) {
      if (field->number == normalizer_field::kPrecompiledCharsmap) settings.has_charsmap = !field->bytes.empty();
      if (field->number == normalizer_field::kAddDummyPrefix) settings.add_dummy_prefix = field->value != 0;
      if (field->number == normalizer_field::kRemoveExtraWhitespaces)
        settings.remove_extra_whitespaces = field->value != 0;
      if (field->number == normalizer_field::kEscapeWhitespaces) settings.escape_whitespaces = field->value != 0;
    }
    return reader.malformed() ? Status(Invalid("{}: normalizer_spec is malformed", name_)) : Ok{};
  }

  const std::string& name_;
};

Status CheckSupported(const ModelReader& model, const std::string& name) {
  if (model.settings.model_type != kModelTypeBpe)
    return Unsupported("{}: SentencePiece model type {} is not supported; only BPE is", name,
                       model.settings.model_type == 1 ? "'unigram'" : fmt::format("{}", model.settings.model_type));
  if (model.settings.has_charsmap)
    return Unsupported("{}: a normalization table (precompiled_charsmap) is not supported", name);
  if (model.settings.whitespace_as_suffix) return Unsupported("{}: treat_whitespace_as_suffix is not supported", name);
  if (!model.settings.escape_whitespaces) return Unsupported("{}: escape_whitespaces = false is not supported", name);
  for (const Piece& piece : model.pieces)
    if (piece.type == PieceType::kUnused) return Unsupported("{}: unused pieces are not supported", name);
  return Ok{};
}

Result<MergeTable> MergesOf(const ModelReader& model, SentencePieceRules rules) {
  const size_t count = model.pieces.size();
  if (rules == SentencePieceRules::kLlamaTokenizer) {
    std::vector<RankedToken> tokens;
    for (size_t id = 0; id < count; ++id) tokens.push_back({static_cast<TokenId>(id), static_cast<uint32_t>(id)});
    return MergesOfSplits(model.vocabulary, tokens, std::vector<bool>(count, true), SplitOrder::kShorterLeft);
  }
  // Control, unknown and byte pieces are never results or parts of merges.
  std::vector<bool> mergeable(count);
  for (size_t id = 0; id < count; ++id)
    mergeable[id] = model.pieces[id].type == PieceType::kNormal || model.pieces[id].type == PieceType::kUserDefined;
  std::vector<float> scores(count);
  for (size_t id = 0; id < count; ++id) scores[id] = model.pieces[id].score;
  return MergesOfSplits(model.vocabulary, RankByScore(scores, mergeable), mergeable, SplitOrder::kSharedRank);
}

void SetOwnRules(const Settings& settings, TokenizerSpec& spec) {
  NormalizerStep step;
  if (settings.remove_extra_whitespaces) {
    step.kind = NormalizerStep::Kind::kCollapseSpaces;
    spec.normalizers.push_back(step);
  }
  if (settings.add_dummy_prefix) {
    step.kind = NormalizerStep::Kind::kPrepend;
    step.content = kMetaspaceMark;
    spec.normalizers.push_back(step);
  }
  step.kind = NormalizerStep::Kind::kReplace;
  step.pattern = " ";
  step.content = kMetaspaceMark;
  spec.normalizers.push_back(step);

  spec.decoders = MetaspaceDecoders(/*prefix_space=*/settings.add_dummy_prefix);
}

}  // namespace

Result<SentencePieceModel> ReadSentencePiece(std::string_view bytes, const std::string& name,
                                             SentencePieceRules rules) {
  ModelReader reader(name);
  RETURN_IF_ERROR(reader.Read(bytes));
  RETURN_IF_ERROR(CheckSupported(reader, name));
  SentencePieceModel model;
  auto merges = MergesOf(reader, rules);
  if (!merges.ok()) return Error{merges.error().kind, name + ": " + merges.error().message};
  model.spec.merges = std::move(*merges);
  model.spec.vocabulary = std::move(reader.vocabulary);
  const Settings& settings = reader.settings;
  model.unk_piece = settings.unk_piece;
  if (settings.bos_id >= 0) model.bos_piece = settings.bos_piece;
  if (settings.eos_id >= 0) model.eos_piece = settings.eos_piece;
  model.spec.bpe.fuse_unk = true;
  if (rules == SentencePieceRules::kOwn) {
    model.spec.bpe.byte_fallback = settings.byte_fallback;
    model.spec.bpe.unk_token = settings.unk_piece;
    SetOwnRules(settings, model.spec);
  }
  for (size_t id = 0; id < reader.pieces.size(); ++id) {
    const PieceType type = reader.pieces[id].type;
    if (type != PieceType::kControl && type != PieceType::kUserDefined) continue;
    AddedToken token;
    token.content = model.spec.vocabulary.Text(static_cast<TokenId>(id));
    token.normalized = false;
    token.special = type == PieceType::kControl;
    if (const Status added = AddToken(std::move(token), model.spec); !added.ok())
      return Invalid("{}: {}", name, added.error().message);
  }
  return model;
}

}  // namespace infinigen
