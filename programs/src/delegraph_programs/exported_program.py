"""Reads exported programs by their signatures, and builds new ones from graphs.

torch has no public way to build an ExportedProgram from a graph, so ``build_program``
uses private names of ``torch.export``. If a new torch changes these, adapt this module.
"""

from __future__ import annotations

import builtins
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
    "SHARED_STATE",
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
"""torch's operator that calls a delegate: ``CALL_DELEGATE(lowered_module, *inputs)``.
"""
CONSTANT_KINDS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
"""Kinds of inputs that are tensors of the model, although some may be written."""
STATE_WRITES = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)
"""Kinds of outputs that are new values of the model's tensors."""
SHARED_STATE = "shared_state"
"""Metadata key of a buffer's placeholders if several methods use it and one writes it.

The host keeps such a buffer.
"""
MUTATIONS = (*STATE_WRITES, OutputKind.USER_INPUT_MUTATION)
"""Kinds of outputs that are new values of inputs of the graph."""


def placeholders(program: ExportedProgram) -> list[tuple[Node, InputSpec]]:
    """Return (placeholder, input spec) for each input of the graph, in calling order."""
    nodes = [n for n in program.graph.nodes if n.op == "placeholder"]
    return list(zip(nodes, program.graph_signature.input_specs, strict=True))


def written_targets(program: ExportedProgram) -> set[str]:
    """Return the names of the parameters and buffers that the program writes."""
    return {
        s.target
        for s in program.graph_signature.output_specs
        if s.kind in STATE_WRITES and s.target
    }


def trained_targets(program: ExportedProgram) -> list[str]:
    """Return the names of parameters that the program returns gradients of.

    The list is empty unless the program has a backward graph.
    """
    gradient = OutputKind.GRADIENT_TO_PARAMETER
    specs = program.graph_signature.output_specs
    return [s.target for s in specs if s.kind is gradient and s.target]


def written_values(program: ExportedProgram) -> dict[Node, Node]:
    """Return placeholder of a written parameter or buffer -> node of its final value."""
    # by the name of the parameter or buffer
    final = {s.target: node for s, node in outputs(program) if s.kind in STATE_WRITES}
    if not final:
        return {}
    return {
        n: final[s.target]
        for n, s in placeholders(program)
        if s.kind in CONSTANT_KINDS and s.target in final
    }


def constant_placeholders(program: ExportedProgram) -> set[Node]:
    """Return the placeholders of parameters, buffers and constants that never change.

    Excluded are those that the program writes, parameters that its caller trains, and
    buffers that another method writes (``SHARED_STATE``).
    """
    changing = written_targets(program).union(trained_targets(program))
    return {
        n
        for n, s in placeholders(program)
        if s.kind in CONSTANT_KINDS
        and s.target not in changing
        and SHARED_STATE not in n.meta
    }


def user_inputs(program: ExportedProgram) -> list[Node]:
    """Return the placeholders of the inputs that the caller passes, in calling order."""
    return [n for n, s in placeholders(program) if s.kind is InputKind.USER_INPUT]


def copy_node(graph: Graph, node: Node, value_of: Callable[[Node], Any]) -> Node:
    """Append a copy of ``node`` to ``graph`` and return it.

    It keeps its name if that is free there. ``value_of`` maps each operand to its copy.
    """
    args = map_arg(node.args, value_of)
    kwargs = map_arg(node.kwargs, value_of)
    names = graph._graph_namespace
    name = node.name
    if name in names._used_names:
        name = names.create_name(name, None)
    copy = append_node(graph, node.op, node.target, args, kwargs, name, node.meta)
    copy.type = node.type
    if node.op == "get_attr":
        # torch records no value for some nodes that fetch a subgraph
        copy.meta.setdefault("val", None)
    return copy


def placeholder_of(graph: Graph, node: Node) -> Node:
    """Append a placeholder for the value of ``node`` to ``graph`` and return it.

    It has the metadata of the node, and its name if that is free.
    """
    names = graph._graph_namespace
    name = node.name
    if name in names._used_names:
        name = names.create_name(name, None)
    elif hasattr(builtins, name):
        # For an input named like a Python builtin, such as ``input``, torch's generated
        # code uses ``input_1``, so no other node may have that name.
        names._used_names.add(f"{name}_1")
    new = append_node(graph, "placeholder", name, (), {}, name, node.meta)
    new.type = node.type
    return new


def append_node(
    graph: Graph,
    op: str,
    target: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    name: str,
    meta: Mapping[str, Any],
) -> Node:
    """Append a new node, with a copy of ``meta``, to ``graph`` and return it.

    ``name`` must be unused there. ``graph.node_copy`` takes three times as long (4 of
    48 ms for MobileNetV2). It also checks for names of Python builtins and for new
    symbolic numbers, which a copy cannot have.
    """
    new = Node(graph, name, op, target, args, kwargs)
    new.meta.update(meta)
    graph._graph_namespace._used_names.add(name)
    graph._graph_namespace.associate_name_with_obj(name, new)
    graph._insert(new)
    graph._find_nodes_lookup_table.insert(new)
    graph._len += 1
    return new


def copy_program(program: ExportedProgram) -> ExportedProgram:
    """Return a copy of ``program`` with its own graph, but the same tensors and
    subgraphs.
    """
    graph = Graph(owning_module=program.graph_module)
    copies = dict[Node, Node]()
    for node in program.graph.nodes:
        copies[node] = copy_node(graph, node, copies.__getitem__)
    signature = program.graph_signature
    return build_program(
        program.graph_module,
        graph,
        signature.input_specs,
        signature.output_specs,
        program,
        root_call(program),
        check=False,
    )


def constant_tensor(program: ExportedProgram, spec: InputSpec) -> torch.Tensor:
    """Return the tensor of a parameter, buffer or constant that ``spec`` names."""
    target = str(spec.target)
    # ``constants`` has the constants, and buffers that are not persistent
    holder: Any = program.state_dict
    if target not in holder:
        holder = program.constants
    tensor: torch.Tensor = holder[target]
    return tensor


def constant_tensors(program: ExportedProgram) -> dict[Node, torch.Tensor]:
    """Return the tensors of all parameters, buffers and constants, by placeholder."""
    return {
        node: constant_tensor(program, spec)
        for node, spec in placeholders(program)
        if spec.kind in CONSTANT_KINDS
    }


def add_constant(
    program: ExportedProgram, tensor: torch.Tensor, name: str = "constant"
) -> Node:
    """Add ``tensor`` to the constants of ``program``, and return its new placeholder.

    The tensor is not copied. The constant is called ``name``, with a number if that
    name is taken. Its placeholder comes before the user's inputs.
    """
    graph = program.graph
    signature = program.graph_signature
    taken = {*program.constants, *program.state_dict, *(n.name for n in graph.nodes)}
    names = itertools.chain([name], (f"{name}_{k}" for k in itertools.count(1)))
    target = next(free for free in names if free not in taken)
    # before the first input of the user; if there is none, after all placeholders
    inputs = placeholders(program)
    kinds = [spec.kind for _, spec in inputs]
    if InputKind.USER_INPUT in kinds:
        position = kinds.index(InputKind.USER_INPUT)
        following = inputs[position][0]
    else:
        position = len(inputs)
        following = next(n for n in graph.nodes if n.op != "placeholder")
    with graph.inserting_before(following):
        node: Node = graph.placeholder(target)
    node.name = target
    # None if the recorded values are real tensors
    mode = detect_fake_mode([n.meta.get("val") for n in graph.nodes])
    node.meta["val"] = (
        tensor if mode is None else mode.from_tensor(tensor, static_shapes=True)
    )
    signature.input_specs.insert(
        position,
        InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(node.name), target),
    )
    program.constants[target] = tensor
    return node


def output_node(graph: Graph) -> Node:
    """Return the node that returns the graph's results."""
    return graph.output_node()


def output_values(program: ExportedProgram) -> tuple[Any, ...]:
    """Return the nodes and constants that the graph returns, in order of its specs."""
    values: Any = output_node(program.graph).args[0]
    return tuple(values)


def outputs(program: ExportedProgram) -> list[tuple[OutputSpec, Any]]:
    """Return (output spec, node or constant) for each output of the graph, in order.

    New values of buffers and inputs come first.
    """
    specs = program.graph_signature.output_specs
    return list(zip(specs, output_values(program), strict=True))


def results(program: ExportedProgram) -> list[Any]:
    """Return the results of the user's program: no new values of buffers and inputs."""
    return [value for spec, value in outputs(program) if spec.kind not in MUTATIONS]


def argument_of(value: Any) -> ArgumentSpec:
    """Return the argument spec for a node or a Python constant.

    A node's spec depends on the type of its recorded value. Nodes with a recorded
    number, bool or str, and placeholders without a value, get the spec of a constant.
    """
    if not isinstance(value, Node):
        return ConstantArgument("", value)
    val = value.meta.get("val")
    is_constant = isinstance(val, (int, float, bool, str))
    if is_constant or (val is None and value.op == "placeholder"):
        return ConstantArgument(value.name, val)
    kinds: dict[type, Any] = {
        torch.SymInt: SymIntArgument,
        torch.SymFloat: SymFloatArgument,
        torch.SymBool: SymBoolArgument,
    }
    spec: ArgumentSpec = kinds.get(type(val), TensorArgument)(name=value.name)
    return spec


def name_outputs(
    specs: Iterable[OutputSpec], values: Iterable[Any]
) -> list[OutputSpec]:
    """Return ``specs`` with the names of ``values``, the new results of the graph."""
    return [
        OutputSpec(s.kind, argument_of(v), s.target)
        for s, v in zip(specs, values, strict=True)
    ]


def build_program(
    root: Any,
    graph: Graph,
    inputs: Sequence[InputSpec],
    outputs: Sequence[OutputSpec],
    like: ExportedProgram,
    call: Any,
    check: bool = True,
) -> ExportedProgram:
    """Build an ExportedProgram from ``graph``.

    ``root``: has the submodules and delegates that the graph fetches. ``inputs``,
    ``outputs``: the signature. ``like``: the program with the tensors that the
    signature names; they are shared, not copied. ``call``: the list of ModuleCallEntry,
    which describes how callers flatten arguments and unflatten results. Without
    ``check``, the program is not validated: it is not complete yet. Raises
    SpecViolationError if it is invalid.
    """
    # Only tensors that the signature names: a part of a program must not keep the
    # weights of the rest alive.
    targets = {
        str(s.target)
        for s in inputs
        if s.kind in CONSTANT_KINDS or s.kind is InputKind.CUSTOM_OBJ
    }
    # ``ExportedProgram(...)`` generates Python code for the graph, which takes more
    # than half of its time. A lazy module generates the code at its first call, and
    # most programs of a lowering are never called.
    module = _LazyGraphModule(root, graph)
    module.meta.update(getattr(root, "meta", {}))
    # For the same reason, ``ExportedProgram.__init__`` is not called, and all fields
    # that it would set are set here. If a new torch adds a field, reading it raises
    # AttributeError; then add the field below. Example inputs are None, because those
    # of ``like`` do not fit a part of it. The verifier is that of plain exported
    # programs, whatever the dialect of ``like``.
    program = object.__new__(ExportedProgram)
    program.__dict__.update(
        _graph_module=module,
        _graph_signature=ExportGraphSignature(list(inputs), list(outputs)),
        _state_dict={k: v for k, v in like.state_dict.items() if k in targets},
        _range_constraints=dict(like.range_constraints),
        _module_call_graph=call,
        _example_inputs=None,
        _constants={k: v for k, v in like.constants.items() if k in targets},
        _verifiers=[Verifier],
        # the conditions on sizes also hold in a part of the program
        _guards_code=list(like._guards_code),
    )
    if check:
        validate(program)
    return program


def rebuild(program: ExportedProgram) -> ExportedProgram:
    """Return ``program`` with a signature for its changed graph."""
    signature = program.graph_signature
    outputs = name_outputs(signature.output_specs, output_values(program))
    return build_program(
        program.graph_module,
        program.graph,
        signature.input_specs,
        outputs,
        program,
        root_call(program),
    )


def validate(program: ExportedProgram) -> None:
    """Call ``program.validate()``. Raises SpecViolationError if the program is invalid.

    torch reads the blob of each delegate to check its type. Meanwhile delegates return
    an empty blob (``is_validating``).
    """
    token = _VALIDATING.set(True)
    try:
        program.validate()  # type: ignore[no-untyped-call]
    finally:
        _VALIDATING.reset(token)


def why_not_valid(program: ExportedProgram) -> str | None:
    """Return the error of torch's verifier for ``program``, or None if it is valid."""
    try:
        validate(program)
    except SpecViolationError as error:
        return str(error)
    return None


_VALIDATING: ContextVar[bool] = ContextVar("_VALIDATING", default=False)


def is_validating() -> bool:
    """Return whether this thread is in ``validate``, for which an empty blob will do."""
    return _VALIDATING.get()


def has_effect(node: Node) -> bool:
    """Return whether a call must stay even if its result is unused.

    It must if it does more than return a result, or has no results.
    """
    schema = getattr(node.target, "_schema", None)
    return node.is_impure() or (schema is not None and not schema.returns)


def erase_unused(graph: Graph) -> list[Node]:
    """Erase calls and ``get_attr`` nodes without users or effects; return them."""
    erased: list[Node] = []
    # in reverse, because erasing a user may leave its operands without users
    for node in reversed(graph.nodes):
        is_removable = node.op in ("call_function", "get_attr") and not node.users
        if is_removable and not has_effect(node):
            graph.erase_node(node)
            erased.append(node)
    return erased


def flat_arguments(
    spec: pytree.TreeSpec | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    names: Sequence[str] = (),
) -> list[Any]:
    """Return the leaves of the arguments of a call, in flat order.

    ``spec``: the structure that the arguments must have; None accepts any positional
    arguments. ``names``: names of the positional arguments, for errors; may be
    incomplete. If the structure differs, this raises InputError, which names the
    missing or different parts.
    """
    # Child 0 of the spec has the positional arguments, child 1 the keyword arguments.
    # The context of a dictionary's spec is the list of its keys.
    known = list(spec.child(1).context or []) if spec is not None else []
    unknown = [k for k in kwargs if k not in known]
    if unknown:
        text = (
            f"unknown keyword argument {unknown[0]!r};"
            f" {_describe_call(spec, names, args, kwargs)}"
        )
        hint = None
        if unknown[0] in names:
            hint = f"give {unknown[0]} by position, as in the export"
        raise InputError("input-invalid", text, hint=hint)
    # in the order of the export, which the spec has, too
    ordered = {k: kwargs[k] for k in known if k in kwargs}
    flat, structure = pytree.tree_flatten((tuple(args), ordered))
    if spec is None or structure == spec:
        return flat
    # the keys of dicts may be in another order
    try:
        flat = spec.flatten_up_to((tuple(args), ordered))
    except ValueError:
        flat = []
    # ``flatten_up_to`` accepts a container in the place of a leaf, which is wrong, too
    if not flat or not all(map(pytree.tree_is_leaf, flat)):
        why = _first_difference(spec, structure, names)
        if why is None:
            why = _describe_call(spec, names, args, kwargs)
            why += _missing_arguments(spec, structure, names)
        raise InputError("input-invalid", why)
    return flat


def _first_difference(
    wanted: pytree.TreeSpec, actual: pytree.TreeSpec, names: Sequence[str]
) -> str | None:
    """Describe the first argument of a call with another structure than in the export.

    Returns None if the numbers of arguments or the keywords differ. ``wanted`` and
    ``actual`` have the positional arguments as child 0, the keywords as child 1.
    ``names``: names of the positional arguments; without names, they are numbered.
    """
    count = wanted.child(0).num_children
    keys = list(wanted.child(1).context or [])
    actual_keys = list(actual.child(1).context or [])
    if (count, keys) != (actual.child(0).num_children, actual_keys):
        return None
    positional = names[:count] if len(names) >= count else map(str, range(count))
    differences = map(
        _difference, [*positional, *keys], _inputs(wanted), _inputs(actual)
    )
    return next(filter(None, differences))


def _missing_arguments(
    wanted: pytree.TreeSpec, actual: pytree.TreeSpec, names: Sequence[str]
) -> str:
    """Return the names of missing arguments as ``: x, y not given``; "" if there are
    none.
    """
    positional = names[actual.child(0).num_children : wanted.child(0).num_children]
    given = actual.child(1).context or ()
    keywords = [key for key in wanted.child(1).context or () if key not in given]
    missing = [*positional, *keywords]
    return f": {', '.join(missing)} not given" if missing else ""


def _inputs(spec: pytree.TreeSpec) -> list[pytree.TreeSpec]:
    """Return the structure of each input of a call, positional ones first."""
    return [*spec.child(0).children(), *spec.child(1).children()]


def _difference(
    name: str, wanted: pytree.TreeSpec, actual: pytree.TreeSpec
) -> str | None:
    """Describe the first difference between the structures of the input ``name``.

    Containers of the same kind and size are searched for a difference inside of them.
    Returns None if there is none.
    """
    if not _is_same_container(wanted, actual):
        return f"input {name} must be {_kind(wanted)}; it is {_kind(actual)}"
    keys: Any = range(wanted.num_children)
    actual_keys = keys
    if wanted.type is dict:
        keys = wanted.context
        actual_keys = actual.context  # perhaps in another order
    actual_children = dict(zip(actual_keys, actual.children(), strict=True))
    for key, child in zip(keys, wanted.children(), strict=True):
        difference = _difference(f"{name}[{key!r}]", child, actual_children[key])
        if difference:
            return difference
    return None


def _is_same_container(one: pytree.TreeSpec, other: pytree.TreeSpec) -> bool:
    """Return whether two containers have the same type, size and keys, in any order."""
    if one.type is not other.type or one.num_children != other.num_children:
        return False
    if one.type is dict:
        return set(one.context) == set(other.context)
    return bool(one.context == other.context)


def _kind(spec: pytree.TreeSpec) -> str:
    """Return the outermost container of a structure in words, for errors."""
    if spec.is_leaf():
        return "a single value, such as a tensor"
    if spec.type is dict:
        return f"a dict with the keys {spec.context}"
    if spec.type is None:
        return "a container"
    return f"a {spec.type.__name__} of {spec.num_children}"


def _describe_call(
    spec: pytree.TreeSpec | None,
    names: Sequence[str],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> str:
    """Describe expected and given arguments, for errors.

    Example: ``the program takes (x, scale=); it was given (Tensor, int)``.
    """
    # positional parameters
    count = spec.child(0).num_children if spec is not None else len(names)
    keys = list(spec.child(1).context or []) if spec is not None else []
    positional = list(names[:count])
    if len(names) < count:
        positional = [f"input {k}" for k in range(count)]
    types = [
        *(type(a).__name__ for a in args),
        *(f"{k}={type(v).__name__}" for k, v in kwargs.items()),
    ]
    parameters = [*positional, *(f"{key}=" for key in keys)]
    return (
        f"the program takes ({', '.join(parameters)}); it was given"
        f" ({', '.join(types)})"
    )


def leaf_names(spec: pytree.TreeSpec, names: Sequence[str]) -> list[str]:
    """Return the expression of each leaf of a call's arguments: ``x``, ``pair['a']``.

    The order is flat. ``spec``: the structure of the arguments,
    ``program.call_spec.in_spec``. ``names``: names of the positional arguments; if they
    are too few, the result is empty.
    """
    # arguments with arbitrary leaves, since only the paths to the leaves matter
    args, kwargs = pytree.tree_unflatten(range(spec.num_leaves), spec)
    if len(names) < len(args):
        return []
    roots = [*zip(names, args, strict=False), *kwargs.items()]
    leaves: list[str] = []
    for root, value in roots:
        paths = pytree.tree_flatten_with_path(value)[0]
        leaves += [root + pytree.keystr(path) for path, _ in paths]
    return leaves


def root_call(program: ExportedProgram) -> list[ModuleCallEntry]:
    """Return the ``call`` of ``build_program`` for programs called like ``program``."""
    # ``program.call_spec`` has the same specs, but creates a class at each access,
    # which takes half a millisecond. Entries about nodes and submodules are left out.
    signature: Any = program.module_call_graph[0].signature
    in_spec = signature.in_spec
    out_spec = signature.out_spec
    names = signature.forward_arg_names
    return [ModuleCallEntry("", ModuleCallSignature([], [], in_spec, out_spec, names))]


def flat_call(inputs: int, outputs: int) -> list[ModuleCallEntry]:
    """Return the ``call`` of ``build_program`` for flat inputs and a tuple of results."""
    in_spec = pytree.tree_structure(((0,) * inputs, {}))
    out_spec = pytree.tree_structure((0,) * outputs)
    return [ModuleCallEntry("", ModuleCallSignature([], [], in_spec, out_spec))]
