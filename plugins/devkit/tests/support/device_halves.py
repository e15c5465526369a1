"""A backend that negates, with a device half, and worse halves: one that does not
negate, and one that crashes.

A blob is two bytes for each output: the input that it is made of, and how often that is
negated.
"""

from pathlib import Path

import torch
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.partitioner import CapabilityPartitioner
from delegraph.runtime import BackendRuntime
from delegraph_programs import output_values, user_inputs

PLUGIN = """
from delegraph.plugin import BackendSpec, PartitionerSpec, RuntimeSpec, hookimpl

@hookimpl
def delegraph_backends():
    return [BackendSpec(name="negating", backend_id="Negating", target="device_halves:Negating", api=1)]

@hookimpl
def delegraph_partitioners():
    return [PartitionerSpec("negating", backend="negating", target="device_halves:NegatingPartitioner", default=True)]

@hookimpl
def delegraph_runtimes():
    return [RuntimeSpec("negating", target="device_halves:NegatingRuntime")]
"""
HALF = """
#include <cstdlib>
#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/core/evalue.h>

using namespace executorch::runtime;

struct Negating final : BackendInterface {
  bool is_available() const override { return true; }
  Result<DelegateHandle*> init(BackendInitContext&, FreeableBuffer* blob, ArrayRef<CompileSpec>) const override {
    return blob;
  }
  Error execute(BackendExecutionContext&, DelegateHandle* handle, Span<EValue*> args) const override {
    auto blob = static_cast<FreeableBuffer*>(handle);
    auto pairs = static_cast<const unsigned char*>(blob->data());
    const size_t outputs = blob->size() / 2, first = args.size() - outputs;
    for (size_t k = 0; k < outputs; ++k) {
      auto& from = args[pairs[2 * k]]->toTensor();
      auto& to = args[first + k]->toTensor();
      for (ssize_t e = 0; e < from.numel(); ++e) {
        const float value = from.const_data_ptr<float>()[e];
        to.mutable_data_ptr<float>()[e] = COMPUTED;
      }
    }
    return Error::Ok;
  }
} negating;
const Error registered = register_backend({"Negating", &negating});
"""
HALVES = {
    "right": HALF.replace("COMPUTED", "pairs[2 * k + 1] % 2 ? -value : value"),
    "wrong": HALF.replace("COMPUTED", "value"),
    "crashing": HALF.replace("COMPUTED", "(std::abort(), value)"),
    "gibberish": "gibberish;",
}


def why_not(node):
    val = node.meta["val"]
    taken = node.target is torch.ops.aten.neg.default and val.dtype is torch.float32
    return (
        None
        if taken and all(isinstance(d, int) for d in val.shape)
        else "it negates floats of fixed sizes only"
    )


class NegatingPartitioner(CapabilityPartitioner):
    def __init__(self):
        super().__init__(why_not, "Negating")


class Negating(BackendDetails):
    @staticmethod
    def preprocess(edge_program, compile_specs):
        known = {n: (k, 0) for k, n in enumerate(user_inputs(edge_program))}
        for node in edge_program.graph.find_nodes(
            op="call_function", target=torch.ops.aten.neg.default
        ):
            place, times = known[node.args[0]]
            known[node] = place, times + 1
        return PreprocessResult(
            bytes(b for o in output_values(edge_program) for b in known[o])
        )


class NegatingRuntime(BackendRuntime):
    device_half = (
        Path(__file__).with_name("half.cpp")
        if Path(__file__).with_name("half.cpp").exists()
        else None
    )

    @staticmethod
    def load(blob, compile_specs, named_data):
        pairs = list(zip(blob[::2], blob[1::2], strict=True))
        return lambda *inputs: tuple(
            -inputs[k] if times % 2 else inputs[k].clone() for k, times in pairs
        )
