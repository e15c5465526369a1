"""``TOSAPartitioner``: gives TOSA what its rules lower. The check is a dry run of them,
so both agree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from delegraph.errors import OptionError, Unsupported
from delegraph.partitioner import (
    CapabilityPartitioner,
    PartitionResult,
    tag_mutated_buffer,
)
from delegraph_programs import (
    constant_placeholders,
    input_names,
    to_core,
    user_inputs,
    written_values,
)
from delegraph_programs.call_names import INDEXED, WITHIN
from delegraph_programs.exported_program import CALL_DELEGATE
from delegraph_programs.interpolation_scales import why_factor_undecided
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree

from .ir.graph import Value
from .ir.operators import IDENTITY, VARIABLE
from .ir.size_sources import why_unknown_sizes
from .ir.types import DType, Type
from .lowering.builder import Tosa
from .lowering.interpret.dry_run import Constants, DryRun, Fact, facts_of_constants
from .lowering.lazy.complex_numbers import Complex
from .lowering.lazy.unsigned import Bytes
from .lowering.ranges.border_dtypes import CARRIED, mark_carried
from .lowering.ranges.bounds import bounds_of
from .lowering.ranges.value_ranges import INT32, Range, inside
from .lowering.registry import Result, indexes_of, is_empty, is_unpacking
from .lowering.torch_values.hints import (
    at_border,
    dynamic,
    int64_result,
    no_dtype,
    no_rule_for_integers,
    untold_size,
)
from .lowering.torch_values.symbolic_sizes import (
    is_dynamic_tensor,
    shape_of_tensor,
    sizes_in,
)
from .lowering.torch_values.tensor_types import type_of
from .options import Options
from .spec import TosaSpec

_PROMISE = re.compile(r"([^=]+?)(?:\s*=\s*(-?\d+)\s*\.\.\s*(-?\d+))?")
"""An entry of ``int32_inputs``."""


class TOSASupport:
    """What the capability partitioner asks: one interpretation of the program, and one
    of each finished partition.
    """

    def __init__(
        self, spec: TosaSpec, within: Mapping[str, Range] = MappingProxyType({})
    ) -> None:
        """``within``: name of an int64 input of the program -> the range in which the
        user says that it lies.
        """
        self._t = Tosa(spec)
        self._within = within
        self._memo: dict[Hashable, Any] = {}
        self._accepted: set[Node] = set()
        self._copied: set[Node] = set()
        self._of_constants: set[Node] = set()
        """Calls on constants alone, which a compiler folds though the dry run may not
        know their elements.
        """
        self._weights: Collection[Node] = ()
        self._constant: Constants = lambda node: None
        self._has_sizes = False
        self._calls = 0
        self._run = self._exact = self._fresh(())

    def _fresh(
        self,
        nodes: Collection[Node],
        arriving: Callable[[Node], Range | None] | None = None,
    ) -> DryRun:
        return DryRun(self._t, self._constant, nodes, arriving, self._memo)

    def begin(self, exported_program: ExportedProgram) -> None:
        """A new program: forget the last one."""
        self._accepted = set()
        self._copied = set()
        self._of_constants = set()
        self._weights = constant_placeholders(exported_program)
        self._constant = facts_of_constants(exported_program)
        self._has_sizes = bool(exported_program.range_constraints)
        self._calls = sum(n.op == "call_function" for n in exported_program.graph.nodes)
        self._mark_inputs(exported_program)
        self._run = self._exact = self._fresh(exported_program.graph.nodes)
        if self._run.casts:
            self._exact = self._fresh(exported_program.graph.nodes)
            self._exact.casts = {}

    def _mark_inputs(self, program: ExportedProgram) -> None:
        """Mark the values that have indices, and how int64 inputs cross: as the user
        says, or as their uses read them.

        An index in one axis may name an element of the next row in the file, and int64
        crosses as int32. So calls are refused for indices for which eager raises, also
        if the host computes them.
        """
        bounds = bounds_of(program.graph.nodes, indexes_of)
        for node in program.graph.nodes:
            node.meta.pop(INDEXED, None)
        computed = [node for node in program.graph.nodes if node.op == "call_function"]
        for node in (*user_inputs(program), *computed):
            if node in bounds and isinstance(node.meta.get("val"), torch.Tensor):
                node.meta[INDEXED] = [*bounds[node]]
        inputs = [n for n in user_inputs(program) if _is_int64(n.meta.get("val"))]
        called = dict(_called_inputs(program)) if self._within else {}
        for node in inputs:
            within = self._within.get(
                called.get(node, node.name), self._within.get(node.name)
            )
            if within is not None:
                node.meta[WITHIN] = [*within]
        if not self._t.spec.has_int64:
            written = written_values(program)
            unknown = [
                n
                for n in inputs
                if n not in bounds and WITHIN not in n.meta and n not in written
            ]
            mark_carried(program.graph.nodes, unknown, "FP" in self._t.spec.profiles)

    def why_not(self, node: Node) -> str | None:
        """Why ``node`` is not lowered for this target; None if it is. Asked in graph
        order.
        """
        why = why_factor_undecided(node) or self._run.why_not(node)
        if all(
            i in self._weights or _call(i) in self._of_constants
            for i in node.all_input_nodes
        ):
            self._of_constants.add(node)
        if self._exact is not self._run:
            self._exact.why_not(node)
        if why is None:
            self._accepted.add(node)
            return None
        if to_core(node.target) is not None and _has_floats(node):
            why = no_rule_for_integers(self._t.spec, why)
        return at_border(self._t.spec, node, why)

    def is_constant(self, node: Node) -> bool:
        """Whether an accepted node folds to a constant, and takes nothing that has to
        be computed before it.
        """
        made_of = (_call(i) for i in node.all_input_nodes if i.op == "call_function")
        known = _all_constant(self._run.values.get(node)) and all(
            i in self._copied for i in made_of
        )
        if known:
            self._copied.add(node)
        return known

    def partition_why_not(self, nodes: Sequence[Node]) -> Mapping[Node, str]:
        """Refusals of what shows only in a whole partition; {} if ``TOSABackend``
        compiles it.

        That an int64 fits into 32 bits when it crosses the border may follow from the
        whole program; what follows from that inside, the backend has to see in the
        partition alone.
        """
        inside = set(nodes)
        alone = self._alone(nodes, inside)
        found: dict[Node, str] = {}
        inputs = self._inputs(nodes, inside) if self._has_sizes else []
        run = alone or self._run
        taken = set[Any]()
        for node in nodes:
            why = self._why_not_empty(node, inside) or (alone and alone.why_not(node))
            arriving = (i for i in node.all_input_nodes if i not in inside)
            taken.update(value for i in arriving for value in _flat(run.values.get(i)))
            why = why or self._why_not_result(run, node, inside, taken)
            if why is None and self._has_sizes:
                unknown_symbols = why_unknown_sizes(inputs, _sizes(node))
                why = unknown_symbols and untold_size(unknown_symbols)
            if why is not None:
                found[node] = at_border(self._t.spec, node, why)
                if alone:
                    alone.values.pop(node, None)
        self._accepted.difference_update(found)
        return found

    def _alone(self, nodes: Sequence[Node], inside: set[Node]) -> DryRun | None:
        """The partition interpreted by itself, as the backend will do it.

        None if the interpretation of the whole program tells the same: then it knows no
        more of the inputs of the partition than their types, and no two of them are one
        value.
        """
        if len(inside) == self._calls:
            return None
        run = self._fresh(nodes, self._known)
        if (
            self._has_sizes
            or self._run.casts
            or any(self._run.bounds.get(n) != run.bounds.get(n) for n in nodes)
        ):
            return run
        seen = {id(value) for n in nodes for value in _flat(self._run.values.get(n))}
        for node in dict.fromkeys(
            i for n in nodes for i in n.all_input_nodes if i not in inside
        ):
            value = self._run.values.get(node)
            if value is None or node in self._weights:
                # it is an input of the program, or both interpretations read the
                # constant
                continue
            if (
                type(value) is not Value
                or id(value) in seen
                or not _arrives_as(value, run, node)
            ):
                return run
            seen.add(id(value))  # a rule may see that two operands are one value
        return None

    def _why_not_empty(self, node: Node, inside: set[Node]) -> str | None:
        """Why an empty tensor cannot enter the partition, also where the rule leaves it
        out; TOSA has none.
        """
        arriving = (
            i
            for i in node.all_input_nodes
            if i not in inside and is_empty(i) and i not in self._weights
        )
        return next(
            (
                f"the input {i.name} is empty, and TOSA has no empty tensors"
                for i in arriving
            ),
            None,
        )

    def _inputs(self, nodes: Sequence[Node], inside: set[Node]) -> list[Value]:
        """The tensors that arrive at a partition, as far as sizes can be read off them."""
        given = dict.fromkeys(
            i
            for n in nodes
            for i in n.all_input_nodes
            if i not in inside and i not in self._weights
        )
        tensors = [
            n.meta["val"] for n in given if isinstance(n.meta.get("val"), torch.Tensor)
        ]
        return [Value(Type(shape_of_tensor(val.shape), DType.INT32)) for val in tensors]

    def _known(self, node: Node) -> Range | None:
        """The range of a value in the whole program; Unsupported if nothing is known of
        it there.

        Without what follows from casts that stop somewhere: they do so for uses in
        their own partition alone.
        """
        return Fact.of(self._exact.value_of(node)).range

    def _why_not_result(
        self, run: DryRun, node: Node, inside: set[Node], taken: set[Any]
    ) -> str | None:
        """Why a value that others use cannot leave the partition.

        ``taken``: the values that arrive there, and those that leave already, to which
        this one is added.
        """
        if not any(u not in inside for u in node.users) or isinstance(
            node.meta["val"], (list, tuple)
        ):
            return None
        try:
            value = run.value_of(node)
        except Unsupported as refusal:
            return refusal.message
        if isinstance(value, Complex):
            return no_dtype(torch.complex64, "the result leaves the delegate")
        if not self._leaves(node, value, inside):
            return None
        if not isinstance(value, Value):
            return f"the size {value} leaves the delegate: TOSA returns tensors"
        fact = Fact.of(value)
        if node.meta.get(CARRIED) == "float32":
            return "the result leaves the delegate, which has this int64 as a float"
        same = [*run.same(value)]
        is_copied = _call(node) in self._of_constants or any(
            v in taken or v.constant is not None for v in same
        )
        taken.update(same)
        why = fact.why_not_result(self._t.spec) or self._why_no_bytes(value)
        why = why or (self._why_no_copy(fact.type) if is_copied else None)
        text = why and f"the result leaves the delegate: {why}"
        return int64_result(text) if text and fact.type.dtype is DType.INT64 else text

    def _why_no_bytes(self, value: Value) -> str | None:
        """Why uint8 cannot leave: a RESCALE makes it of int8, which the target may not
        have.
        """
        if not isinstance(value, Bytes):
            return None
        try:
            value.leaving(self._t)
        except Unsupported as refusal:
            return refusal.message
        finally:
            self._t.operators.clear()
        return None

    def _why_no_copy(self, type: Type) -> str | None:
        """Why a value cannot leave that arrives, is a constant, or leaves already: an
        IDENTITY copies it.

        The target may have none of this type. An int64 is int32 there, unless the
        target has int64.
        """
        if type.dtype is DType.INT64 and not self._t.spec.has_int64:
            type = Type(type.shape, DType.INT32)
        copy = IDENTITY((Value(type),), None)
        copy.outputs = (Value(type, producer=copy),)
        return self._t.spec.why_not(copy)

    def _leaves(self, node: Node, value: Value | int, inside: set[Node]) -> bool:
        """Whether a user outside needs the value. Each partition that uses a constant
        gets its own copy.
        """
        if not _all_constant(value) or _call(node) not in self._copied:
            return any(u not in inside for u in node.users)
        return not any(
            u.op == "call_function" and not self._is_refused(u) for u in node.users
        )

    def _is_refused(self, node: Node) -> bool:
        """Or another backend's, which is not asked about."""
        return node.target is CALL_DELEGATE or _call(node) not in self._accepted


def _arrives_as(value: Value, run: DryRun, node: Node) -> bool:
    """Whether as much is known of ``node`` where it arrives in ``run`` as of ``value``."""
    try:
        return Fact.of(run.value_of(node)) == Fact.of(value)
    except Unsupported:
        return False


def _flat(result: Result | float | None) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def _call(node: Node) -> Node:
    """The call that ``node`` takes one of several results of, or itself."""
    return _call(node.args[0]) if is_unpacking(node) else node  # type: ignore[arg-type]


def _sizes(node: Node) -> list[int]:
    """The sizes of what a call makes and of what it takes, to which a linear layer
    reshapes its operand.
    """
    several = [
        v
        for one in (node, *node.all_input_nodes)
        for v in pytree.tree_leaves(one.meta.get("val"))
    ]
    sizes = [size for v in several if isinstance(v, torch.Tensor) for size in v.shape]
    return [*shape_of_tensor(sizes), *(size for v in several for size in sizes_in(v))]


def _all_constant(result: Result | float) -> bool:
    """Whether every result that is there is constant, or a size, which each partition
    takes from its own inputs.
    """
    values = result if isinstance(result, tuple) else (result,)
    there = [value for value in values if value is not None]
    return bool(there) and all(
        not isinstance(value, Value) or value.constant is not None for value in there
    )


class TOSAPartitioner(CapabilityPartitioner):
    """Hands to ``TOSABackend`` every operator that the target ``spec`` takes.

    ``debug_artifact_path`` is a folder that gets a .tosa file of every partition,
    ``input_order`` a comma-separated permutation of a delegate's inputs; with
    ``locations`` a delegate's file names the source of each operator, without
    ``metadata`` it does not say the scales of quantized inputs and outputs; with
    ``named_constants`` its large constants are named data, which a program file has
    once for all its methods. ``int32_inputs`` names int64 inputs that fit into 32 bits,
    as ``name``, or ``name=0..1`` for integers from 0 to 1, which each call is checked
    for. OptionError if one of them is wrong.
    """

    def __init__(
        self,
        spec: str | TosaSpec = "TOSA-1.0+FP+INT",
        debug_artifact_path: str | None = None,
        input_order: str | None = None,
        locations: bool = False,
        metadata: bool = True,
        named_constants: bool = False,
        int32_inputs: Sequence[str] = (),
    ) -> None:
        options = Options.of(
            str(spec),
            debug_artifact_path,
            input_order,
            locations,
            metadata,
            named_constants,
        )
        self._within = dict(map(_promised, int32_inputs))
        super().__init__(
            TOSASupport(options.spec, self._within),
            "TOSABackend",
            options.compile_specs(),
            additional_checks=() if options.spec.takes_dynamic else (why_not_dynamic,),
            spec={"spec": options.spec},
        )

    def check_settings(self, programs: Mapping[str, ExportedProgram]) -> None:
        """Raise OptionError for a name in ``int32_inputs`` that is no int64 input of
        any of the ``programs``.
        """
        inputs = (
            [pair for program in programs.values() for pair in _called_inputs(program)]
            if self._within
            else []
        )
        vals = {
            name: node.meta.get("val")
            for node, called in inputs
            for name in (node.name, called)
        }
        int64 = {
            name
            for node, called in inputs
            if _is_int64(node.meta.get("val"))
            for name in (node.name, called)
        }
        for name in self._within:
            if name not in int64:
                text = (
                    f"int32_inputs names {name!r}, which is no int64 input of the"
                    " program"
                )
                if isinstance(val := vals.get(name), torch.Tensor):
                    text += f", but {str(val.dtype).removeprefix('torch.')}"
                there = dict.fromkeys(
                    called for node, called in inputs if node.name in int64
                )
                raise OptionError(
                    "option-invalid",
                    text,
                    hint=f"int64 inputs are {', '.join(there) or 'none'}",
                )

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """As the checks say; every int64 that enters or leaves a delegate is cast there
        if the target has none.

        A buffer that is read and written in one partition only is its variable, if the
        target has such.
        """
        result = super().partition(exported_program)
        _tag_variables(exported_program, self.spec["spec"])
        if self.spec["spec"].has_int64:
            return result
        crossing = [
            n for n in exported_program.graph.nodes if _is_int64(n.meta.get("val"))
        ]
        result.boundary_types = {
            n.name: getattr(torch, n.meta.get(CARRIED, "int32")) for n in crossing
        }
        return result


def _called_inputs(program: ExportedProgram) -> list[tuple[Node, str]]:
    """The inputs of ``program``, each with the caller's name for it."""
    return list(zip(user_inputs(program), input_names(program), strict=True))


def _promised(entry: str) -> tuple[str, Range]:
    """(name, range) of an entry of ``int32_inputs``. Raises OptionError for one of
    another form.
    """
    match = _PROMISE.fullmatch(entry)
    if match is None:
        text = (
            f"int32_inputs {entry!r} is neither the name of an input nor of the form"
            " name=0..1"
        )
        raise OptionError("option-invalid", text)
    range = INT32 if match[2] is None else (int(match[2]), int(match[3]))
    if range[0] > range[1] or not inside(range, INT32):
        raise OptionError(
            "option-invalid",
            f"int32_inputs {entry!r}: {range[0]} to {range[1]} is no range of int32",
        )
    return match[1], range


def _tag_variables(program: ExportedProgram, spec: TosaSpec) -> None:
    """Tag the written buffers that TOSA can keep; others are inputs and outputs of
    delegates.
    """
    tag_mutated_buffer(program)
    for buffer in written_values(program):
        if not _is_variable(buffer.meta["val"], spec):
            buffer.meta.pop("delegation_tag", None)


def _is_variable(val: Any, spec: TosaSpec) -> bool:
    """Whether the target has variables of such a type: they are an extension, and not
    of every element type.
    """
    try:
        initial = Fact(type_of(val), True, None).value()
    except Unsupported:
        return False
    return spec.why_not(VARIABLE((initial,), variable="")) is None


def _has_floats(node: Node) -> bool:
    """Whether a call returns floats."""
    results = pytree.tree_leaves(node.meta.get("val"))
    return any(
        isinstance(result, torch.Tensor) and result.dtype.is_floating_point
        for result in results
    )


def _is_int64(val: Any) -> bool:
    return isinstance(val, torch.Tensor) and val.dtype is torch.int64


def why_not_dynamic(node: Node) -> str | None:
    """Refuses dynamic sizes for TOSA 1.0. Nobody takes apart what a check refuses:
    pieces have sizes too.
    """
    for operand in (*node.all_input_nodes, node):
        val = operand.meta.get("val")
        if isinstance(val, torch.Tensor) and is_dynamic_tensor(val):
            what = (
                ("its result", None)
                if operand is node
                else (f"the input {operand.name}", operand)
            )
            return dynamic(val, *what)
    return None
