"""Makes files of whole programs: a delegate with the inputs and outputs of its method.

A delegate takes the values that its calls use, in the order of their first use, and
returns each value once. The host's program adds the rest: unused inputs, results that
occur twice, inputs and constants that are results. A file has no host. So if inputs or
results of delegate and method differ, the delegate is compiled again with those of the
method.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from delegraph_programs import (
    argument_of,
    build_program,
    constant_tensor,
    copy_node,
    flat_call,
    placeholder_of,
    placeholders,
    user_inputs,
    written_targets,
)
from delegraph_programs.exported_program import (
    CALL_DELEGATE,
    CONSTANT_KINDS,
    MUTATIONS,
    STATE_WRITES,
    outputs,
    results,
)
from delegraph_programs.higher_order_subgraphs import next_handles
from delegraph_programs.program_arguments import VARYING
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, OutputSpec
from torch.fx import Graph, Node

from ..delegates.find_delegates import DelegateInfo
from ..delegates.lowered_module import Argument, LoweredBackendModule
from ..discovery.registry import Registry
from ..errors import InputError
from .compiler_interface import Refused, Request
from .extract import as_dtype, cast
from .serial_compiler import Serial

_TAG = "of all inputs and results"  # errors name "partition of all inputs ..."
_HINT = "save a .pte file, which also has the host's part (delegraph-executorch)"


@dataclass(frozen=True)
class _Border:
    """The inputs and outputs of a method that is one delegate.

    All nodes are placeholders of the host's program. ``inputs``: the inputs of the
    method. ``passed``: the inputs and constants that the host passes to the delegate,
    in calling order. ``outputs``: for each result of the method, the position of an
    output of the delegate, or the placeholder that is the result itself.
    """

    inputs: list[Node]
    passed: list[Node]
    outputs: list[int | Node]

    def matches(self, module: LoweredBackendModule) -> bool:
        """Return whether the delegate ``module`` has the same inputs and outputs as the
        method, in the same order.
        """
        # result k of the method has to be output k of the delegate
        own_outputs = list(range(len(module.outputs)))
        return self.inputs == self.passed and self.outputs == own_outputs


def whole_delegate(
    program: ExportedProgram, delegate: DelegateInfo, registry: Registry
) -> DelegateInfo:
    """Return ``delegate`` with the inputs and outputs of ``program``, in order.

    If the delegate has other inputs or outputs, it is compiled again. ``program``: a
    lowered method with one operator, the call of ``delegate``. A result that is an
    input, a constant or an earlier result becomes an ``aten.clone`` in the delegate.
    Inputs that the export fixed, such as numbers and None, are left out. Raises
    InputError if the host writes a buffer or an input or computes a value, if a result
    is not a tensor, or if the backend refuses the program.
    """
    border = _border_of(program)
    module = delegate.module
    if border.matches(module):
        return delegate
    return _compiled(
        lambda: _Build(program, module, border).program(), delegate, registry
    )


def _border_of(program: ExportedProgram) -> _Border:
    """Return the inputs and outputs of ``program``, a method that is one delegate.

    Raises InputError if a file of one delegate cannot have these values.
    """
    (call,) = [n for n in program.graph.nodes if n.target is CALL_DELEGATE]
    passed = [_through_casts(arg) for arg in call.args[1:]]
    inputs = [n for n in user_inputs(program) if isinstance(n.meta.get("val"), VARYING)]
    specs = dict(placeholders(program))
    written = written_targets(program)
    for node in passed:
        if node.op != "placeholder":
            raise _cannot(f"the host computes {node.name} for the delegate")
        if specs[node].target in written:
            raise _kept_by_host(str(specs[node].target))
    origins: list[int | Node] = []
    for position, (spec, value) in enumerate(outputs(program)):
        if spec.kind in STATE_WRITES:
            raise _kept_by_host(str(spec.target))
        if spec.kind is OutputKind.USER_INPUT_MUTATION:
            raise _cannot(
                f"it writes to its input {spec.target}, which a file of one delegate"
                " cannot do"
            )
        origins.append(_origin_of(value, call, position))
    return _Border(inputs, passed, origins)


def _origin_of(value: Any, call: Node, position: int) -> int | Node:
    """Return the origin of ``value``, the result at ``position``.

    The origin is the position of an output of the delegate that ``call`` calls, or a
    placeholder. Raises InputError for any other origin, and for a number.
    """
    if not isinstance(value, Node):
        text = (
            f"result {position} is {value!r:.40}, and a file of one delegate returns"
            " tensors only"
        )
        raise _cannot(text, "return it from Python, or leave it out of the results")
    origin = _through_casts(value)
    if origin.op == "placeholder":
        if not isinstance(origin.meta.get("val"), torch.Tensor):
            raise _cannot(
                f"result {position} is the number {origin.name}, and a file of one"
                " delegate returns tensors"
            )
        return origin
    if origin.args[0] is not call:
        raise _cannot(f"the host computes result {position} ({origin.name})")
    return int(origin.args[1])  # type: ignore[arg-type]  # getitem(call, position)


def _through_casts(node: Any) -> Node:
    """Return the value that ``node`` casts at the border of a delegate.

    Returns ``node`` itself if it is no such cast. Several casts may follow each other.
    """
    while node.op == "call_function" and node.meta.get("boundary"):
        node = node.args[0]
    return node  # type: ignore[no-any-return]


def _cannot(text: str, hint: str = _HINT) -> InputError:
    """Return the error for a program that cannot be a file; ``text`` has the reason."""
    return InputError(
        "input-invalid",
        f"the program cannot be a file of one delegate: {text}",
        hint=hint,
    )


def _kept_by_host(target: str) -> InputError:
    """Return the error for the buffer ``target``, which the host keeps and writes."""
    hint = (
        "save a .pte file (delegraph-executorch), or use a backend with delegates that"
        " keep state: TOSA's targets with +variable"
    )
    return _cannot(f"it writes {target}, which the host keeps", hint)


class _Build:
    """Builds the program of a delegate with the inputs and outputs of its method.

    ``host``: the method's program. ``part``: the delegate's present program. ``graph``
    gets the nodes of the new program, and ``inputs`` and ``outputs`` get their specs.
    ``env``: node of ``part``, or placeholder of ``host`` -> the node of ``graph`` that
    has its value. ``module``: the delegate. ``border``: the values that the host passes
    to the delegate, and the inputs and outputs of the method.
    """

    def __init__(
        self, host: ExportedProgram, module: LoweredBackendModule, border: _Border
    ) -> None:
        self.host = host
        self.module = module
        self.border = border
        self.part = module.original_module
        self.graph = Graph(owning_module=self.part.graph_module)
        self.env: dict[Node, Node] = {}
        self.inputs: list[InputSpec] = []
        self.outputs: list[OutputSpec] = []
        self.handles = next_handles(self.part.graph_module)
        # target -> tensor, for constants of the host that become the delegate's
        self.tensors: dict[str, torch.Tensor] = {}

    def program(self) -> ExportedProgram:
        """Return the new program.

        Its constants come before its inputs, as in the programs of partitions.
        """
        part = self.part
        for node, spec in placeholders(part):
            if spec.kind is not InputKind.USER_INPUT:
                self._add(node, spec)
        self._add_constants()
        self._add_inputs()
        for node in part.graph.nodes:
            if node.op not in ("placeholder", "output"):
                self.env[node] = copy_node(self.graph, node, self.env.__getitem__)
        self._add_output()
        call = flat_call(len(self.border.inputs), len(self.border.outputs))
        program = build_program(
            part.graph_module,
            self.graph,
            self.inputs,
            self.outputs,
            part,
            call,
            check=False,  # the tensors of the host's constants are added below
        )
        for target, tensor in self.tensors.items():
            table: Any = (
                program.constants
                if target in self.host.constants
                else program.state_dict
            )
            table[target] = tensor
        return program

    def _add(
        self, node: Node, spec: InputSpec, dtype: torch.dtype | None = None
    ) -> Node:
        """Add a placeholder for ``node``, and return it.

        ``node``: the placeholder of ``part`` or ``host`` with the recorded value.
        ``dtype``: the dtype at the border; None for the recorded dtype.
        """
        new = placeholder_of(self.graph, node)
        new.meta.pop("debug_handle", None)
        if dtype is not None:
            new.meta["val"] = as_dtype(new.meta["val"], dtype)
        self.inputs.append(
            InputSpec(spec.kind, argument_of(new), spec.target, spec.persistent)
        )
        self.env[node] = new
        return new

    def _add_constants(self) -> None:
        """Add the constants that the host passes to the delegate or returns.

        The delegate's own constants must have been added before. A constant that both
        the host and the delegate have is not added again.
        """
        # target of a constant that the delegate owns -> its placeholder
        own_constants = {
            spec.target: node
            for node, spec in placeholders(self.part)
            if spec.kind in CONSTANT_KINDS
        }
        needed = {*self.border.outputs, *self.border.passed}
        for node, spec in placeholders(self.host):
            if spec.kind in CONSTANT_KINDS and node in needed:
                if spec.target in own_constants:
                    self.env[node] = self.env[own_constants[spec.target]]
                else:
                    self._add(node, spec)
                    self.tensors[str(spec.target)] = constant_tensor(self.host, spec)

    def _add_inputs(self) -> None:
        """Add all inputs of the method in order, and fill ``env`` for each input of the
        delegate.

        ``_add_constants`` must be called before, because the host may pass one of these
        constants to the delegate as an input.
        """
        specs = dict(placeholders(self.host))
        # placeholder of the host -> placeholder of the delegate that gets its value
        input_for = dict(zip(self.border.passed, user_inputs(self.part), strict=True))
        for node in self.border.inputs:
            if node in input_for:
                # the placeholder of the delegate has its boundary type already
                self.env[node] = self._add(input_for[node], specs[node])
            else:
                # an unused input: the delegate has no placeholder for it
                self._add(node, specs[node], self.module.boundary_types.get(node.name))
        for node, own_input in input_for.items():
            # ``_add`` has recorded the inputs above; any other is a constant of the host
            if own_input not in self.env:
                self.env[own_input] = self._in_border_dtype(node)

    def _add_output(self) -> None:
        """Add the output node of the graph, and its specs to ``outputs``.

        The node returns the new values of the delegate's own buffers, then the method's
        results.
        """
        values: list[Node] = []
        for spec, value in outputs(self.part):
            if spec.kind in MUTATIONS:
                values.append(self.env[value])
                self.outputs.append(
                    OutputSpec(spec.kind, argument_of(values[-1]), spec.target)
                )
        own_results = [self.env[value] for value in results(self.part)]
        for origin in self.border.outputs:
            new = self._result(origin, own_results, values)
            values.append(new)
            self.outputs.append(
                OutputSpec(OutputKind.USER_OUTPUT, argument_of(new), None)
            )
        self.graph.output(tuple(values))

    def _result(
        self, origin: int | Node, own: Sequence[Node], returned: Collection[Node]
    ) -> Node:
        """Return the node of the result that comes from ``origin``.

        ``origin``: the position of one of the delegate's outputs ``own``, or a
        placeholder of the host. The result is a clone of a placeholder, and of a node
        in ``returned``, because each node may be returned only once.
        """
        if isinstance(origin, int):
            value = own[origin]
            return self._clone(value) if value in returned else value
        return self._clone(self._in_border_dtype(origin))

    def _in_border_dtype(self, node: Node) -> Node:
        """Return the new graph's value of ``node``, a placeholder of ``host``.

        Adds a cast if the value has a boundary type, and another dtype.
        """
        value = self.env[node]
        dtype = self.module.boundary_types.get(node.name)
        if dtype is None or value.meta["val"].dtype is dtype:
            return value
        new = cast(self.graph, value, dtype)
        new.meta["debug_handle"] = next(self.handles)
        return new

    def _clone(self, value: Node) -> Node:
        """Add a clone of ``value`` and return it. A file needs a separate value for each
        output. The clone has the source line of ``value``.
        """
        name = f"{value.name}_copy"
        new = self.graph.create_node(
            "call_function", torch.ops.aten.clone.default, (value,), name=name
        )
        for key in ("val", "stack_trace", "nn_module_stack"):
            if key in value.meta:
                new.meta[key] = value.meta[key]
        new.meta["debug_handle"] = next(self.handles)
        return new


def _compiled(
    build: Callable[[], ExportedProgram], delegate: DelegateInfo, registry: Registry
) -> DelegateInfo:
    """Return ``delegate`` with the module that its backend compiles.

    ``build`` returns the program to compile, a fresh one at each call. Raises
    InputError, with the reason, if the backend refuses the program, and the error of
    the backend if it fails.
    """
    module = delegate.module
    # the program of the new module; the backend gets another, which it may change
    program = build()
    backend = registry.installed(module.backend_id)
    request = Request(
        backend, tuple(module.compile_specs), delegate.method, _TAG, build
    )
    with Serial().session(registry, ()) as session:
        (compiled,) = session.compile([request])
    result = compiled.result
    if isinstance(result, Refused):
        if result.has_failed:
            raise result.error
        name = backend.kind.__name__
        text = (
            f"{name} refuses it with all inputs and results of {delegate.method}:"
            f" {result.reason}"
        )
        raise _cannot(text, result.hint or _HINT) from result.error
    inputs = user_inputs(program)
    whole = LoweredBackendModule(
        module.backend_id,
        program,
        module.compile_specs,
        [Argument.of(node.name, node.meta["val"]) for node in inputs],
        [Argument.of(node.name, node.meta["val"]) for node in results(program)],
    )
    whole.attach(result, backend.producer, delegate.fingerprint)
    # "": the new blob was compiled without the cache of the lowering
    return replace(delegate, module=whole, compiled="")
