// The device half of compiler-demo: what runs its blobs inside ExecuTorch's runtime.
//
// Blob, operators and settings are described in ../compiler: format.py, operators.py, options.py. A blob is checked
// whole when it is loaded, as format.py does, so that running it has to look at nothing but its inputs. Loading this
// library registers the backend.

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/platform/log.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

namespace {

using executorch::aten::ScalarType;
using executorch::aten::Tensor;
using executorch::runtime::ArrayRef;
using executorch::runtime::Backend;
using executorch::runtime::BackendExecutionContext;
using executorch::runtime::BackendInitContext;
using executorch::runtime::BackendInterface;
using executorch::runtime::CompileSpec;
using executorch::runtime::DelegateHandle;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::FreeableBuffer;
using executorch::runtime::register_backend;
using executorch::runtime::Result;
using executorch::runtime::Span;

constexpr char kName[] = "BackendWithCompilerDemo";
constexpr uint8_t kVersion = 1;

// --- Values

constexpr size_t kRanks = 64;
constexpr uint64_t kElements = uint64_t{1} << 32;

using Shape = std::vector<uint32_t>;

// A float32 tensor in C order. `data` belongs to the caller (inputs), to a weight, or is `own` (results).
struct Value {
  Shape shape;
  const float* data = nullptr;
  std::unique_ptr<float[]> own = nullptr;
};

using Operands = std::vector<const Value*>;

size_t count(const Shape& shape) {
  size_t elements = 1;
  for (uint32_t dimension : shape) {
    elements *= dimension;
  }
  return elements;
}

// Whether a value may have this shape. A dimension of 0 counts as 1.
bool fits(const Shape& shape) {
  uint64_t elements = 1;
  for (uint32_t dimension : shape) {
    elements *= std::max<uint64_t>(dimension, 1);
    if (elements >= kElements) {
      return false;
    }
  }
  return shape.size() <= kRanks;
}

// --- Shapes of results: false if the operands do not fit together

// [*S], [*T] -> the shape that both are repeated to
bool broadcast_shapes(const Shape& a, const Shape& b, Shape& result) {
  result.assign(std::max(a.size(), b.size()), 1);
  for (size_t k = 1; k <= result.size(); ++k) {
    const uint32_t p = k <= a.size() ? a[a.size() - k] : 1;
    const uint32_t q = k <= b.size() ? b[b.size() - k] : 1;
    if (p != q && p != 1 && q != 1) {
      return false;
    }
    result[result.size() - k] = p == 1 ? q : p;
  }
  return true;
}

bool broadcast(const Operands& in, Shape& result) {
  return broadcast_shapes(in[0]->shape, in[1]->shape, result);
}

// [N, K], [K, M] -> [N, M]
bool product(const Shape& a, const Shape& b, Shape& result) {
  if (a.size() != 2 || b.size() != 2 || a[1] != b[0]) {
    return false;
  }
  result = {a[0], b[1]};
  return true;
}

bool mm_shape(const Operands& in, Shape& result) {
  return product(in[0]->shape, in[1]->shape, result);
}

// bias that broadcasts to [N, M], [N, K], [K, M] -> [N, M]
bool addmm_shape(const Operands& in, Shape& result) {
  Shape repeated;
  return product(in[1]->shape, in[2]->shape, result) && broadcast_shapes(result, in[0]->shape, repeated) &&
      repeated == result;
}

// [*S, K], [M, K], bias [M] or [] -> [*S, M]
bool linear_shape(const Operands& in, Shape& result) {
  const Shape &x = in[0]->shape, &weight = in[1]->shape, bias = in.size() > 2 ? in[2]->shape : Shape{};
  if (x.empty() || weight.size() != 2 || x.back() != weight[1] || !(bias.empty() || bias == Shape{weight[0]})) {
    return false;
  }
  result = x;
  result.back() = weight[0];
  return true;
}

bool same_shape(const Operands& in, Shape& result) {
  result = in[0]->shape;
  return true;
}

// --- Kernels: `out` has room for a result of `shape`

// Where element `index` of `shape` comes from in a value that is repeated to that shape.
size_t source(size_t index, const Shape& shape, const Shape& value) {
  size_t position = 0, stride = 1;
  for (size_t k = 1; k <= value.size(); ++k) {
    const size_t dimension = shape[shape.size() - k];
    if (value[value.size() - k] != 1) {
      position += index % dimension * stride;
      stride *= dimension;
    }
    index /= dimension;
  }
  return position;
}

template <typename Combine>
void elementwise(const Operands& in, const Shape& shape, float* out, Combine combine) {
  for (size_t k = 0, end = count(shape); k < end; ++k) {
    out[k] = combine(in[0]->data[source(k, shape, in[0]->shape)], in[1]->data[source(k, shape, in[1]->shape)]);
  }
}

void add(const Operands& in, const Shape& shape, float* out) {
  elementwise(in, shape, out, [](float a, float b) { return a + b; });
}

void mul(const Operands& in, const Shape& shape, float* out) {
  elementwise(in, shape, out, [](float a, float b) { return a * b; });
}

void sin(const Operands& in, const Shape& shape, float* out) {
  std::transform(in[0]->data, in[0]->data + count(shape), out, [](float x) { return std::sin(x); });
}

// out[n, m] += sum over k of a[n, k] * b[k, m], where b has the given distances between its elements
void multiply(const Value& a, const float* b, size_t step_k, size_t step_m, const Shape& shape, float* out) {
  const size_t columns = shape.back(), depth = a.shape.back();
  for (size_t k = 0, end = count(shape); k < end; ++k) {
    const float* row = a.data + k / columns * depth;
    const float* column = b + k % columns * step_m;
    double sum = out[k];
    for (size_t j = 0; j < depth; ++j) {
      sum += double{row[j]} * double{column[j * step_k]};
    }
    out[k] = static_cast<float>(sum);
  }
}

// What a product is added to: the bias, repeated, or zeros.
void begin(const Value* bias, const Shape& shape, float* out) {
  for (size_t k = 0, end = count(shape); k < end; ++k) {
    out[k] = bias == nullptr ? 0 : bias->data[source(k, shape, bias->shape)];
  }
}

void mm(const Operands& in, const Shape& shape, float* out) {
  begin(nullptr, shape, out);
  multiply(*in[0], in[1]->data, shape.back(), 1, shape, out);
}

void addmm(const Operands& in, const Shape& shape, float* out) {
  begin(in[0], shape, out);
  multiply(*in[1], in[2]->data, shape.back(), 1, shape, out);
}

void linear(const Operands& in, const Shape& shape, float* out) {
  begin(in.size() > 2 ? in[2] : nullptr, shape, out);
  multiply(*in[0], in[1]->data, 1, in[0]->shape.back(), shape, out);
}

// --- Operators: one row each, with the codes of operators.py

struct Operator {
  uint8_t code;
  size_t least, most;
  bool (*infer)(const Operands&, Shape& result);
  void (*compute)(const Operands&, const Shape&, float* out);
};

constexpr Operator kOperators[] = {
    {1, 2, 2, broadcast, add},
    {2, 2, 2, broadcast, mul},
    {3, 2, 2, mm_shape, mm},
    {4, 3, 3, addmm_shape, addmm},
    {5, 2, 3, linear_shape, linear},
    {6, 1, 1, same_shape, sin},
};

const Operator* find_operator(uint8_t code, size_t operands) {
  for (const Operator& row : kOperators) {
    if (row.code == code && row.least <= operands && operands <= row.most) {
      return &row;
    }
  }
  return nullptr;
}

// --- A delegate: a blob that has been read

struct Step {
  const Operator* op;
  std::vector<uint32_t> operands;
};

// Values are numbered as in the blob: inputs, weights, and the result of each step.
struct Delegate {
  size_t inputs = 0;
  double max_value = std::numeric_limits<double>::infinity();
  bool limited = false;
  std::vector<FreeableBuffer> weights;
  std::vector<Value> values;
  std::vector<Step> steps;
  std::vector<uint32_t> outputs;
};

// Takes little-endian numbers from a blob. After the first that is not there all are 0, and `intact` is false.
class Reader {
 public:
  explicit Reader(const FreeableBuffer& blob)
      : next_(static_cast<const uint8_t*>(blob.data())), end_(next_ + blob.size()) {}

  bool intact = true;

  bool at_end() const {
    return next_ == end_;
  }

  const uint8_t* take(size_t size) {
    intact = intact && size <= static_cast<size_t>(end_ - next_);
    const uint8_t* taken = next_;
    next_ += intact ? size : 0;
    return intact ? taken : nullptr;
  }

  uint8_t byte() {
    const uint8_t* at = take(1);
    return at == nullptr ? 0 : *at;
  }

  uint32_t number() {
    const uint8_t* at = take(4);
    return at == nullptr ? 0 : at[0] | at[1] << 8 | at[2] << 16 | uint32_t{at[3]} << 24;
  }

  Shape shape() {
    Shape read(byte());
    std::generate(read.begin(), read.end(), [this] { return number(); });
    intact = intact && fits(read);
    return read;
  }

  // The key of a weight's data: a name by content.
  std::string key() {
    constexpr char kDigits[] = "0123456789abcdef";
    std::string name = "compiler-demo/";
    const uint8_t* digest = take(32);
    for (size_t k = 0; k < 32 && digest != nullptr; ++k) {
      name += {kDigits[digest[k] >> 4], kDigits[digest[k] & 15]};
    }
    return name;
  }

 private:
  const uint8_t* next_;
  const uint8_t* end_;
};

#define RETURN_IF_NOT(condition, error, ...)          \
  do {                                                \
    if (!(condition)) {                               \
      ET_LOG(Error, "compiler-demo: " __VA_ARGS__);   \
      return Error::error;                            \
    }                                                 \
  } while (false)

Error read_weight(Reader& reader, BackendInitContext& context, Delegate& delegate) {
  const std::string key = reader.key();
  Value value{reader.shape()};
  RETURN_IF_NOT(reader.intact, InvalidProgram, "the blob is damaged in its weights");
  const auto* map = context.get_named_data_map();
  RETURN_IF_NOT(map != nullptr, NotFound, "the program has no named data");
  Result<FreeableBuffer> data = map->get_data(key);
  RETURN_IF_NOT(data.ok(), NotFound, "there is no named data %s", key.c_str());
  RETURN_IF_NOT(data->size() == 4 * count(value.shape), InvalidExternalData, "the size of %s is wrong", key.c_str());
  RETURN_IF_NOT(
      reinterpret_cast<uintptr_t>(data->data()) % alignof(float) == 0, InvalidExternalData, "%s is not aligned",
      key.c_str());
  value.data = static_cast<const float*>(data->data());
  delegate.weights.push_back(std::move(*data));
  delegate.values.push_back(std::move(value));
  return Error::Ok;
}

Error read_step(Reader& reader, Delegate& delegate) {
  const uint8_t code = reader.byte();
  Step step{nullptr, std::vector<uint32_t>(reader.byte())};
  step.op = find_operator(code, step.operands.size());
  RETURN_IF_NOT(reader.intact && step.op != nullptr, InvalidProgram, "there is no operator %u of this kind", code);
  Operands operands;
  for (uint32_t& operand : step.operands) {
    operand = reader.number();
    RETURN_IF_NOT(operand < delegate.values.size(), InvalidProgram, "a step reads a value that is not known before it");
    operands.push_back(&delegate.values[operand]);
  }
  Value result;
  RETURN_IF_NOT(
      reader.intact && step.op->infer(operands, result.shape) && fits(result.shape), InvalidProgram,
      "the operands of operator %u do not fit", code);
  result.own.reset(new float[count(result.shape)]);
  result.data = result.own.get();
  delegate.values.push_back(std::move(result));
  delegate.steps.push_back(std::move(step));
  return Error::Ok;
}

Error read_blob(Reader& reader, BackendInitContext& context, Delegate& delegate) {
  const uint8_t* magic = reader.take(4);
  RETURN_IF_NOT(magic != nullptr && std::memcmp(magic, "DGCD", 4) == 0, InvalidProgram, "this is no blob");
  const unsigned version = reader.byte();
  RETURN_IF_NOT(
      version == kVersion, DelegateInvalidCompatibility, "the blob has version %u; version %u is read here", version,
      unsigned{kVersion});
  const uint32_t inputs = reader.number(), weights = reader.number();
  const uint32_t steps = reader.number(), outputs = reader.number();
  delegate.inputs = inputs;
  for (uint32_t k = 0; k < inputs && reader.intact; ++k) {
    delegate.values.push_back(Value{reader.shape()});
  }
  for (uint32_t k = 0; k < weights && reader.intact; ++k) {
    ET_CHECK_OK_OR_RETURN_ERROR(read_weight(reader, context, delegate));
  }
  for (uint32_t k = 0; k < steps && reader.intact; ++k) {
    ET_CHECK_OK_OR_RETURN_ERROR(read_step(reader, delegate));
  }
  for (uint32_t k = 0; k < outputs && reader.intact; ++k) {
    const uint32_t output = reader.number();
    RETURN_IF_NOT(
        output >= inputs + weights && output < delegate.values.size(), InvalidProgram, "an output is not computed");
    delegate.outputs.push_back(output);
  }
  RETURN_IF_NOT(reader.intact && reader.at_end(), InvalidProgram, "the blob is damaged");
  return Error::Ok;
}

// The one setting, max_value: a byte, or a little-endian double.
Error read_settings(ArrayRef<CompileSpec> specs, Delegate& delegate) {
  for (const CompileSpec& spec : specs) {
    RETURN_IF_NOT(!delegate.limited && std::strcmp(spec.key, "max_value") == 0, NotSupported, "setting %s", spec.key);
    const size_t size = spec.value.nbytes;
    RETURN_IF_NOT(size == 1 || size == sizeof(double), InvalidArgument, "max_value has %zu bytes", size);
    if (size == 1) {
      delegate.max_value = *static_cast<const uint8_t*>(spec.value.buffer);
    } else {
      std::memcpy(&delegate.max_value, spec.value.buffer, size);
    }
    RETURN_IF_NOT(delegate.max_value >= 0, InvalidArgument, "max_value is 0 or more");  // NaN is not either
    delegate.limited = true;
  }
  return Error::Ok;
}

bool in_range(const Delegate& delegate, const Value& value) {
  const auto allowed = [&](float x) { return std::fabs(x) <= delegate.max_value; };  // false for NaN
  return !delegate.limited || std::all_of(value.data, value.data + count(value.shape), allowed);
}

// Whether a tensor is a float32 one of this shape in C order.
bool is_like(const EValue& argument, const Value& value) {
  if (!argument.isTensor() || argument.toTensor().scalar_type() != ScalarType::Float) {
    return false;
  }
  const Tensor& tensor = argument.toTensor();
  const auto sizes = tensor.sizes();
  const auto order = tensor.dim_order();
  for (size_t k = 0; k < sizes.size(); ++k) {
    if (order[k] != k) {
      return false;
    }
  }
  return std::equal(sizes.begin(), sizes.end(), value.shape.begin(), value.shape.end(), [](auto a, auto b) {
    return static_cast<uint32_t>(a) == b;
  });
}

// --- What the runtime calls

class CompilerDemo final : public BackendInterface {
 public:
  bool is_available() const override {
    return true;
  }

  // Called once for each delegate of a method. The weights stay where the program has them.
  Result<DelegateHandle*> init(
      BackendInitContext& context, FreeableBuffer* processed, ArrayRef<CompileSpec> compile_specs) const override try {
    auto delegate = std::make_unique<Delegate>();
    Reader reader(*processed);
    ET_CHECK_OK_OR_RETURN_ERROR(read_settings(compile_specs, *delegate));
    ET_CHECK_OK_OR_RETURN_ERROR(read_blob(reader, context, *delegate));
    processed->Free();
    return delegate.release();
  } catch (const std::bad_alloc&) {
    ET_LOG(Error, "compiler-demo: there is no memory for the delegate");
    return Error::DelegateMemoryAllocationFailed;
  }

  // `arguments`: the inputs, then the outputs. An output may share memory with an input: it is written last.
  Error execute(BackendExecutionContext&, DelegateHandle* handle, Span<EValue*> arguments) const override {
    Delegate& delegate = *static_cast<Delegate*>(handle);
    RETURN_IF_NOT(
        arguments.size() == delegate.inputs + delegate.outputs.size(), InvalidArgument, "there are %zu arguments",
        arguments.size());
    ET_CHECK_OK_OR_RETURN_ERROR(take_inputs(delegate, arguments));
    ET_CHECK_OK_OR_RETURN_ERROR(compute(delegate));
    return give_outputs(delegate, arguments);
  }

  void destroy(DelegateHandle* handle) const override {
    delete static_cast<Delegate*>(handle);
  }

 private:
  static Error take_inputs(Delegate& delegate, Span<EValue*> arguments) {
    for (size_t k = 0; k < delegate.inputs; ++k) {
      Value& value = delegate.values[k];
      RETURN_IF_NOT(is_like(*arguments[k], value), InvalidArgument, "input %zu has another type or shape", k);
      value.data = arguments[k]->toTensor().const_data_ptr<float>();
      RETURN_IF_NOT(in_range(delegate, value), InvalidArgument, "input %zu is larger than max_value", k);
    }
    return Error::Ok;
  }

  static Error compute(Delegate& delegate) {
    Value* result = delegate.values.data() + delegate.inputs + delegate.weights.size();
    for (const Step& step : delegate.steps) {
      Operands operands;
      for (uint32_t operand : step.operands) {
        operands.push_back(&delegate.values[operand]);
      }
      step.op->compute(operands, result->shape, result->own.get());
      RETURN_IF_NOT(
          in_range(delegate, *result), InvalidArgument, "a result of operator %u is larger than max_value",
          step.op->code);
      ++result;
    }
    return Error::Ok;
  }

  static Error give_outputs(const Delegate& delegate, Span<EValue*> arguments) {
    for (size_t k = 0; k < delegate.outputs.size(); ++k) {
      const Value& value = delegate.values[delegate.outputs[k]];
      EValue& argument = *arguments[delegate.inputs + k];
      RETURN_IF_NOT(is_like(argument, value), InvalidArgument, "output %zu has another type or shape", k);
      std::copy_n(value.data, count(value.shape), argument.toTensor().mutable_data_ptr<float>());
    }
    return Error::Ok;
  }
};

CompilerDemo backend;
const Error registered = register_backend(Backend{kName, &backend});

} // namespace
