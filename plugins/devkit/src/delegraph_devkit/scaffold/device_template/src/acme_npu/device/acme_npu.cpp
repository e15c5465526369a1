// The device half: ExecuTorch's runtime calls it for the parts of a program that acme-npu computes.
//
// It reads the blobs that blob.py writes. Loops compute each instruction: replace them by calls of your driver.
// When the library of this file is loaded, it registers the backend.

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/core/exec_aten/util/tensor_util.h>
#include <executorch/runtime/platform/log.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace executorch::runtime;
using executorch::aten::ScalarType;
using executorch::aten::SizesType;
using executorch::aten::Tensor;

constexpr char kName[] = "AcmeNpuBackend";
constexpr char kFormat[] = "acme-npu";
constexpr int kVersion = 1; // as in blob.py

#define RETURN_IF_NOT(condition, error, ...)   \
  do {                                         \
    if (!(condition)) {                        \
      ET_LOG(Error, "acme-npu: " __VA_ARGS__); \
      return Error::error;                     \
    }                                          \
  } while (false)

// --- The instructions of instructions.py, on float32 tensors in C order

using Shape = std::vector<SizesType>;

struct Value {
  Shape shape;
  std::vector<float> data;
};

using Operands = std::vector<const Value*>; // nullptr for an absent bias

size_t count(const Shape& shape) {
  size_t elements = 1;
  for (SizesType dimension : shape) {
    elements *= dimension;
  }
  return elements;
}

// Return the position in a value that is broadcast to `shape`, for the element `index` of `shape`.
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
bool elementwise(const Value& a, const Value& b, Value& result, Combine combine) {
  result.shape.assign(std::max(a.shape.size(), b.shape.size()), 1);
  for (size_t k = 1; k <= result.shape.size(); ++k) {
    const SizesType p = k <= a.shape.size() ? a.shape[a.shape.size() - k] : 1;
    const SizesType q = k <= b.shape.size() ? b.shape[b.shape.size() - k] : 1;
    if (p != q && p != 1 && q != 1) {
      return false;
    }
    result.shape[result.shape.size() - k] = p == 1 ? q : p;
  }
  result.data.resize(count(result.shape));
  for (size_t k = 0; k < result.data.size(); ++k) {
    result.data[k] = combine(a.data[source(k, result.shape, a.shape)], b.data[source(k, result.shape, b.shape)]);
  }
  return true;
}

bool add(const Operands& in, Value& result) {
  return elementwise(*in[0], *in[1], result, [](float a, float b) { return a + b; });
}

bool mul(const Operands& in, Value& result) {
  return elementwise(*in[0], *in[1], result, [](float a, float b) { return a * b; });
}

bool relu(const Operands& in, Value& result) {
  result = *in[0];
  for (float& x : result.data) {
    x = x < 0 ? 0 : x; // NaN stays
  }
  return true;
}

// Rows of `a` times `columns` columns of `b`, whose elements have these distances along k and along the columns.
void multiply(const Value& a, const Value& b, size_t columns, size_t step_k, size_t step_column, Value& result) {
  const size_t depth = a.shape.back();
  result.data.resize(count(result.shape));
  for (size_t k = 0; k < result.data.size(); ++k) {
    const float* row = a.data.data() + k / columns * depth;
    const float* column = b.data.data() + k % columns * step_column;
    double sum = 0;
    for (size_t j = 0; j < depth; ++j) {
      sum += double{row[j]} * double{column[j * step_k]};
    }
    result.data[k] = static_cast<float>(sum);
  }
}

// [N, K], [K, M] -> [N, M]
bool mm(const Operands& in, Value& result) {
  const Shape &a = in[0]->shape, &b = in[1]->shape;
  if (a.size() != 2 || b.size() != 2 || a[1] != b[0]) {
    return false;
  }
  result.shape = {a[0], b[1]};
  multiply(*in[0], *in[1], b[1], b[1], 1, result);
  return true;
}

// [*S, K], weight [M, K] or [K], bias that broadcasts or none -> [*S, M] or [*S]
bool linear(const Operands& in, Value& result) {
  const Shape &x = in[0]->shape, &weight = in[1]->shape;
  if (x.empty() || weight.empty() || weight.size() > 2 || x.back() != weight.back()) {
    return false;
  }
  Value product;
  product.shape.assign(x.begin(), x.end() - 1);
  product.shape.insert(product.shape.end(), weight.begin(), weight.end() - 1);
  multiply(*in[0], *in[1], weight.size() == 2 ? weight[0] : 1, 1, x.back(), product);
  if (in.size() > 2 && in[2] != nullptr) {
    return add({&product, in[2]}, result);
  }
  result = std::move(product);
  return true;
}

struct Instruction {
  size_t least, most; // operands
  bool (*compute)(const Operands&, Value& result); // false for operands that do not fit together
};

const std::map<std::string, Instruction> kInstructions = {
    {"add", {2, 2, add}},
    {"mul", {2, 2, mul}},
    {"mm", {2, 2, mm}},
    {"linear", {2, 3, linear}},
    {"relu", {1, 1, relu}},
};

// --- A part of a program, read from its blob. Values are numbered: constants, inputs, result of each step

constexpr size_t kAbsent = SIZE_MAX;
constexpr uint64_t kElements = uint64_t{1} << 32; // the most elements of a weight

struct Step {
  Instruction instruction;
  std::vector<size_t> operands;
};

struct Part {
  std::vector<Value> constants;
  size_t inputs = 0;
  std::vector<Step> steps;
  std::vector<size_t> outputs;
};

using Numbers = std::map<std::string, size_t>; // the number of each value that is known so far, by name

uint32_t crc32(const std::string& text) {
  uint32_t crc = ~0u;
  for (unsigned char byte : text) {
    crc ^= byte;
    for (int k = 0; k < 8; ++k) {
      crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    }
  }
  return ~crc;
}

Error read_constant(std::istringstream& line, const NamedDataMap* data, Numbers& numbers, Part& part) {
  std::string name, key;
  Value value;
  uint64_t elements = 1;
  line >> name >> key;
  for (SizesType dimension; line >> dimension;) {
    elements *= std::max<SizesType>(dimension, 1);
    RETURN_IF_NOT(dimension >= 0 && elements <= kElements, InvalidProgram, "the shape of %s is damaged", name.c_str());
    value.shape.push_back(dimension);
  }
  RETURN_IF_NOT(data != nullptr, NotFound, "the program has no weights");
  Result<FreeableBuffer> stored = data->get_data(key);
  RETURN_IF_NOT(stored.ok(), NotFound, "the weight %s is missing", key.c_str());
  RETURN_IF_NOT(stored->size() == 4 * count(value.shape), InvalidExternalData, "the weight %s is damaged", key.c_str());
  const auto* bytes = static_cast<const char*>(stored->data());
  value.data.resize(count(value.shape));
  std::copy_n(bytes, stored->size(), reinterpret_cast<char*>(value.data.data()));
  numbers.emplace(name, numbers.size());
  part.constants.push_back(std::move(value));
  return Error::Ok;
}

Error read_step(std::istringstream& line, Numbers& numbers, Part& part) {
  std::string instruction, result;
  line >> instruction >> result;
  const auto found = kInstructions.find(instruction);
  RETURN_IF_NOT(found != kInstructions.end(), InvalidProgram, "there is no instruction %s", instruction.c_str());
  Step step{found->second, {}};
  for (std::string operand; line >> operand;) {
    const auto known = numbers.find(operand);
    const bool absent = operand == "-" && step.operands.size() == 2;
    RETURN_IF_NOT(absent || known != numbers.end(), InvalidProgram, "there is no value %s", operand.c_str());
    step.operands.push_back(absent ? kAbsent : known->second);
  }
  const size_t given = step.operands.size();
  RETURN_IF_NOT(
      found->second.least <= given && given <= found->second.most, InvalidProgram, "%s has %zu operands",
      instruction.c_str(), given);
  numbers.emplace(result, numbers.size());
  part.steps.push_back(std::move(step));
  return Error::Ok;
}

Error read_line(std::istringstream& line, const NamedDataMap* data, Numbers& numbers, Part& part) {
  std::string kind, name;
  line >> kind;
  if (kind == "constant") {
    return read_constant(line, data, numbers, part);
  }
  if (kind == "step") {
    return read_step(line, numbers, part);
  }
  line >> name;
  if (kind == "input") {
    numbers.emplace(name, numbers.size());
    ++part.inputs;
    return Error::Ok;
  }
  const bool known = numbers.count(name) == 1;
  RETURN_IF_NOT(kind == "output" && known, InvalidProgram, "there is no %s %s", kind.c_str(), name.c_str());
  part.outputs.push_back(numbers[name]);
  return Error::Ok;
}

Error read_part(const std::string& blob, const NamedDataMap* data, Part& part) {
  const size_t end = blob.find('\n');
  RETURN_IF_NOT(end != std::string::npos, InvalidProgram, "the blob is damaged");
  std::istringstream header(blob.substr(0, end));
  std::string format;
  int version = 0;
  uint32_t checksum = 0;
  header >> format >> version >> std::hex >> checksum;
  RETURN_IF_NOT(header && format == kFormat, InvalidProgram, "the blob is damaged, or not of acme-npu");
  RETURN_IF_NOT(
      version == kVersion, DelegateInvalidCompatibility, "the blob has version %d; this runtime reads %d", version,
      kVersion);
  const std::string body = blob.substr(end + 1);
  RETURN_IF_NOT(crc32(body) == checksum, InvalidProgram, "the blob is damaged");
  std::istringstream lines(body);
  Numbers numbers;
  for (std::string text; std::getline(lines, text);) {
    std::istringstream line(text);
    ET_CHECK_OK_OR_RETURN_ERROR(read_line(line, data, numbers, part));
  }
  RETURN_IF_NOT(
      numbers.size() == part.constants.size() + part.inputs + part.steps.size(), InvalidProgram, "a name stands twice");
  return Error::Ok;
}

// --- The functions that the runtime calls

class AcmeNpu final : public BackendInterface {
 public:
  bool is_available() const override {
    return true; // check here whether the device is present
  }

  // Called when a method is loaded, once for each delegate.
  Result<DelegateHandle*> init(
      BackendInitContext& context, FreeableBuffer* processed, ArrayRef<CompileSpec> compile_specs) const override {
    RETURN_IF_NOT(compile_specs.empty(), NotSupported, "there is no compile spec %s", compile_specs[0].key);
    auto part = std::make_unique<Part>();
    const std::string blob(static_cast<const char*>(processed->data()), processed->size());
    ET_CHECK_OK_OR_RETURN_ERROR(read_part(blob, context.get_named_data_map(), *part));
    processed->Free();
    return part.release();
  }

  // `arguments`: the inputs, then the outputs. An output may share memory with an input, so it is written last.
  Error execute(BackendExecutionContext&, DelegateHandle* handle, Span<EValue*> arguments) const override try {
    const Part& part = *static_cast<const Part*>(handle);
    RETURN_IF_NOT(
        arguments.size() == part.inputs + part.outputs.size(), InvalidArgument, "there are %zu arguments",
        arguments.size());
    std::vector<Value> values = part.constants;
    for (size_t k = 0; k < part.inputs; ++k) {
      ET_CHECK_OK_OR_RETURN_ERROR(read_input(*arguments[k], values.emplace_back()));
    }
    for (const Step& step : part.steps) {
      ET_CHECK_OK_OR_RETURN_ERROR(compute(step, values));
    }
    for (size_t k = 0; k < part.outputs.size(); ++k) {
      ET_CHECK_OK_OR_RETURN_ERROR(write_output(values[part.outputs[k]], *arguments[part.inputs + k]));
    }
    return Error::Ok;
  } catch (const std::exception& e) {
    ET_LOG(Error, "acme-npu: %s", e.what());
    return Error::MemoryAllocationFailed;
  }

  void destroy(DelegateHandle* handle) const override {
    delete static_cast<Part*>(handle);
  }

 private:
  static Error read_input(const EValue& argument, Value& value) {
    RETURN_IF_NOT(
        argument.isTensor() && argument.toTensor().scalar_type() == ScalarType::Float &&
            tensor_is_default_dim_order(argument.toTensor()),
        InvalidArgument, "an input is no float32 tensor in C order");
    const Tensor& tensor = argument.toTensor();
    value.shape.assign(tensor.sizes().begin(), tensor.sizes().end());
    value.data.assign(tensor.const_data_ptr<float>(), tensor.const_data_ptr<float>() + tensor.numel());
    return Error::Ok;
  }

  static Error compute(const Step& step, std::vector<Value>& values) {
    Operands operands;
    for (size_t operand : step.operands) {
      operands.push_back(operand == kAbsent ? nullptr : &values[operand]);
    }
    Value result;
    RETURN_IF_NOT(step.instruction.compute(operands, result), InvalidArgument, "shapes do not fit together");
    values.push_back(std::move(result));
    return Error::Ok;
  }

  // Outputs of dynamic size get the size of this call.
  static Error write_output(const Value& value, EValue& argument) {
    RETURN_IF_NOT(
        argument.isTensor() && argument.toTensor().scalar_type() == ScalarType::Float, InvalidArgument,
        "an output is no float32 tensor");
    Tensor& tensor = argument.toTensor();
    ET_CHECK_OK_OR_RETURN_ERROR(resize_tensor(tensor, {value.shape.data(), value.shape.size()}));
    std::copy(value.data.begin(), value.data.end(), tensor.mutable_data_ptr<float>());
    return Error::Ok;
  }
};

AcmeNpu backend;
const Error registered = register_backend({kName, &backend});

} // namespace
