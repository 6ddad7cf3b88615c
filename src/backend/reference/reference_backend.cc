#include "backend/reference/reference_backend.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/reference/block_product.h"
#include "kv/select.h"
#include "kv/store.h"
#include "kv/turn.h"

namespace infinigen {
void ReferenceBackend::Embed(Queue, const TokenBatch& batch, const WeightView& table, const Tensor& out) {
  for (int64_t t = 0; t < batch.count; ++t)
    DecodeRow(table, batch.ids[t], {out.as<float>(t), static_cast<size_t>(table.cols)});
}

void ReferenceBackend::AddPositions(Queue, const TokenBatch& batch, const WeightView& table, int64_t offset,
                                    const Tensor& x) {
  std::vector<float> numbers(static_cast<size_t>(table.cols));
  for (int64_t t = 0; t < batch.count; ++t) {
    DecodeRow(table, batch.Position(t) + offset, numbers);
    for (int64_t i = 0; i < table.cols; ++i) x.as<float>(t)[i] += numbers[static_cast<size_t>(i)];
  }
}

void ReferenceBackend::RmsNorm(Queue, const Tensor& x, const ConstTensor& weight, float eps, const Tensor& out) {
  for (int64_t r = 0; r < x.rows; ++r) {
    const float* in = x.as<float>(r);
    float squares = 0;
    for (int64_t i = 0; i < x.cols; ++i) squares += in[i] * in[i];
    const float scale = 1.0f / std::sqrt(squares / static_cast<float>(x.cols) + eps);
    for (int64_t i = 0; i < x.cols; ++i) out.as<float>(r)[i] = in[i] * scale * weight.as<float>()[i];
  }
}

void ReferenceBackend::LayerNorm(Queue, const Tensor& x, const ConstTensor& weight, const ConstTensor& bias, float eps,
                                 const Tensor& out) {
  for (int64_t r = 0; r < x.rows; ++r) {
    const float* in = x.as<float>(r);
    const float n = static_cast<float>(x.cols);
    float sum = 0;
    for (int64_t i = 0; i < x.cols; ++i) sum += in[i];
    const float mean = sum / n;
    float squares = 0;
    for (int64_t i = 0; i < x.cols; ++i) squares += (in[i] - mean) * (in[i] - mean);
    const float scale = 1.0f / std::sqrt(squares / n + eps);
    for (int64_t i = 0; i < x.cols; ++i)
      out.as<float>(r)[i] = (in[i] - mean) * scale * weight.as<float>()[i] + bias.as<float>()[i];
  }
}

void ReferenceBackend::MatMul(Queue, const Tensor& x, std::span<const Projection> projections) {
  for (const Projection& p : projections) {
    std::vector<float> weight(static_cast<size_t>(p.weight.cols));
    for (int64_t n = 0; n < p.weight.rows; ++n) {
      DecodeRow(p.weight, n, weight);
      for (int64_t r = 0; r < x.rows; ++r) {
        float sum = 0;
        if (IsPlain(p.weight.type)) {
          for (int64_t k = 0; k < x.cols; ++k) sum += x.as<float>(r)[k] * weight[static_cast<size_t>(k)];
        } else {
          sum = BlockProduct(p.weight, n, {x.as<float>(r), static_cast<size_t>(x.cols)});
        }
        if (p.bias) sum += p.bias.as<float>()[n];
        float& out = p.out.as<float>(r)[n];
        switch (p.epilogue) {
          case Epilogue::kStore:
            out = sum;
            break;
          case Epilogue::kAdd:
            out += sum;
            break;
          case Epilogue::kRelu:
            out = std::max(sum, 0.0f);
            break;
        }
      }
    }
  }
}

void ReferenceBackend::RopeTable(Queue, const TokenBatch& batch, const ConstTensor& frequencies, float factor,
                                 const Tensor& table) {
  const int64_t half = frequencies.cols;
  for (int64_t t = 0; t < batch.count; ++t) {
    for (int64_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(batch.Position(t)) * frequencies.as<float>()[i];
      table.as<float>(t)[i] = std::cos(angle) * factor;
      table.as<float>(t)[half + i] = std::sin(angle) * factor;
    }
  }
}

void ReferenceBackend::Rope(Queue, const ConstTensor& table, const RopeShape& shape, const Tensor& x) {
  const int64_t half = table.cols / 2;
  CHECK(table.cols <= shape.head_dim && x.cols % shape.head_dim == 0);
  for (int64_t t = 0; t < x.rows; ++t) {
    const float* cosines = table.as<float>(t);
    const float* sines = cosines + half;
    for (float* head = x.as<float>(t); head != x.as<float>(t) + x.cols; head += shape.head_dim) {
      for (int64_t i = 0; i < half; ++i) {
        float &first = head[shape.adjacent ? 2 * i : i], &second = head[shape.adjacent ? 2 * i + 1 : half + i];
        const float a = first, b = second;
        first = a * cosines[i] - b * sines[i];
        second = b * cosines[i] + a * sines[i];
      }
    }
  }
}

void ReferenceBackend::GeluMul(Queue, const Tensor& gate, const Tensor& up) {
  for (int64_t r = 0; r < gate.rows; ++r) {
    for (int64_t i = 0; i < gate.cols; ++i) {
      const double g = gate.as<float>(r)[i];
      const double gelu = 0.5 * g * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (g + 0.044715 * g * g * g)));
      gate.as<float>(r)[i] = static_cast<float>(gelu) * up.as<float>(r)[i];
    }
  }
}

void ReferenceBackend::Add(Queue, const ConstTensor& y, const Tensor& x) {
  for (int64_t r = 0; r < x.rows; ++r)
    for (int64_t i = 0; i < x.cols; ++i) x.as<float>(r)[i] += y.as<float>(r)[i];
}

void ReferenceBackend::Scale(Queue, float factor, const Tensor& x) {
  for (int64_t r = 0; r < x.rows; ++r)
    for (int64_t i = 0; i < x.cols; ++i) x.as<float>(r)[i] *= factor;
}

void ReferenceBackend::SoftCap(Queue, float cap, const Tensor& x) {
  for (int64_t r = 0; r < x.rows; ++r)
    for (int64_t i = 0; i < x.cols; ++i) x.as<float>(r)[i] = SoftCapped(x.as<float>(r)[i], cap);
}

void ReferenceBackend::SiluMul(Queue, const Tensor& gate, const Tensor& up) {
  for (int64_t r = 0; r < gate.rows; ++r) {
    for (int64_t i = 0; i < gate.cols; ++i) {
      const float g = gate.as<float>(r)[i];
      gate.as<float>(r)[i] = g / (1.0f + std::exp(-g)) * up.as<float>(r)[i];
    }
  }
}

void ReferenceBackend::TurnHeads(Queue, const ConstTensor& x, int64_t head_dim, const Tensor& out) {
  for (int64_t r = 0; r < x.rows; ++r) {
    std::copy_n(x.as<float>(r), x.cols, out.as<float>(r));
    for (int64_t head = 0; head < x.cols; head += head_dim)
      TurnHead({out.as<float>(r) + head, static_cast<size_t>(head_dim)});
  }
}

void ReferenceBackend::Append(Queue, const TokenBatch& batch, const ConstTensor& keys, const ConstTensor& values,
                              const LayerEntries& entries) {
  const EntryLayout& layout = entries.layout;
  for (int64_t t = 0; t < batch.count; ++t) {
    for (int64_t head = 0; head < layout.kv_heads; ++head) {
      std::byte* entry = entries.Entry(batch.slots[t], head, batch.OwnRow(t, head));
      const auto dim = static_cast<size_t>(layout.head_dim);
      StoreRow(layout.key_type(), {keys.as<float>(t) + head * layout.head_dim, dim}, entry);
      StoreRow(layout.value_type(), {values.as<float>(t) + head * layout.head_dim, dim}, entry + layout.key_bytes());
    }
  }
}

}  // namespace infinigen
