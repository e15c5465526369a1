"""Small backends for the acceptance tests, with a runtime that runs their blobs.

``CompilerBackend`` supports a few operators, and a compile spec that its runtime
enforces. ``ExecutorBackend`` supports all ATen operators and calls of other delegates,
whose blobs it stores in its own. Both write a version, then JSON with the SHA-256 of
each weight. The bytes of weights are named data.
"""

import contextlib
import hashlib
import json

import delegraph
import torch
from delegraph.backend import (
    BackendDetails,
    CompileSpec,
    DelegateMappingBuilder,
    NamedDataStore,
    PreprocessResult,
)
from delegraph.discovery.registry import default_registry
from delegraph.errors import FormatError, Unsupported
from delegraph.partitioner import (
    CapabilityPartitioner,
    DelegationSpec,
    Partitioner,
    PartitionResult,
)
from delegraph.runtime import BackendRuntime
from delegraph_executorch.edge import delegate_calls
from delegraph_programs import (
    constant_tensor,
    output_node,
    placeholders,
    source_of,
    user_inputs,
)
from torch import nn
from torch.fx import Node

aten = torch.ops.aten
CALL = torch.ops.higher_order.executorch_call_delegate
VERSION = b"1 "


# --- models and programs --------------------------------------------------------------


def make_module(function, **parts):
    """Return a module in eval mode whose forward is ``function(self, *inputs)``.

    ``parts`` are its attributes: layers, parameters, and tensors, which are buffers.
    """

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            for name, part in parts.items():
                if isinstance(part, nn.Parameter | nn.Module):
                    setattr(self, name, part)
                else:
                    self.register_buffer(name, part)

        def forward(self, *inputs):
            return function(self, *inputs)

    return Model().eval()


def export(function, *inputs, **parts):
    return torch.export.export(make_module(function, **parts), inputs)


class Wrapper(nn.Module):
    """A model of a user that calls a lowered module."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *inputs):
        return self.inner(*inputs)


def export_wrapped(inner, *inputs):
    """Export a module that calls a lowered module."""
    return torch.export.export(Wrapper(inner).eval(), inputs)


# --- looking at programs --------------------------------------------------------------


def call_targets(program):
    return [
        node.target
        for node in program.graph.nodes
        if node.op == "call_function" and node.target.__name__ != "getitem"
    ]


def lowered_modules(program):
    """Each module once, in the order of the calls."""
    return list(dict.fromkeys(m for _, m in delegate_calls(program)))


def attribute_targets(program):
    return [node.target for node in program.graph.nodes if node.op == "get_attr"]


def run_on_host(program, *inputs):
    """Run the program on the host, and the blob of each delegate in its runtime."""
    return delegraph.lower(program, backends=[])(*inputs)


def assert_close(got, wanted):
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


# --- partitioners ---------------------------------------------------------------------


def partitioner_for_all(backend="CompilerBackend", specs=()):
    return CapabilityPartitioner(lambda node: None, backend, specs)


def partitioner_for(*operators, backend="CompilerBackend", specs=(), **options):
    return CapabilityPartitioner(
        lambda n: None if n.target in operators else "not asked for",
        backend,
        specs,
        **options,
    )


class Placed(Partitioner):
    """Makes a partition of every call of some operators.

    ``places`` maps each operator to a backend id and compile specs.
    """

    def __init__(self, places):
        super().__init__()
        self.places = places

    def partition(self, exported_program):
        tags = {}
        for node in exported_program.graph.nodes:
            if node.target in self.places:
                node.meta["delegation_tag"] = tag = f"tag{len(tags)}"
                tags[tag] = DelegationSpec(*self.places[node.target])
        return PartitionResult(exported_program, tags)


class Tagging(Partitioner):
    """Puts all nodes for which ``wanted`` returns True into one partition."""

    def __init__(self, wanted, backend):
        super().__init__()
        self.wanted = wanted
        self.backend = backend

    def partition(self, exported_program):
        for node in exported_program.graph.nodes:
            if self.wanted(node):
                node.meta["delegation_tag"] = "tag"
        return PartitionResult(exported_program, {"tag": DelegationSpec(self.backend)})


# --- the compiler ---------------------------------------------------------------------


class CompilerBackend(BackendDetails):
    """Compiles add, sub, mul, mm and sin.

    The compile spec ``max_value`` is one byte: the largest number of rows of an input.
    """

    operators = (
        aten.add.Tensor,
        aten.sub.Tensor,
        aten.mul.Tensor,
        aten.mm.default,
        aten.sin.default,
    )

    @classmethod
    def preprocess(cls, edge_program, compile_specs):
        return compiled(edge_program, cls)


class ExecutorBackend(BackendDetails):
    """Compiles all operators of ATen, and calls of delegates."""

    operators = None

    @classmethod
    def preprocess(cls, edge_program, compile_specs):
        return compiled(edge_program, cls)


def compiled(program, backend):
    store = NamedDataStore()
    mapping = DelegateMappingBuilder(generated_identifiers=True)
    made = {
        "inputs": [n.name for n in user_inputs(program)],
        "weights": {},
        "calls": [],
    }
    for node, spec in placeholders(program):
        if spec.target is not None:
            made["weights"][node.name] = weight(constant_tensor(program, spec), store)
    for node in program.graph.nodes:
        if node.op == "call_function":
            made["calls"].append(
                [
                    node.name,
                    target_of(node, backend),
                    encode(node.args),
                    encode(node.kwargs),
                ]
            )
            mapping.insert_delegate_mapping_entry(nodes=node)
    made["outputs"] = encode(output_node(program.graph).args[0])
    blob = VERSION + json.dumps(made).encode()
    return PreprocessResult(
        blob,
        mapping.get_delegate_mapping(),
        store.get_named_data_store_output(),
        "test",
    )


def weight(tensor, store):
    data = tensor.detach().contiguous().numpy().tobytes()
    key = hashlib.sha256(data).hexdigest()
    store.add_named_data(key, data)
    return [key, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]


def target_of(node, backend):
    """Return the name of an operator, or the contents of the delegate that is called."""
    if node.target is CALL and backend.operators is None:
        inner = getattr(node.graph.owning_module, node.args[0].target)
        data = {k: v.hex() for k, v in inner.named_data().items()}
        specs = [[s.key, s.value.hex()] for s in inner.compile_specs]
        return {
            "backend": inner.backend_id,
            "blob": inner.processed_bytes.hex(),
            "specs": specs,
            "data": data,
        }
    if (
        node.target.__name__ == "getitem"
        or backend.operators is None
        or node.target in backend.operators
    ):
        return (
            str(node.target)
            if isinstance(node.target, torch._ops.OpOverload)
            else node.target.__name__
        )
    text = f"{node.op} {node.target} is not supported in backend {backend.__name__}"
    raise Unsupported("unsupported", text, node, source_of(node))


def encode(value):
    if isinstance(value, (list, tuple)):
        return [encode(v) for v in value]
    if isinstance(value, dict):
        return {k: encode(v) for k, v in value.items()}
    if isinstance(value, (torch.dtype, torch.memory_format)):
        return {"torch": str(value).removeprefix("torch.")}
    return {"node": value.name} if isinstance(value, Node) else value


# --- its runtime ----------------------------------------------------------------------


class JsonRuntime(BackendRuntime):
    @staticmethod
    def load(processed_bytes, compile_specs, named_data):
        if not processed_bytes.startswith(VERSION):
            text = (
                f"the blob is of version {processed_bytes[:1].decode()!r}; this runtime"
                " reads version 1"
            )
            raise FormatError("format-invalid", text)
        limits = [s.value[0] for s in compile_specs if s.key == "max_value"]
        return Loaded(
            json.loads(processed_bytes[len(VERSION) :]),
            named_data,
            min(limits, default=None),
        )


class Loaded:
    def __init__(self, made, named_data, limit):
        self.made = made
        self.limit = limit
        self.weights = {
            n: tensor(named_data[k], d, s) for n, (k, d, s) in made["weights"].items()
        }
        self.calls = [
            (name, operator(target), args, kwargs)
            for name, target, args, kwargs in made["calls"]
        ]

    def __call__(self, *args):
        if self.limit is not None and any(a.shape[0] > self.limit for a in args):
            raise RuntimeError(f"an input has more than {self.limit} rows")
        env = {**self.weights, **dict(zip(self.made["inputs"], args, strict=True))}
        for name, function, given, kwargs in self.calls:
            env[name] = function(*decode(given, env), **decode(kwargs, env))
        return tuple(decode(self.made["outputs"], env))


def tensor(data, dtype, shape):
    return torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype)).reshape(shape)


def operator(target):
    if isinstance(target, dict):
        specs = [CompileSpec(k, bytes.fromhex(v)) for k, v in target["specs"]]
        data = {k: bytes.fromhex(v) for k, v in target["data"].items()}
        inner = (
            default_registry()
            .runtime_for(target["backend"])
            .load(bytes.fromhex(target["blob"]), specs, data)
        )
        return lambda owner, *args: inner(*args)
    if target == "getitem":
        return lambda values, k: values[k]
    namespace, name, overload = target.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)


def decode(value, env):
    if isinstance(value, list):
        return [decode(v, env) for v in value]
    if not isinstance(value, dict):
        return value
    if "torch" in value:
        return getattr(torch, value["torch"])
    return (
        env.get(value["node"])
        if "node" in value
        else {k: decode(v, env) for k, v in value.items()}
    )


@contextlib.contextmanager
def installed(*backends):
    """These backends in the process-wide registry, with the runtime above."""
    with contextlib.ExitStack() as stack:
        for backend in backends or (CompilerBackend, ExecutorBackend):
            stack.enter_context(delegraph.register(backend, runtime=JsonRuntime))
        yield
