// The device half: ExecuTorch's runtime calls it for the parts of a program that acme-npu computes.
//
// It reads the blobs that blob.py writes. Loops compute each operator: replace them by calls of your driver.
// When the library of this file is loaded, it registers the backend. Numbers of a blob are checked where they are
// used, and exceptions become errors of the runtime.

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/core/exec_aten/util/tensor_util.h>
#include <executorch/runtime/platform/log.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using namespace executorch::runtime;
using Ints = std::vector<int32_t>;
using Floats = std::vector<float>;

const std::string kFormat = "acme-npu 1\n"; // as in blob.py
enum { CONST, INPUT, ADD, CLAMP, CONV2D, IDENTITY, MATMUL, MUL, RESHAPE, SUB, TRANSPOSE }; // OPERATIONS of blob.py

void need(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

// --- A part of a program, read from its blob

struct Step {
  int32_t operation;
  Ints shape, operands, attributes;
};

struct Part {
  std::vector<Step> steps;
  Ints outputs;
};

uint32_t crc32(const char* bytes, size_t size) {
  uint32_t crc = ~0u;
  for (size_t k = 0; k < 8 * size; ++k) {
    crc ^= k % 8 == 0 ? static_cast<uint8_t>(bytes[k / 8]) : 0;
    crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
  }
  return ~crc;
}

// Reads the words of a blob in order.
struct Words {
  Ints words;
  size_t position = 0;

  explicit Words(const std::string& blob) {
    const size_t start = kFormat.size() + 4, size = blob.size() < start ? 0 : blob.size() - start;
    const uint32_t checksum = crc32(blob.data() + start, size);
    const std::string header = kFormat + std::string(reinterpret_cast<const char*>(&checksum), 4);
    need(blob.compare(0, start, header) == 0, "the blob is damaged, or not of this version of acme-npu");
    words.resize(size / 4);
    std::memcpy(words.data(), blob.data() + start, 4 * words.size());
  }
  int32_t number() { return words.at(position++); }
  Ints list() {
    const uint32_t size = number();
    need(size <= words.size() - position, "the blob ends too early");
    position += size;
    return Ints(words.begin() + position - size, words.begin() + position);
  }
};

// --- The operators, on float32 tensors in C order

struct Value {
  Ints shape;
  Floats data;
};

size_t count(const Ints& shape) {
  uint64_t elements = 1;
  for (int32_t size : shape) need(size > 0 && (elements *= size) >> 32 == 0, "a damaged shape");
  return elements;
}

// The element of `value` for element `index` of a result of that shape. Axis k of the result is axis axes[k] of the
// value, or k without `axes`; an axis of size 1 is repeated.
float element(const Value& value, size_t index, const Ints& shape, const Ints* axes = nullptr) {
  Ints strides(value.shape.size());
  size_t stride = 1, place = 0;
  for (size_t k = strides.size(); k-- > 0; stride *= value.shape[k]) strides[k] = value.shape[k] == 1 ? 0 : stride;
  for (size_t k = shape.size(); k-- > 0; index /= shape[k]) {
    place += index % shape[k] * strides.at(axes == nullptr ? k : axes->at(k));
  }
  return value.data.at(place);
}

// The sum of products of a row of `a` and of elements of `b` from `start` on, `step` apart.
float product(const Value& a, size_t row, size_t depth, const Value& b, size_t start, size_t step) {
  double sum = 0;
  for (size_t k = 0; k < depth; ++k) sum += double{a.data.at(row * depth + k)} * b.data.at(start + k * step);
  return static_cast<float>(sum);
}

// Element k of the result of a step.
float compute(const Step& step, const std::vector<const Value*>& in, size_t k) {
  const Ints& shape = step.shape;
  const Value& x = *in.at(0);
  const size_t column = k % (shape.empty() ? 1 : shape.back()), row = k / (shape.empty() ? 1 : shape.back());
  switch (step.operation) {
    case ADD: return element(x, k, shape) + element(*in.at(1), k, shape);
    case SUB: return element(x, k, shape) - element(*in.at(1), k, shape);
    case MUL: return element(x, k, shape) * element(*in.at(1), k, shape);
    case TRANSPOSE: return element(x, k, shape, &step.attributes);
    case CLAMP: {
      float limits[2];
      std::memcpy(limits, &step.attributes.at(1) - 1, sizeof limits);
      return x.data.at(k) < limits[0] ? limits[0] : x.data[k] > limits[1] ? limits[1] : x.data[k]; // NaN stays
    }
    case CONV2D: { // [N, H, W, C], weight [O, 1, 1, C], bias [O] or [1] -> [N, H, W, O]
      const Floats& bias = in.at(2)->data;
      const size_t depth = x.shape.at(3);
      return product(x, row, depth, *in[1], column * depth, 1) + bias.at(bias.size() == 1 ? 0 : column);
    }
    case MATMUL: { // [N, H, C], [N, C, W] -> [N, H, W]
      const size_t depth = x.shape.at(2), width = shape.at(2);
      return product(x, row, depth, *in.at(1), row / shape[1] * depth * width + column, width);
    }
    default: return x.data.at(k); // IDENTITY, RESHAPE
  }
}

// --- The functions that the runtime calls

// Return the memory of an argument, which must have this number of elements.
float* elements(const EValue& argument, size_t count) {
  const auto& tensor = argument.toTensor();
  const bool fits = size_t(tensor.numel()) == count && tensor.scalar_type() == executorch::aten::ScalarType::Float;
  need(fits && tensor_is_default_dim_order(tensor), "an argument is no float32 tensor of that size in C order");
  return tensor.mutable_data_ptr<float>();
}

struct AcmeNpu final : BackendInterface {
  bool is_available() const override { return true; } // check here whether the device is present

  // Called when a method is loaded, once for each delegate.
  Result<DelegateHandle*> init(BackendInitContext&, FreeableBuffer* blob, ArrayRef<CompileSpec>) const override try {
    auto part = std::make_unique<Part>();
    Words words(std::string(static_cast<const char*>(blob->data()), blob->size()));
    for (int32_t k = words.number(); k > 0; --k) {
      part->steps.push_back(Step{words.number(), words.list(), words.list(), words.list()});
    }
    part->outputs = words.list();
    blob->Free();
    return part.release();
  } catch (const std::exception& e) {
    ET_LOG(Error, "acme-npu: %s", e.what());
    return Error::InvalidProgram;
  }

  // `arguments`: the inputs, then the outputs. An output may share memory with an input, so it is written last.
  Error execute(BackendExecutionContext&, DelegateHandle* handle, Span<EValue*> arguments) const override try {
    const Part& part = *static_cast<const Part*>(handle);
    std::vector<Value> values;
    size_t next = 0; // of the arguments
    for (const Step& step : part.steps) {
      Value result{step.shape, Floats(count(step.shape))};
      std::vector<const Value*> in;
      for (int32_t k : step.operands) in.push_back(&values.at(k));
      if (step.operation == INPUT) {
        need(next < arguments.size(), "an input is missing");
        std::copy_n(elements(*arguments[next++], result.data.size()), result.data.size(), result.data.begin());
      } else if (step.operation == CONST) {
        need(step.attributes.size() == result.data.size(), "a damaged constant");
        std::memcpy(result.data.data(), step.attributes.data(), 4 * result.data.size());
      } else {
        for (size_t k = 0; k < result.data.size(); ++k) result.data[k] = compute(step, in, k);
      }
      values.push_back(std::move(result));
    }
    need(arguments.size() == next + part.outputs.size(), "a wrong number of arguments");
    for (int32_t k : part.outputs) {
      const Floats& data = values.at(k).data;
      std::copy(data.begin(), data.end(), elements(*arguments[next++], data.size()));
    }
    return Error::Ok;
  } catch (const std::exception& e) {
    ET_LOG(Error, "acme-npu: %s", e.what());
    return Error::InvalidArgument;
  }

  void destroy(DelegateHandle* handle) const override { delete static_cast<Part*>(handle); }
};

AcmeNpu backend;
const Error registered = register_backend({"AcmeNpuBackend", &backend});

} // namespace
