"""A small honest backend, and one bad variant of it for every rule of the conformance
kit.

The good one compiles float32 arithmetic to a checked blob: magic, SHA-256 of the rest,
JSON; weights are named data. Each bad one differs in one place. ``register_NAME`` adds
it to a registry, here or in another process.
"""

import hashlib
import json
import math
import os
import threading
import time
from typing import ClassVar
from unittest import mock

import torch
from delegraph.backend import (
    BackendDetails,
    CompileSpec,
    DelegateMappingBuilder,
    NamedDataStore,
    PreprocessResult,
)
from delegraph.errors import FormatError, NoRuntime, OptionError, Unsupported
from delegraph.partitioner import CapabilityPartitioner
from delegraph.plugin import BackendSpec, BackendTraits, OptionSpec
from delegraph.runtime import BackendRuntime, Compatibility
from delegraph_programs import constant_tensor, placeholders, user_inputs
from torch.fx import Node

aten = torch.ops.aten
MAGIC = b"GOOD"
OPERATORS = {
    str(op): op
    for op in (
        aten.add.Tensor,
        aten.sub.Tensor,
        aten.mul.Tensor,
        aten.neg.default,
        aten.abs.default,
        aten.relu.default,
        aten.tanh.default,
        aten.sigmoid.default,
        aten.sin.default,
        aten.exp.default,
        aten.mm.default,
        aten.linear.default,
        aten.split_with_sizes.default,
        aten.transpose.int,
        aten.narrow.default,
    )
}


def types(node):
    val = node.meta["val"]
    return val if isinstance(val, (list, tuple)) else [val]


def why_not(node, dtype=torch.float32):
    if str(node.target) not in OPERATORS:
        return f"{node.target} is not among the operators of this backend"
    values = [v for n in (node, *node.all_input_nodes) for v in types(n)]
    if not all(isinstance(v, torch.Tensor) and v.dtype is dtype for v in values):
        return "only float32 tensors are computed"
    if not static(node):
        return "sizes have to be known when the program is compiled"
    return (
        None
        if all(map(plain, [*node.args, *node.kwargs.values()]))
        else "an argument is not of a plain type"
    )


def static(node):
    return all(
        isinstance(d, int)
        for n in (node, *node.all_input_nodes)
        for v in types(n)
        for d in getattr(v, "shape", ())
    )


def plain(value):
    return (
        all(map(plain, value))
        if isinstance(value, (list, tuple))
        else isinstance(value, (Node, int, float))
    )


def encode(value):
    if isinstance(value, (list, tuple)):
        return [encode(v) for v in value]
    return {"node": value.name} if isinstance(value, Node) else value


def decode(value, env):
    if isinstance(value, list):
        return [decode(v, env) for v in value]
    return env[value["node"]] if isinstance(value, dict) else value


def document(program, store):
    """What the blob says: inputs with shapes, constants with keys and shapes, calls,
    outputs.
    """
    made = {
        "inputs": [[n.name, list(n.meta["val"].shape)] for n in user_inputs(program)],
        "constants": {},
        "calls": [],
    }
    for node, spec in placeholders(program):
        if spec.target is not None:
            data = (
                constant_tensor(program, spec).detach().contiguous().numpy().tobytes()
            )
            key = hashlib.sha256(data).hexdigest()
            store.add_named_data(key, data)
            made["constants"][node.name] = [key, list(node.meta["val"].shape)]
    for node in program.graph.nodes:
        if node.op == "call_function":
            target = (
                str(node.target)
                if str(node.target) in OPERATORS
                else node.target.__name__
            )
            if target not in OPERATORS and target != "getitem":
                raise Unsupported("unsupported", f"{target} cannot be compiled")
            made["calls"].append(
                [
                    node.name,
                    target,
                    encode(node.args),
                    {k: encode(v) for k, v in node.kwargs.items()},
                ]
            )
    made["outputs"] = encode(program.graph.output_node().args[0])
    return made


def seal(made):
    body = json.dumps(made).encode()
    return MAGIC + hashlib.sha256(body).digest() + body


def opened(blob):
    if blob[:4] != MAGIC or hashlib.sha256(blob[36:]).digest() != blob[4:36]:
        raise FormatError("format-invalid", "this is no whole blob of the good backend")
    return json.loads(blob[36:])


class GoodBackend(BackendDetails):
    thread_safe = True

    @staticmethod
    def preprocess(edge_program, compile_specs):
        store = NamedDataStore()
        mapping = DelegateMappingBuilder()
        made = document(edge_program, store)
        for node in edge_program.graph.nodes:
            if node.op == "call_function" and "debug_handle" in node.meta:
                mapping.insert_delegate_mapping_entry(nodes=node, identifier=node.name)
        return PreprocessResult(
            seal(made),
            mapping.get_delegate_mapping(),
            store.get_named_data_store_output(),
        )


class GoodPartitioner(CapabilityPartitioner):
    why_not = staticmethod(why_not)
    backend_id = "GoodBackend"

    def __init__(self, level=1):
        super().__init__(self.why_not, self.backend_id)


class GoodRuntime(BackendRuntime):
    thread_safe = True
    operators: ClassVar = {**OPERATORS, "getitem": lambda values, k: values[k]}

    @classmethod
    def load(cls, processed_bytes, compile_specs, named_data):
        made = opened(processed_bytes)
        constants = {
            n: tensor(named_data.get(key, b""), shape)
            for n, (key, shape) in made["constants"].items()
        }
        return Loaded(made, constants, cls.operators)

    @classmethod
    def observe(cls, processed_bytes, compile_specs, named_data):
        return GoodRuntime.load.__func__(
            cls, processed_bytes, compile_specs, named_data
        ).observed

    @classmethod
    def profile(cls, processed_bytes, compile_specs, named_data):
        observed = GoodRuntime.observe.__func__(
            cls, processed_bytes, compile_specs, named_data
        )
        return lambda *args: (
            lambda outputs, told: (outputs, {k: {"seconds": 1e-6} for k in told})
        )(*observed(*args))

    @staticmethod
    def compatible(header, compile_specs, device=None):
        good = device is None and header.beginning[:4] == MAGIC
        return Compatibility(
            "runs" if good else "cannot",
            "its blobs begin with its name, and run on this host alone",
        )


def tensor(data, shape):
    if len(data) != 4 * math.prod(shape):
        raise FormatError(
            "format-invalid", f"{len(data)} bytes of named data for shape {shape}"
        )
    return (
        torch.frombuffer(bytearray(data), dtype=torch.float32).reshape(shape)
        if data
        else torch.empty(shape)
    )


class Loaded:
    def __init__(self, made, constants, operators):
        self.made = made
        self.constants = constants
        self.operators = operators

    def __call__(self, *args):
        return self.observed(*args)[0]

    def observed(self, *args):
        env = {
            **self.constants,
            **{name: v for (name, _), v in zip(self.made["inputs"], args, strict=True)},
        }
        for name, target, given, kwargs in self.made["calls"]:
            kwargs = {k: decode(v, env) for k, v in kwargs.items()}
            env[name] = self.operators[target](*decode(given, env), **kwargs)
        told = {
            name: [env[name]]
            for name, *_ in self.made["calls"]
            if isinstance(env[name], torch.Tensor)
        }
        return tuple(decode(self.made["outputs"], env)), told


LEVEL = OptionSpec("level", int, 1, choices=(1, 2))


def registration_of(
    backend=GoodBackend,
    partitioner=GoodPartitioner,
    runtime=GoodRuntime,
    options=(LEVEL,),
):
    """A function that registers these parts as ``good``, with the partitioner giving to
    the backend.
    """
    given = type(partitioner.__name__, (partitioner,), {"backend_id": backend.__name__})
    given.__module__ = partitioner.__module__

    def register(registry):
        return registry.register(
            backend, partitioner=given, runtime=runtime, name="good", options=options
        )

    return register


def backend_changing_result(after):
    """A backend whose result goes through ``after(program, result)``."""

    class ChangedBackend(BackendDetails):
        @staticmethod
        def preprocess(edge_program, compile_specs):
            result = GoodBackend.preprocess(edge_program, compile_specs)
            return after(edge_program, result) or result

    return ChangedBackend


def partitioner_with_rule(rule):
    """A partitioner whose ``why_not`` is ``rule(node)`` where that is not Ellipsis."""

    class ChangedPartitioner(GoodPartitioner):
        @staticmethod
        def why_not(node):
            answer = rule(node)
            return why_not(node) if answer is ... else answer

    return ChangedPartitioner


# --- one bad place each ---------------------------------------------------------------


def order_of_a_set(program, result):
    """Depends on the hash seed."""
    names = " ".join({str(node.target) for node in program.graph.nodes}).encode()
    made = opened(result.processed_bytes)
    return PreprocessResult(
        seal({**made, "comment": names.hex()}),
        result.debug_handle_map,
        result.data_store_output,
    )


COUNT = []


def counter(program, result):
    """Depends on how many programs came before."""
    COUNT.append(0)
    return PreprocessResult(
        seal({**opened(result.processed_bytes), "serial": len(COUNT)}),
        result.debug_handle_map,
        result.data_store_output,
    )


def clears_module_stacks(program, result):
    """The dictionary belongs to the caller's node as well."""
    for node in program.graph.nodes:
        node.meta.get("nn_module_stack", {}).clear()


def writes_weights(program, result):
    """Through ``.data``, which torch's version counter does not see."""
    for value in program.state_dict.values():
        value.data.zero_()


class RewritesMetadata(GoodPartitioner):
    """Changes what is no delegation tag."""

    def partition(self, exported_program):
        for node in exported_program.graph.nodes:
            if node.target is aten.sort.default and static(node):
                node.meta["stack_trace"] = "elsewhere"
        return super().partition(exported_program)


class RewritesGraph(GoodPartitioner):
    """Changes an argument; the engine refuses that already."""

    def partition(self, exported_program):
        for node in exported_program.graph.nodes:
            if node.target is aten.sort.default and static(node):
                node.args = (node.args[0], 0)
        return super().partition(exported_program)


def accepts_too_much(node):
    return None if node.target is aten.layer_norm.default and static(node) else ...


def gives_no_reason(node):
    return "" if node.target is aten.sort.default and static(node) else ...


def fails_at_softmax(node):
    return {}["missing"] if node.target is aten.softmax.int and static(node) else ...


class WrongRelu(GoodRuntime):
    operators: ClassVar = {
        **GoodRuntime.operators,
        str(aten.relu.default): lambda x: x.abs(),
    }


class LosesNaN(GoodRuntime):
    """A relu whose comparison NaN loses."""

    operators: ClassVar = {
        **GoodRuntime.operators,
        str(aten.relu.default): lambda x: torch.where(x > 0, x, 0.0),
    }


def registration_with_operators(*operators, dtype=None, **by_name):
    """Partitioner, backend and runtime that also take these operators, which compute
    ``by_name`` instead of eager's.
    """
    added = {str(op): op for op in operators}

    class TakingPartitioner(GoodPartitioner):
        @staticmethod
        def why_not(node):
            with mock.patch.dict(OPERATORS, added):
                return why_not(node, dtype or torch.float32)

    class TakingBackend(BackendDetails):
        @staticmethod
        def preprocess(edge_program, compile_specs):
            with mock.patch.dict(OPERATORS, added):
                return GoodBackend.preprocess(edge_program, compile_specs)

    class TakingRuntime(GoodRuntime):
        operators: ClassVar = {**GoodRuntime.operators, **added, **by_name}

    return registration_of(TakingBackend, TakingPartitioner, TakingRuntime)


def clamp_without_nan(x, low=None, high=None):
    return torch.nan_to_num(x, 0.0, float("inf"), -float("inf")).clamp(low, high)


def amax_without_nan(x, dims=(), keepdim=False):
    return torch.nan_to_num(x, -float("inf"), float("inf"), -float("inf")).amax(
        dims, keepdim
    )


def max_pool_without_nan(x, *window):
    kept = torch.nan_to_num(x, -float("inf"), float("inf"), -float("inf"))
    return torch.nn.functional.max_pool2d(kept, *window)


def maximum_without_nan(x, y):
    return torch.where(x > y, x, y)


def softmax_without_a_maximum(x, dim, dtype=None):
    """Infinity over itself is NaN, as it should be; what stands beside it is a number
    over infinity.
    """
    exponentials = x.exp()
    return exponentials / exponentials.sum(dim, keepdim=True)


def add_in_32_bits(x, y, alpha=1):
    return torch.add(
        x.to(torch.int32), y.to(torch.int32) if isinstance(y, torch.Tensor) else y
    ).to(torch.int64)


def mul_in_32_bits(x, y):
    return torch.mul(
        x.to(torch.int32), y.to(torch.int32) if isinstance(y, torch.Tensor) else y
    ).to(torch.int64)


def saturating_add(x, y, alpha=1):
    ends = torch.iinfo(x.dtype)
    wide = x.to(torch.int32) + (y.to(torch.int32) if isinstance(y, torch.Tensor) else y)
    return wide.clamp(ends.min, ends.max).to(x.dtype)


class SharesBuffers(GoodRuntime):
    """Writes every result over the one before."""

    thread_safe = True

    @classmethod
    def load(cls, processed_bytes, compile_specs, named_data):
        loaded = super().load(processed_bytes, compile_specs, named_data)
        buffers = []

        def run(*args):
            results = loaded(*args)
            if not buffers:
                buffers.extend(r.clone() for r in results)
            for buffer, result in zip(buffers, results, strict=True):
                buffer.copy_(result)
            return tuple(buffers)

        return run


class IgnoresStrides(GoodRuntime):
    """Reads its inputs as if they lay in memory row by row."""

    @classmethod
    def load(cls, processed_bytes, compile_specs, named_data):
        loaded = super().load(processed_bytes, compile_specs, named_data)
        return lambda *args: loaded(
            *[torch.as_strided(a, a.shape, torch.empty(a.shape).stride()) for a in args]
        )


class WritesInputs(GoodRuntime):
    """Computes a relu where its input lies; it gives the right result."""

    @classmethod
    def load(cls, processed_bytes, compile_specs, named_data):
        loaded = super().load(processed_bytes, compile_specs, named_data)
        made = opened(processed_bytes)
        relu = len(made["calls"]) == 1 and made["calls"][0][1] == str(aten.relu.default)
        return lambda *args: loaded(*[a.relu_() if relu else a for a in args])


class RaisesAtSin(GoodRuntime):
    operators: ClassVar = {
        **GoodRuntime.operators,
        str(aten.sin.default): lambda x: {}[0],
    }


def crashes_at_tanh(program, result):
    """Ends the process where a compiler's C code would."""
    if any(node.target is aten.tanh.default for node in program.graph.nodes):
        os.abort()


class FailsAtLevelTwo(GoodPartitioner):
    """An option that nobody tried."""

    def __init__(self, level=1):
        super().__init__()
        self.level = level

    def partition(self, exported_program):
        if self.level == 2:
            raise KeyError("level 2")
        return super().partition(exported_program)


class TellsTheLevel(GoodPartitioner):
    """The level is a target, which the blob's runtime is told of."""

    def __init__(self, level=1):
        specs = [CompileSpec("level", str(level).encode())]
        CapabilityPartitioner.__init__(self, self.why_not, self.backend_id, specs)


class HasNoDeviceOfLevelTwo(GoodRuntime):
    @classmethod
    def load(cls, processed_bytes, compile_specs, named_data):
        if compile_specs[0].value == b"2":
            raise NoRuntime("no-runtime", "no device of level 2 here")
        return super().load(processed_bytes, compile_specs, named_data)


class NeedsACall(GoodPartitioner):
    """Takes the largest of all calls, of which there may be none."""

    def partition(self, exported_program):
        max(
            node.meta["debug_handle"]
            for node in exported_program.graph.nodes
            if node.op == "call_function"
        )
        return super().partition(exported_program)


def takes_dynamic_sizes(node):
    """Accepts a symbolic size, which JSON then refuses."""
    return None if node.target is aten.sin.default and not static(node) else ...


def expects_schemas(node):
    """Higher-order operators have a name too, but no schema."""
    return (
        ...
        if not hasattr(node.target, "name") or node.target._schema.arguments is not None
        else "never"
    )


def crashes_without_calls(program, result):
    """Looks at the first call, as C code would: whether there is one or not."""
    if not any(node.op == "call_function" for node in program.graph.nodes):
        os.abort()


def crashes_in_branches(node):
    return os.abort() if "cond" in str(node.target) else ...


def crashes_at_symbolic_sizes(node):
    return ... if static(node) else os.abort()


class SharesADict(GoodRuntime):
    """Keeps the values of a call in a dict that all calls share, although it says that
    threads may.
    """

    thread_safe = True
    values: ClassVar = {}

    @classmethod
    def load(cls, processed_bytes, compile_specs, named_data):
        loaded = super().load(processed_bytes, compile_specs, named_data)

        def run(*args):
            for k, value in enumerate(args):
                cls.values[k] = (
                    value.clone() if isinstance(value, torch.Tensor) else value
                )
            return loaded(*[cls.values[k] for k in range(len(args))])

        return run


class SharesAResult(GoodRuntime):
    """Returns what the last call computed, which may be that of another thread."""

    thread_safe = True
    results = None

    @classmethod
    def load(cls, processed_bytes, compile_specs, named_data):
        loaded = super().load(processed_bytes, compile_specs, named_data)

        def run(*args):
            cls.results = loaded(*args)
            torch.ones(8).sum()
            return cls.results

        return run


class RaisesInThreads(GoodRuntime):
    """Loads in the main thread only."""

    thread_safe = True

    @classmethod
    def load(cls, processed_bytes, compile_specs, named_data):
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("not in this thread")
        return super().load(processed_bytes, compile_specs, named_data)


class AbortsInThreads(GoodRuntime):
    thread_safe = True

    @classmethod
    def load(cls, processed_bytes, compile_specs, named_data):
        if threading.current_thread() is not threading.main_thread():
            os.abort()
        return super().load(processed_bytes, compile_specs, named_data)


class CrashesInThreads(BackendDetails):
    thread_safe = True

    @staticmethod
    def preprocess(edge_program, compile_specs):
        if threading.current_thread() is not threading.main_thread():
            os.abort()
        return GoodBackend.preprocess(edge_program, compile_specs)


class OneAtATime(BackendDetails):
    """Keeps what it works on in the class, although it says that threads may share it."""

    thread_safe = True
    at_work = None

    @classmethod
    def preprocess(cls, edge_program, compile_specs):
        cls.at_work = edge_program
        time.sleep(0.01)
        made = GoodBackend.preprocess(cls.at_work, compile_specs)
        cls.at_work = None
        return made


def reads_sizes(node):
    """Which makes symbolic sizes numbers."""
    return (
        "too small"
        if any(int(d) < 0 for v in types(node) for d in getattr(v, "shape", ()))
        else ...
    )


class UncheckedLevel(GoodPartitioner):
    """KeyError instead of OptionError."""

    def __init__(self, level=1):
        {0: "off", 1: "on"}[level]
        super().__init__()


class RefusesItsChoice(GoodPartitioner):
    def __init__(self, level=1):
        if level == 2:
            raise OptionError("option-invalid", "level 2 is not there yet")
        super().__init__()


class Trusting(GoodRuntime):
    """Believes what the blob says."""

    @classmethod
    def load(cls, processed_bytes, compile_specs, named_data):
        made = json.loads(processed_bytes[36:])
        constants = {
            n: tensor(named_data.get(key, b""), shape)
            for n, (key, shape) in made["constants"].items()
        }
        return Loaded(made, constants, cls.operators)


class Crashing(GoodRuntime):
    """Ends the process where C code would."""

    @classmethod
    def load(cls, processed_bytes, compile_specs, named_data):
        if processed_bytes[:4] == MAGIC and len(processed_bytes) < 40:
            os.abort()
        return super().load(processed_bytes, compile_specs, named_data)


class Greedy(GoodRuntime):
    """Believes a size."""

    @classmethod
    def load(cls, processed_bytes, compile_specs, named_data):
        if processed_bytes[:4] != MAGIC:
            bytearray(100 << 30)
        return super().load(processed_bytes, compile_specs, named_data)


class Hanging(GoodRuntime):
    """Waits for bytes that never come."""

    @classmethod
    def load(cls, processed_bytes, compile_specs, named_data):
        while processed_bytes[:4] != MAGIC:
            pass
        return super().load(processed_bytes, compile_specs, named_data)


def sets_a_variable(program, result):
    os.environ["GOOD_BACKEND_WAS_HERE"] = "1"


def sets_the_dtype(program, result):
    torch.set_default_dtype(torch.float64)


def draws_random_numbers(program, result):
    torch.rand(1)


def starts_threads(program, result):
    """One for every program, which waits for ever."""
    threading.Thread(target=threading.Event().wait, daemon=True).start()


FILES = []


def opens_files(program, result):
    FILES.append(open(os.devnull))


KEPT = []


def keeps_programs(program, result):
    KEPT.append(program)


SHARED = NamedDataStore()


def shares_its_store(program, result):
    """One store for all partitions, so that a delegate's data grows after it was made."""
    SHARED.merge_named_data_store(result.data_store_output)
    return PreprocessResult(
        result.processed_bytes,
        result.debug_handle_map,
        SHARED.get_named_data_store_output(),
    )


class TakesItsData(GoodRuntime):
    """Empties the dictionary that it was given."""

    @classmethod
    def load(cls, processed_bytes, compile_specs, named_data):
        loaded = super().load(processed_bytes, compile_specs, named_data)
        named_data.clear()
        return loaded


def gives_arrays(program, result):
    """Named data that is no bytes."""
    result.data_store_output.buffers[:] = map(
        bytearray, result.data_store_output.buffers
    )


def maps_a_stranger(program, result):
    """The number that a delegate's call would have if the backend had lowered a part of
    its program.
    """
    own = [
        node.meta["debug_handle"]
        for node in program.graph.nodes
        if "debug_handle" in node.meta
    ]
    more = {"all": (1 + max(own),)} if own else {}
    return PreprocessResult(
        result.processed_bytes,
        {**result.debug_handle_map, **more},
        result.data_store_output,
    )


def talks(program, result):
    print("compiling", len(program.graph.nodes), "nodes")


def register_talking(registry):
    return registration_of(backend_changing_result(talks))(registry)


class TellsTensors(GoodRuntime):
    """A tensor in place of a list of one."""

    @classmethod
    def observe(cls, *parts):
        observed = super().observe(*parts)
        return lambda *args: (
            lambda outputs, told: (outputs, {k: v[0] for k, v in told.items()})
        )(*observed(*args))


class TellsByNumber(GoodRuntime):
    """By its own numbers, and not by the names that preprocess gave."""

    @classmethod
    def observe(cls, *parts):
        observed = super().observe(*parts)
        return lambda *args: (
            lambda outputs, told: (outputs, dict(enumerate(told.values())))
        )(*observed(*args))


class ObservesOthers(GoodRuntime):
    """A second path through the simulator, with a mistake of its own."""

    @classmethod
    def observe(cls, *parts):
        observed = super().observe(*parts)
        return lambda *args: (
            lambda outputs, told: (tuple(o * 2 for o in outputs), told)
        )(*observed(*args))


class TimesByNumber(GoodRuntime):
    """By its own numbers, and not by the names that preprocess gave."""

    @classmethod
    def profile(cls, *parts):
        profiled = super().profile(*parts)
        return lambda *args: (
            lambda outputs, told: (outputs, dict(enumerate(told.values())))
        )(*profiled(*args))


class ProfilesOthers(GoodRuntime):
    """Measuring changes what is computed."""

    @classmethod
    def profile(cls, *parts):
        profiled = super().profile(*parts)
        return lambda *args: (
            lambda outputs, told: (tuple(o * 2 for o in outputs), told)
        )(*profiled(*args))


class KnowsNoVersion(GoodRuntime):
    """Says of each blob that it cannot run, since it has no version to know."""

    @staticmethod
    def compatible(header, compile_specs, device=None):
        return Compatibility("cannot", "of version 0")


class ReadsBeyond(GoodRuntime):
    """Takes the header's word for it that there are bytes."""

    @staticmethod
    def compatible(header, compile_specs, device=None):
        return Compatibility(
            "runs" if header.beginning[0] == MAGIC[0] else "cannot", "by its first byte"
        )


def register_good(registry):
    return registration_of()(registry)


def register_excused(registry):
    """Loses NaN, and declares it."""
    known = (("aten.relu.default", "loses NaN"),)
    spec = BackendSpec(
        "good",
        f"{__name__}:GoodBackend",
        "GoodBackend",
        api=1,
        traits=BackendTraits(known_differences=known),
    )
    return registry.register(spec, partitioner=GoodPartitioner, runtime=LosesNaN)


class NothingBackend(BackendDetails):
    @staticmethod
    def preprocess(edge_program, compile_specs):
        return PreprocessResult(b"")


def register_that_takes_nothing(registry):
    refuse = CapabilityPartitioner(lambda node: "no", "NothingBackend")
    return registry.register(NothingBackend, partitioner=refuse, name="n")


BAD = {
    "deterministic": {
        "order_of_a_set": registration_of(backend_changing_result(order_of_a_set)),
        "counter": registration_of(backend_changing_result(counter)),
    },
    "input_program_unmodified": {
        "module_stacks": registration_of(backend_changing_result(clears_module_stacks))
    },
    "only_tagged_nodes_lowered": {
        "metadata": registration_of(partitioner=RewritesMetadata),
        "graph": registration_of(partitioner=RewritesGraph),
    },
    "accepted_compiles": {
        "accepts_too_much": registration_of(
            partitioner=partitioner_with_rule(accepts_too_much)
        ),
        "no_reason": registration_of(
            partitioner=partitioner_with_rule(gives_no_reason)
        ),
        "raises": registration_of(partitioner=partitioner_with_rule(fails_at_softmax)),
        "crashes": registration_of(backend_changing_result(crashes_at_tanh)),
    },
    "numerics": {
        "wrong_relu": registration_of(runtime=WrongRelu),
        "relu_loses_nan": registration_of(runtime=LosesNaN),
        "clamp_loses_nan": registration_with_operators(
            aten.clamp.default, **{str(aten.clamp.default): clamp_without_nan}
        ),
        "amax_loses_nan": registration_with_operators(
            aten.amax.default, **{str(aten.amax.default): amax_without_nan}
        ),
        "max_pool_loses_nan": registration_with_operators(
            aten.max_pool2d.default,
            **{str(aten.max_pool2d.default): max_pool_without_nan},
        ),
        "maximum_loses_nan": registration_with_operators(
            aten.maximum.default, **{str(aten.maximum.default): maximum_without_nan}
        ),
        "softmax_of_infinity": registration_with_operators(
            aten.softmax.int, **{str(aten.softmax.int): softmax_without_a_maximum}
        ),
        "int64_add_cut": registration_with_operators(
            dtype=torch.int64, **{str(aten.add.Tensor): add_in_32_bits}
        ),
        "int64_mul_cut": registration_with_operators(
            dtype=torch.int64, **{str(aten.mul.Tensor): mul_in_32_bits}
        ),
        "int8_saturates": registration_with_operators(
            dtype=torch.int8, **{str(aten.add.Tensor): saturating_add}
        ),
        "uint8_saturates": registration_with_operators(
            dtype=torch.uint8, **{str(aten.add.Tensor): saturating_add}
        ),
        "ignores_strides": registration_of(runtime=IgnoresStrides),
        "writes_inputs": registration_of(runtime=WritesInputs),
        "runtime_raises": registration_of(runtime=RaisesAtSin),
    },
    "options_run": {"level_two": registration_of(partitioner=FailsAtLevelTwo)},
    "empty_programs": {
        "needs_a_call": registration_of(partitioner=NeedsACall),
        "crashes_without_calls": registration_of(
            backend_changing_result(crashes_without_calls)
        ),
    },
    "dynamic_shapes": {
        "symbolic_sizes": registration_of(
            partitioner=partitioner_with_rule(takes_dynamic_sizes)
        ),
        "reads_sizes": registration_of(partitioner=partitioner_with_rule(reads_sizes)),
        "crashes_at_symbolic_sizes": registration_of(
            partitioner=partitioner_with_rule(crashes_at_symbolic_sizes)
        ),
    },
    "control_flow": {
        "expects_schemas": registration_of(
            partitioner=partitioner_with_rule(expects_schemas)
        ),
        "crashes_in_branches": registration_of(
            partitioner=partitioner_with_rule(crashes_in_branches)
        ),
    },
    "runtime_thread_safety": {
        "shares_a_dict": registration_of(runtime=SharesADict),
        "shares_a_result": registration_of(runtime=SharesAResult),
        "raises_in_threads": registration_of(runtime=RaisesInThreads),
        "aborts_in_threads": registration_of(runtime=AbortsInThreads),
    },
    "thread_safety": {
        "one_at_a_time": registration_of(OneAtATime),
        "crashes_in_threads": registration_of(CrashesInThreads),
    },
    "options_validated": {
        "unchecked": registration_of(
            partitioner=UncheckedLevel, options=(OptionSpec("level", int, 1),)
        ),
        "refuses_a_choice": registration_of(partitioner=RefusesItsChoice),
    },
    "damaged_blob": {
        "trusting": registration_of(runtime=Trusting),
        "crashing": registration_of(runtime=Crashing),
        "greedy": registration_of(runtime=Greedy),
    },
    "unregistering_leaves_no_trace": {
        "variable": registration_of(backend_changing_result(sets_a_variable)),
        "dtype": registration_of(backend_changing_result(sets_the_dtype)),
        "draws": registration_of(backend_changing_result(draws_random_numbers)),
        "starts_threads": registration_of(backend_changing_result(starts_threads)),
        "opens_files": registration_of(backend_changing_result(opens_files)),
        "keeps_programs": registration_of(backend_changing_result(keeps_programs)),
    },
    "settings_and_data_delivered": {
        "takes_its_data": registration_of(runtime=TakesItsData),
    },
    "observed_values": {
        "tells_tensors": registration_of(runtime=TellsTensors),
        "tells_by_number": registration_of(runtime=TellsByNumber),
        "observes_others": registration_of(runtime=ObservesOthers),
    },
    "profiled_times": {
        "times_by_number": registration_of(runtime=TimesByNumber),
        "profiles_others": registration_of(runtime=ProfilesOthers),
    },
    "compatibility_answered": {
        "knows_no_version": registration_of(runtime=KnowsNoVersion),
        "reads_beyond": registration_of(runtime=ReadsBeyond),
    },
    "debug_handles": {
        "stranger": registration_of(backend_changing_result(maps_a_stranger))
    },
}
"""Check that it breaks, and no other -> name -> what registers it."""
WORSE = {
    "shares_buffers": (
        {"numerics", "runtime_thread_safety"},
        registration_of(runtime=SharesBuffers),
    ),
    "hanging": ({"damaged_blob"}, registration_of(runtime=Hanging)),
    "arrays": (
        {"only_tagged_nodes_lowered"},
        registration_of(backend_changing_result(gives_arrays)),
    ),
    "weights": (
        {"input_program_unmodified", "only_tagged_nodes_lowered"},
        registration_of(backend_changing_result(writes_weights)),
    ),
    "shared_store": (
        {"settings_and_data_delivered", "deterministic"},
        registration_of(backend_changing_result(shares_its_store)),
    ),
}
"""Name -> some of the checks that it breaks, and what registers it."""

for name, register in [pair for named in BAD.values() for pair in named.items()] + [
    (n, r) for n, (_, r) in WORSE.items()
]:
    # so that another process finds it
    register.__name__ = register.__qualname__ = f"register_{name}"
    globals()[register.__name__] = register
