// Device halves of two backends that ExecuTorch's tests compile for and that its wheel does not have. Written from what
// those tests say of the blobs and of the results.

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <executorch/extension/data_loader/buffer_data_loader.h>
#include <executorch/extension/module/module.h>
#include <executorch/runtime/backend/interface.h>

using namespace executorch::runtime;
using executorch::aten::Tensor;
using executorch::extension::BufferDataLoader;
using executorch::extension::Module;

namespace {

// BackendWithCompilerDemo: "1version:0#op:demo::aten.sin.default, numel:1, dtype:...#", one operator after the other.
// Operands are taken in the order in which the delegate is called with them; a sine is its first two terms.
struct Steps {
  std::vector<std::string> operators;
};

float* floats(EValue* value) { return value->toTensor().mutable_data_ptr<float>(); }

struct CompilerDemo final : BackendInterface {
  bool is_available() const override { return true; }

  Result<DelegateHandle*> init(BackendInitContext&, FreeableBuffer* blob, ArrayRef<CompileSpec>) const override {
    const std::string text(static_cast<const char*>(blob->data()), blob->size());
    if (text.find("version:0#") == std::string::npos) return Error::DelegateInvalidCompatibility;
    auto* steps = new Steps;
    for (size_t at = text.find("op:demo::"); at != std::string::npos; at = text.find("op:demo::", at + 1)) {
      const size_t name = at + std::strlen("op:demo::");
      steps->operators.push_back(text.substr(name, text.find(',', name) - name));
    }
    return steps;
  }

  Error execute(BackendExecutionContext&, DelegateHandle* handle, Span<EValue*> args) const override {
    const auto& operators = static_cast<Steps*>(handle)->operators;
    const Tensor& out = args[args.size() - 1]->toTensor();
    for (EValue* arg : args) {
      if (arg->isTensor() && arg->toTensor().dim() > 0 && arg->toTensor().size(0) > 4) return Error::InvalidArgument;
    }
    size_t next = 0;  // the operand that comes next; from the second operator on, the first operand is the last result
    const float* left = floats(args[next++]);
    float* result = floats(args[args.size() - 1]);
    const ssize_t n = out.numel();
    for (const std::string& op : operators) {
      if (op == "aten.sin.default") {
        for (ssize_t k = 0; k < n; ++k) result[k] = left[k] - left[k] * left[k] * left[k] / 6;
      } else if (op == "aten.add.Tensor") {
        const float* right = floats(args[next++]);
        for (ssize_t k = 0; k < n; ++k) result[k] = left[k] + right[k];
      } else if (op == "aten.mm.default") {
        const ssize_t inner = args[next]->toTensor().size(0), columns = out.size(1);
        const float* right = floats(args[next++]);
        std::vector<float> product(n);
        for (ssize_t k = 0; k < n; ++k) {
          for (ssize_t i = 0; i < inner; ++i) product[k] += left[k / columns * inner + i] * right[i * columns + k % columns];
        }
        std::memcpy(result, product.data(), n * sizeof(float));
      } else {
        return Error::NotSupported;
      }
      left = result;
    }
    return Error::Ok;
  }

  void destroy(DelegateHandle* handle) const override { delete static_cast<Steps*>(handle); }
} compiler_demo;

// ExecutorBackend: a whole program file is the blob.
struct Executor final : BackendInterface {
  bool is_available() const override { return true; }

  Result<DelegateHandle*> init(BackendInitContext&, FreeableBuffer* blob, ArrayRef<CompileSpec>) const override {
    // The file's own reader wants its start aligned, which a delegate's blob need not be.
    auto* program = new Held{std::unique_ptr<void, decltype(&std::free)>(
        std::aligned_alloc(128, (blob->size() + 127) / 128 * 128), &std::free)};
    std::memcpy(program->bytes.get(), blob->data(), blob->size());
    program->module = std::make_unique<Module>(std::make_unique<BufferDataLoader>(program->bytes.get(), blob->size()));
    const Error loaded = program->module->load_method("forward");
    if (loaded != Error::Ok) return loaded;
    return program;
  }

  Error execute(BackendExecutionContext&, DelegateHandle* handle, Span<EValue*> args) const override {
    Module& module = *static_cast<Held*>(handle)->module;
    const size_t inputs = module.method_meta("forward")->num_inputs();
    std::vector<EValue> given;
    for (size_t k = 0; k < inputs; ++k) given.push_back(*args[k]);
    auto outputs = module.execute("forward", given);
    if (!outputs.ok()) return outputs.error();
    for (size_t k = 0; k < outputs->size() && inputs + k < args.size(); ++k) {
      const Tensor& made = outputs->at(k).toTensor();
      std::memcpy(args[inputs + k]->toTensor().mutable_data_ptr(), made.const_data_ptr(), made.nbytes());
    }
    return Error::Ok;
  }

  void destroy(DelegateHandle* handle) const override { delete static_cast<Held*>(handle); }

 private:
  struct Held {
    std::unique_ptr<void, decltype(&std::free)> bytes;
    std::unique_ptr<Module> module;
  };
} executor;

const Error demo_registered = register_backend({"BackendWithCompilerDemo", &compiler_demo});
const Error executor_registered = register_backend({"ExecutorBackend", &executor});

}  // namespace
