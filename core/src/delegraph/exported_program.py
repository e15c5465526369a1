"""Reads exported programs by their signatures, and builds new ones.

torch has no public way to build an ExportedProgram from a graph, so ``build_program`` uses private names of
``torch.export``. When torch changes these, this is the module to change.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch._export.verifier import SpecViolationError, Verifier
from torch._guards import detect_fake_mode
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ArgumentSpec,
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)
from torch.fx import Graph, Node, map_arg
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.utils import _pytree as pytree

from .errors import InputError

__all__ = [
    "CALL_DELEGATE",
    "CONSTANT_KINDS",
    "MUTATIONS",
    "STATE_WRITES",
    "add_constant",
    "argument_of",
    "build_program",
    "constant_placeholders",
    "constant_tensor",
    "copy_node",
    "copy_program",
    "flat_arguments",
    "flat_call",
    "leaf_names",
    "name_outputs",
    "output_node",
    "output_values",
    "placeholder_of",
    "placeholders",
    "root_call",
    "trained_targets",
    "user_inputs",
    "why_not_valid",
    "written_targets",
    "written_values",
]

CALL_DELEGATE = torch.ops.higher_order.executorch_call_delegate
"""What a lowered graph calls for each delegate: ``CALL_DELEGATE(lowered_module, *inputs)``; the operator is torch's."""
CONSTANT_KINDS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
STATE_WRITES = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)
MUTATIONS = (*STATE_WRITES, OutputKind.USER_INPUT_MUTATION)


def placeholders(program: ExportedProgram) -> list[tuple[Node, InputSpec]]:
    """Each placeholder with its spec, in calling order."""
    nodes = [n for n in program.graph.nodes if n.op == "placeholder"]
    return list(zip(nodes, program.graph_signature.input_specs, strict=True))


def written_targets(program: ExportedProgram) -> set[str]:
    """Names of the parameters and buffers that the program writes."""
    return {s.target for s in program.graph_signature.output_specs if s.kind in STATE_WRITES and s.target}


def trained_targets(program: ExportedProgram) -> list[str]:
    """Names of the parameters whose gradients a joint program returns, for its caller to update them."""
    specs = program.graph_signature.output_specs
    return [s.target for s in specs if s.kind is OutputKind.GRADIENT_TO_PARAMETER and s.target]


def written_values(program: ExportedProgram) -> dict[Node, Node]:
    """Placeholder of each parameter and buffer that the program writes -> its last value."""
    specs = zip(program.graph_signature.output_specs, output_values(program), strict=True)
    last = {s.target: value for s, value in specs if s.kind in STATE_WRITES}
    if not last:
        return {}
    return {n: last[s.target] for n, s in placeholders(program) if s.kind in CONSTANT_KINDS and s.target in last}


def constant_placeholders(program: ExportedProgram) -> set[Node]:
    """Placeholders of parameters, buffers and constants that neither the program writes nor its caller updates."""
    written = written_targets(program).union(trained_targets(program))
    return {n for n, s in placeholders(program) if s.kind in CONSTANT_KINDS and s.target not in written}


def user_inputs(program: ExportedProgram) -> list[Node]:
    """Placeholders of the inputs that the caller passes, in calling order."""
    return [n for n, s in placeholders(program) if s.kind is InputKind.USER_INPUT]


def copy_node(graph: Graph, node: Node, value_of: Callable[[Node], Any]) -> Node:
    """Append a copy of ``node`` to ``graph``, with its name if that is free.

    ``value_of`` maps operands to their copies. Every copy has ``meta["val"]``, None if the node has no value.
    """
    args, kwargs = map_arg(node.args, value_of), map_arg(node.kwargs, value_of)
    names = graph._graph_namespace
    name = names.create_name(node.name, None) if node.name in names._used_names else node.name
    copy = _append(graph, Node(graph, name, node.op, node.target, args, kwargs, node.type), node.meta)
    if node.op == "get_attr":
        copy.meta.setdefault("val", None)  # torch leaves it out on some nodes that fetch a subgraph
    return copy


def placeholder_of(graph: Graph, node: Node) -> Node:
    """Append a placeholder for the value of ``node``, with its metadata, to ``graph``.

    It gets another name if the node's is one of Python's, such as ``input``: in torch's generated code, two inputs
    `input` and `input_1` would be one.
    """
    name = graph._graph_namespace.create_name(node.name, None)
    return _append(graph, Node(graph, name, "placeholder", name, (), {}, node.type), node.meta)


def append_node(
    graph: Graph, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str, meta: dict[str, Any]
) -> Node:
    """Append a new node to ``graph``. ``name`` has to be free."""
    return _append(graph, Node(graph, name, op, target, args, kwargs), meta)


def _append(graph: Graph, new: Node, meta: Mapping[str, Any]) -> Node:
    """Append the node ``new`` to the graph, with a copy of ``meta``."""
    # This is what ``graph.node_copy`` does, but three times as fast (4 ms of 48 for MobileNetV2): it does not look for
    # names that Python has, nor for symbolic numbers among the arguments, which cannot be new in a copy.
    new.meta.update(meta)
    graph._graph_namespace._used_names.add(new.name)
    graph._graph_namespace.associate_name_with_obj(new.name, new)
    graph._insert(new)
    graph._find_nodes_lookup_table.insert(new)
    graph._len += 1
    return new


def copy_program(program: ExportedProgram) -> ExportedProgram:
    """A copy of ``program`` whose graph may be changed. Tensors, delegates and subgraphs are shared."""
    graph, copies = Graph(owning_module=program.graph_module), dict[Node, Node]()
    for node in program.graph.nodes:
        copies[node] = copy_node(graph, node, copies.__getitem__)
    inputs, outputs = program.graph_signature.input_specs, program.graph_signature.output_specs
    return build_program(program.graph_module, graph, inputs, outputs, program, root_call(program), check=False)


def constant_tensor(program: ExportedProgram, spec: InputSpec) -> torch.Tensor:
    """The tensor of a parameter, buffer or constant; non-persistent buffers are among the program's constants."""
    target = str(spec.target)
    state: Any = program.state_dict
    tensor: torch.Tensor = state[target] if target in state else program.constants[target]
    return tensor


def add_constant(program: ExportedProgram, tensor: torch.Tensor, name: str = "constant") -> Node:
    """Give ``program`` one more constant, by reference; returns its placeholder, for calls to use.

    Its name is ``name``, made unique. A transform may do this to the program that it gets.
    """
    graph, signature = program.graph, program.graph_signature
    mode = detect_fake_mode([n.meta.get("val") for n in graph.nodes])
    taken = {*program.constants, *program.state_dict, *(n.name for n in graph.nodes)}
    names = itertools.chain([name], (f"{name}_{k}" for k in itertools.count(1)))
    target = next(free for free in names if free not in taken)
    given = placeholders(program)
    first = next((k for k, (_, spec) in enumerate(given) if spec.kind is InputKind.USER_INPUT), len(given))
    after = given[first][0] if first < len(given) else next(n for n in graph.nodes if n.op != "placeholder")
    with graph.inserting_before(after):
        node: Node = graph.placeholder(target)
    node.name = target
    node.meta["val"] = tensor if mode is None else mode.from_tensor(tensor, static_shapes=True)
    signature.input_specs.insert(first, InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(node.name), target))
    program.constants[target] = tensor
    return node


def output_node(graph: Graph) -> Node:
    """The node that returns the graph's results."""
    return graph.output_node()


def output_values(program: ExportedProgram) -> tuple[Any, ...]:
    """What the graph returns, in the order of the signature's output specs."""
    values: Any = output_node(program.graph).args[0]
    return tuple(values)


def argument_of(value: Any) -> ArgumentSpec:
    """The argument spec for a node, depending on what it stands for, or for a Python constant."""
    if not isinstance(value, Node):
        return ConstantArgument("", value)
    kinds: dict[type, Any] = {
        torch.SymInt: SymIntArgument,
        torch.SymFloat: SymFloatArgument,
        torch.SymBool: SymBoolArgument,
    }
    val = value.meta.get("val")
    if isinstance(val, (int, float, bool, str)) or (val is None and value.op == "placeholder"):
        return ConstantArgument(value.name, val)
    spec: ArgumentSpec = kinds.get(type(val), TensorArgument)(name=value.name)
    return spec


def name_outputs(specs: Iterable[OutputSpec], values: Iterable[Any]) -> list[OutputSpec]:
    """``specs`` for a graph that returns ``values`` in their places."""
    return [OutputSpec(s.kind, argument_of(v), s.target) for s, v in zip(specs, values, strict=True)]


def build_program(
    root: Any,
    graph: Graph,
    inputs: Sequence[InputSpec],
    outputs: Sequence[OutputSpec],
    like: ExportedProgram,
    call: Any,
    check: bool = True,
) -> ExportedProgram:
    """An ExportedProgram of ``graph``, with those tensors of ``like`` that its signature names, by reference.

    ``root`` has the modules that the graph fetches. ``call`` is the ``ModuleCallEntry`` list that says how callers
    flatten arguments and unflatten results. Without ``check`` the program is not validated: that is for programs that
    are not complete yet.
    """
    # Only tensors that the signature names: a part of a program must not keep the weights of the rest alive.
    named = {str(s.target) for s in inputs if s.kind in CONSTANT_KINDS or s.kind is InputKind.CUSTOM_OBJ}
    # ``ExportedProgram(...)`` would generate Python code for the graph, which takes more than half its time, and most
    # programs of a lowering are never called. A lazy module generates the code in its first call.
    module = _LazyGraphModule(root, graph)
    module.meta.update(getattr(root, "meta", {}))
    # For the same reason its ``__init__`` is not called, and everything that it would set is set here: these are all
    # fields of an ExportedProgram. If a new torch adds a field, reading it raises AttributeError: then add it
    # below. There are no example inputs, because those of ``like`` would not fit a part of it. The verifier is the one
    # for plain exported programs, even if ``like`` is in a dialect of its own.
    program = object.__new__(ExportedProgram)
    program.__dict__.update(
        _graph_module=module,
        _graph_signature=ExportGraphSignature(list(inputs), list(outputs)),
        _state_dict={k: v for k, v in like.state_dict.items() if k in named},
        _range_constraints=dict(like.range_constraints),
        _module_call_graph=call,
        _example_inputs=None,
        _constants={k: v for k, v in like.constants.items() if k in named},
        _verifiers=[Verifier],
        _guards_code=list(like._guards_code),  # conditions on sizes, which the parts of a program share
    )
    if check:
        validate(program)
    return program


def forget_guards(program: ExportedProgram) -> None:
    """Drop torch's conditions on the sizes of inputs. After their dimensions were moved, these speak of other sizes."""
    program._guards_code = []


def validate(program: ExportedProgram) -> None:
    """As ``program.validate()``, but without joining blobs, which that would read to see that they are bytes."""
    token = _VALIDATING.set(True)
    try:
        program.validate()  # type: ignore[no-untyped-call]
    finally:
        _VALIDATING.reset(token)


def why_not_valid(program: ExportedProgram) -> str | None:
    """What torch's verifier finds wrong with the program; None if nothing is."""
    try:
        validate(program)
    except SpecViolationError as error:
        return str(error)
    return None


_VALIDATING: ContextVar[bool] = ContextVar("_VALIDATING", default=False)


def is_validating() -> bool:
    """Whether ``validate`` is running: then only the type of a blob matters."""
    return _VALIDATING.get()


def has_effect(node: Node) -> bool:
    """Whether a call does something even if nothing uses its result. A call without results does."""
    schema = getattr(node.target, "_schema", None)
    return node.is_impure() or (schema is not None and not schema.returns)


def flat_arguments(
    spec: pytree.TreeSpec | None, args: Sequence[Any], kwargs: Mapping[str, Any], names: Sequence[str] = ()
) -> list[Any]:
    """The leaves of a call's arguments. ``names`` are the names of positional arguments, as far as they are known.

    Raises InputError, which says what is missing or different, if the arguments do not have the structure ``spec``.
    """
    known = list(spec.child(1).context or []) if spec is not None else []
    unknown = [k for k in kwargs if k not in known]
    if unknown:
        text = f"unknown keyword argument {unknown[0]!r}; {_call(spec, names, args, kwargs)}"
        hint = f"give {unknown[0]} by position, as in the export" if unknown[0] in names else None
        raise InputError("input-invalid", text, hint=hint)
    # in the order in which they were exported, because the spec has that order
    ordered = {k: kwargs[k] for k in known if k in kwargs}
    flat, given = pytree.tree_flatten((tuple(args), ordered))
    if spec is None or given == spec:
        return flat
    try:  # dicts may have their keys in another order
        flat = spec.flatten_up_to((tuple(args), ordered))
    except ValueError:
        flat = []
    if not flat or not all(map(pytree.tree_is_leaf, flat)):
        why = _other_structure(spec, given, names)
        raise InputError("input-invalid", why if why.startswith("input") else _call(spec, names, args, kwargs) + why)
    return flat


def _other_structure(wanted: pytree.TreeSpec, given: pytree.TreeSpec, names: Sequence[str]) -> str:
    """The first argument that is built otherwise than it was exported; with other arguments, which are missing."""
    count, keys = wanted.child(0).num_children, list(wanted.child(1).context or [])
    there, given_keys = given.child(0).num_children, list(given.child(1).context or [])
    if (count, keys) == (there, given_keys):
        roots = [*(names[:count] if len(names) >= count else map(str, range(count))), *keys]
        ours, theirs = ([*spec.child(0).children(), *spec.child(1).children()] for spec in (wanted, given))
        return next(filter(None, map(_difference, roots, ours, theirs)))
    missing = [*names[there:count], *(key for key in keys if key not in given_keys)]
    lacking = f": {', '.join(missing)} not given" if missing else ""
    return lacking


def _difference(name: str, wanted: pytree.TreeSpec, given: pytree.TreeSpec) -> str | None:
    """In words, the first difference between the structures of the input ``name``; None if there is none."""
    ours, theirs = ((spec.type, _keys_or_context(spec), spec.num_children) for spec in (wanted, given))
    if ours != theirs:
        return f"input {name} is to be {_kind(wanted)}; it is {_kind(given)}"
    keys = list(wanted.context) if wanted.type is dict else range(wanted.num_children)
    children = dict(zip(given.context if given.type is dict else keys, given.children(), strict=True))
    inner = [f"{name}[{key!r}]" for key in keys]
    return next(filter(None, map(_difference, inner, wanted.children(), [children[key] for key in keys])), None)


def _keys_or_context(spec: pytree.TreeSpec) -> Any:
    """What pytree knows of a container besides its type. The keys of a dict may come in any order."""
    return set(spec.context) if spec.type is dict else spec.context


def _kind(spec: pytree.TreeSpec) -> str:
    """A structure in words."""
    if spec.is_leaf():
        return "a single value, such as a tensor"
    if spec.type is dict:
        return f"a dict with the keys {spec.context}"
    return f"a {spec.type.__name__} of {spec.num_children}" if spec.type else "a container"


def _call(spec: pytree.TreeSpec | None, names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """What the program takes, by name, and what it was given, by type: ``(x, scale=)`` and ``(Tensor, int)``."""
    count = spec.child(0).num_children if spec is not None else len(names)
    keys = list(spec.child(1).context or []) if spec is not None else []
    known = list(names[:count]) if len(names) >= count else [f"input {k}" for k in range(count)]
    given = [*(type(a).__name__ for a in args), *(f"{k}={type(v).__name__}" for k, v in kwargs.items())]
    taken = [*known, *(f"{key}=" for key in keys)]
    return f"the program takes ({', '.join(taken)}); it was given ({', '.join(given)})"


def leaf_names(spec: pytree.TreeSpec | None, names: Sequence[str]) -> list[str] | None:
    """What a caller calls each flat input: ``x``, ``pair['a']``. None if ``names`` lacks a positional argument's name.

    ``spec`` is the structure of positional and keyword arguments, as ``program.call_spec.in_spec``.
    """
    if spec is None:
        return None
    args, kwargs = pytree.tree_unflatten(range(spec.num_leaves), spec)
    if len(names) < len(args):
        return None
    named = [*zip(names, args, strict=False), *kwargs.items()]
    return [root + pytree.keystr(path) for root, value in named for path, _ in pytree.tree_flatten_with_path(value)[0]]


def root_call(program: ExportedProgram) -> list[ModuleCallEntry]:
    """How the whole program is called, as ``build_program`` wants it; without entries about nodes and submodules."""
    # ``program.call_spec`` has this too, but that property creates a class each time: half a millisecond of a lowering.
    signature: Any = program.module_call_graph[0].signature
    in_spec, out_spec, names = signature.in_spec, signature.out_spec, signature.forward_arg_names
    return [ModuleCallEntry("", ModuleCallSignature([], [], in_spec, out_spec, names))]


def flat_call(inputs: int, outputs: int) -> list[ModuleCallEntry]:
    """How to call a program that takes ``inputs`` positional inputs and returns a flat tuple of ``outputs``."""
    in_spec = pytree.tree_structure(((0,) * inputs, {}))
    out_spec = pytree.tree_structure((0,) * outputs)
    return [ModuleCallEntry("", ModuleCallSignature([], [], in_spec, out_spec))]
