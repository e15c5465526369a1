"""``TOSAPartitioner`` gives TOSA the calls that its rules lower.

The support check is a dry run of the rules, so check and lowering agree. A call is
"accepted" if the target lowers it. The border of a partition is its inputs and outputs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from delegraph.errors import OptionError, Unsupported
from delegraph.partitioner import CapabilityPartitioner, PartitionResult
from delegraph_engines import tag_mutated_buffer
from delegraph_programs import (
    constant_placeholders,
    input_names,
    to_core,
    user_inputs,
    written_values,
)
from delegraph_programs.call_names import INDEXED, WITHIN
from delegraph_programs.exported_program import CALL_DELEGATE
from delegraph_programs.interpolation_scale_factors import why_factor_undecided
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
from .lowering.ranges.border_dtypes import BORDER_DTYPE, mark_border_dtypes
from .lowering.ranges.bounds import bounds_of
from .lowering.ranges.value_ranges import INT32, Range, inside
from .lowering.registry import Result, indexes_of, is_empty, is_unpacking
from .lowering.torch_values.hints import (
    at_border,
    dynamic,
    int64_result,
    no_dtype,
    no_rule_for_integers,
    unknown_size,
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
"""Matches an entry of ``int32_inputs``."""


class TOSASupport:
    """Support check of the capability partitioner.

    Interprets the whole program once, and then each finished partition.
    """

    def __init__(
        self, spec: TosaSpec, within: Mapping[str, Range] = MappingProxyType({})
    ) -> None:
        """Create the check for a target.

        ``within`` maps an int64 input of the program to the range that the user
        promises.
        """
        self._t = Tosa(spec)
        self._within = within
        # calls that the target lowers
        self._accepted: set[Node] = set()
        # calls that fold to constants: each partition has its own copy
        self._copied: set[Node] = set()
        # calls on constants only, which compilers fold even if the dry run does not
        # know the elements
        self._of_constants: set[Node] = set()
        # inputs of the program that are parameters, buffers or other constants
        self._weights: Collection[Node] = ()
        self._constant: Constants = lambda node: None
        self._has_sizes = False
        # number of calls in the program
        self._calls = 0
        # dry runs of the program: with casts at the border, and without
        self._run = self._new_dry_run(())
        self._exact = self._run

    def _new_dry_run(
        self,
        nodes: Collection[Node],
        arriving: Callable[[Node], Range | None] | None = None,
    ) -> DryRun:
        """Return a dry run for ``nodes``, which has no values yet.

        ``arriving`` returns the range of a value from outside of ``nodes``, or None.
        """
        return DryRun(self._t, self._constant, nodes, arriving)

    def begin(self, exported_program: ExportedProgram) -> None:
        """Start with a new program and forget the last one."""
        self._accepted = set()
        self._copied = set()
        self._of_constants = set()
        self._weights = constant_placeholders(exported_program)
        self._constant = facts_of_constants(exported_program)
        self._has_sizes = bool(exported_program.range_constraints)
        self._calls = sum(n.op == "call_function" for n in exported_program.graph.nodes)
        self._mark_inputs(exported_program)
        self._run = self._new_dry_run(exported_program.graph.nodes)
        self._exact = self._run
        if self._run.casts:
            self._exact = self._new_dry_run(exported_program.graph.nodes)
            self._exact.casts = {}

    def _mark_inputs(self, program: ExportedProgram) -> None:
        """Mark index values and the ranges or border types of int64 inputs.

        Eager raises for an index that is out of range, but in the file it may name an
        element of the next row. Therefore calls check the ranges, also for indices that
        the host computes or keeps in a buffer.
        """
        bounds = bounds_of(program.graph.nodes, indexes_of)
        for node in program.graph.nodes:
            node.meta.pop(INDEXED, None)
        computed = [node for node in program.graph.nodes if node.op == "call_function"]
        written = written_values(program)
        for node in (*user_inputs(program), *written, *computed):
            if node in bounds and isinstance(node.meta.get("val"), torch.Tensor):
                node.meta[INDEXED] = [*bounds[node]]
        inputs = [n for n in user_inputs(program) if _is_int64(n.meta.get("val"))]
        names = dict(_inputs_with_names(program)) if self._within else {}
        for node in inputs:
            name = names.get(node, node.name)
            within = self._within.get(name, self._within.get(node.name))
            if within is not None:
                node.meta[WITHIN] = [*within]
        if not self._t.spec.has_int64:
            unknown = []
            for node in inputs:
                is_promised = WITHIN in node.meta
                if node not in bounds and not is_promised and node not in written:
                    unknown.append(node)
            mark_border_dtypes(
                program.graph.nodes, unknown, "FP" in self._t.spec.profiles
            )

    def why_not(self, node: Node) -> str | None:
        """Return why the target does not lower ``node``, or None if it does.

        Call it once for each call of the program, in graph order: a dry run needs the
        values of the operands, and records the result of ``node``. Accepted calls and
        calls on constants are recorded, too.
        """
        why = why_factor_undecided(node) or self._run.why_not(node)
        if self._exact is not self._run:
            # only the recorded value is needed, for ``_range_in_program``
            self._exact.why_not(node)
        if self._has_constant_operands(node):
            self._of_constants.add(node)
        if why is None:
            self._accepted.add(node)
            return None
        if to_core(node.target) is not None and _has_floats(node):
            why = no_rule_for_integers(self._t.spec, why)
        return at_border(self._t.spec, node, why)

    def _has_constant_operands(self, node: Node) -> bool:
        """Return whether all operands of a call are constants, or made of constants."""
        return all(
            operand in self._weights or _call(operand) in self._of_constants
            for operand in node.all_input_nodes
        )

    def is_constant(self, node: Node) -> bool:
        """Return whether an accepted call folds to a constant by itself.

        If it does, the call is recorded: each partition that uses it gets a copy. Call
        this in graph order.
        """
        operands = [_call(i) for i in node.all_input_nodes if i.op == "call_function"]
        if not self._copied.issuperset(operands):
            return False
        if not _all_constant(self._run.values.get(node)):
            return False
        self._copied.add(node)
        return True

    def partition_why_not(self, nodes: Sequence[Node]) -> Mapping[Node, str]:
        """Return refusals that only a whole partition shows, or {} if it compiles.

        The whole program can prove that an int64 fits into 32 bits at the border.
        Inside the partition, the backend must prove it from the partition alone.
        Refused calls are no longer recorded as accepted.
        """
        inside = set(nodes)
        alone = self._dry_run_alone(nodes, inside)
        found: dict[Node, str] = {}
        inputs = self._inputs(nodes, inside) if self._has_sizes else []
        run = alone or self._run
        # values at the border so far
        taken = set[Any]()
        for node in nodes:
            why = self._why_not_empty(node, inside)
            if why is None and alone is not None:
                why = alone.why_not(node)
            for operand in node.all_input_nodes:
                if operand not in inside:
                    taken.update(_as_tuple(run.values.get(operand)))
            if why is None:
                why = self._why_not_result(run, node, inside, taken)
            if why is None and self._has_sizes:
                unknown = why_unknown_sizes(inputs, _sizes(node))
                why = unknown and unknown_size(unknown)
            if why is not None:
                found[node] = at_border(self._t.spec, node, why)
                if alone:
                    alone.values.pop(node, None)
        self._accepted.difference_update(found)
        return found

    def _dry_run_alone(self, nodes: Sequence[Node], inside: set[Node]) -> DryRun | None:
        """Return a dry run for the partition by itself, as the backend will lower it.

        The caller interprets the calls of the partition in it. Returns None if the dry
        run of the whole program gives the same result: it knows only the types of the
        partition's inputs, and no two inputs are one value.
        """
        if len(inside) == self._calls:
            return None
        run = self._new_dry_run(nodes, self._range_in_program)
        if self._has_sizes or self._run.casts:
            return run
        if any(self._run.bounds.get(n) != run.bounds.get(n) for n in nodes):
            return run
        # identities of values inside of the partition or at its border: a rule may see
        # that two operands are the same value
        seen: set[int] = set()
        operands: dict[Node, None] = {}
        for node in nodes:
            seen.update(map(id, _as_tuple(self._run.values.get(node))))
            outside = [i for i in node.all_input_nodes if i not in inside]
            operands.update(dict.fromkeys(outside))
        for operand in operands:
            value = self._run.values.get(operand)
            if value is None or operand in self._weights:
                # an input of the program, or a constant that both dry runs read
                continue
            if type(value) is not Value or id(value) in seen:
                return run
            if not _has_same_facts(value, run, operand):
                return run
            seen.add(id(value))
        return None

    def _why_not_empty(self, node: Node, inside: set[Node]) -> str | None:
        """Return why an empty tensor cannot enter the partition, or None.

        TOSA has no empty tensors, even as operands that the rule ignores.
        """
        for operand in node.all_input_nodes:
            arrives = operand not in inside and operand not in self._weights
            if arrives and is_empty(operand):
                return f"the input {operand.name} is empty; TOSA has no empty tensors"
        return None

    def _inputs(self, nodes: Sequence[Node], inside: set[Node]) -> list[Value]:
        """Return the tensors that enter a partition, for the sizes in their shapes."""
        operands: dict[Node, None] = {}
        for node in nodes:
            operands.update(dict.fromkeys(node.all_input_nodes))
        values: list[Value] = []
        for node in operands:
            val = node.meta.get("val")
            arrives = node not in inside and node not in self._weights
            if arrives and isinstance(val, torch.Tensor):
                values.append(Value(Type(shape_of_tensor(val.shape), DType.INT32)))
        return values

    def _range_in_program(self, node: Node) -> Range | None:
        """Return the range of a value in the whole program.

        Raises Unsupported if the value is unknown in the whole program. Ignores casts
        that stop at some uses: they do so only within their own partition.
        """
        return Fact.of(self._exact.value_of(node)).range

    def _why_not_result(
        self, run: DryRun, node: Node, inside: set[Node], taken: set[Any]
    ) -> str | None:
        """Return why a value with outside users cannot leave the partition, or None.

        ``taken`` holds the values that enter the partition or leave it already. The
        value of ``node`` is added to ``taken``.
        """
        is_used_outside = any(u not in inside for u in node.users)
        if not is_used_outside or isinstance(node.meta["val"], (list, tuple)):
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
            return (
                f"the size {value} leaves the delegate, but TOSA returns tensors only"
            )
        fact = Fact.of(value)
        if node.meta.get(BORDER_DTYPE) == "float32":
            return "the int64 result leaves the delegate, which computes it as a float"
        same = [*run.same(value)]
        is_copied = _call(node) in self._of_constants or any(
            v in taken or v.constant is not None for v in same
        )
        taken.update(same)
        why = fact.why_not_result(self._t.spec) or self._why_no_uint8(value)
        if why is None and is_copied:
            why = self._why_no_copy(fact.type)
        if why is None:
            return None
        text = f"the result leaves the delegate: {why}"
        return int64_result(text) if fact.type.dtype is DType.INT64 else text

    def _why_no_uint8(self, value: Value) -> str | None:
        """Return why ``value`` cannot leave as uint8, or None, also for other types.

        A RESCALE makes uint8 from int8; the target may lack that RESCALE.
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
        """Return why the copy of a value cannot leave, or None.

        Values that enter, constants and values that already leave are copied by
        IDENTITY, which the target may lack for this type. If the target has no int64,
        int64 is int32.
        """
        if type.dtype is DType.INT64 and not self._t.spec.has_int64:
            type = Type(type.shape, DType.INT32)
        copy = IDENTITY((Value(type),), None)
        copy.outputs = (Value(type, producer=copy),)
        return self._t.spec.why_not(copy)

    def _leaves(self, node: Node, value: Value | int, inside: set[Node]) -> bool:
        """Return whether a user outside needs the value.

        Each partition that uses a constant has its own copy.
        """
        is_copied = _all_constant(value) and _call(node) in self._copied
        if not is_copied:
            return any(u not in inside for u in node.users)
        return not any(
            u.op == "call_function" and not self._is_refused(u) for u in node.users
        )

    def _is_refused(self, node: Node) -> bool:
        """Return whether a node is refused or belongs to another backend."""
        return node.target is CALL_DELEGATE or _call(node) not in self._accepted


def _has_same_facts(value: Value, run: DryRun, node: Node) -> bool:
    """Return whether ``run`` knows the same facts of ``node`` as of ``value``."""
    try:
        return Fact.of(run.value_of(node)) == Fact.of(value)
    except Unsupported:
        return False


def _as_tuple(result: Result | float | None) -> tuple[Any, ...]:
    """Return the results of a call that has one or several."""
    return result if isinstance(result, tuple) else (result,)


def _call(node: Node) -> Node:
    """Return the call that produces ``node``, which may be one of several results."""
    return _call(node.args[0]) if is_unpacking(node) else node  # type: ignore[arg-type]


def _sizes(node: Node) -> list[int]:
    """Return the sizes of a call's results and operands.

    Operands count because a linear layer reshapes them.
    """
    vals: list[Any] = []
    for value in (node, *node.all_input_nodes):
        vals += pytree.tree_leaves(value.meta.get("val"))
    sizes: list[Any] = []
    numbers: list[int] = []
    for val in vals:
        if isinstance(val, torch.Tensor):
            sizes += val.shape
        numbers += sizes_in(val)
    return [*shape_of_tensor(sizes), *numbers]


def _all_constant(result: Result | float) -> bool:
    """Return whether all results are constants or sizes.

    Each partition computes sizes from its own inputs.
    """
    present = [value for value in _as_tuple(result) if value is not None]
    return bool(present) and all(
        not isinstance(value, Value) or value.constant is not None for value in present
    )


class TOSAPartitioner(CapabilityPartitioner):
    """Hands to ``TOSABackend`` every operator that the target ``spec`` supports.

    ``debug_artifact_path`` is a folder that gets a .tosa file of every partition.
    ``input_order`` is a comma-separated permutation of a delegate's inputs. With
    ``locations``, a delegate's file names the source of each operator. Without
    ``metadata``, the file has no scales of quantized inputs and outputs. With
    ``named_constants``, large constants are named data, which a program file stores
    once for all methods.

    ``int32_inputs`` names int64 inputs that fit into 32 bits: ``name``, or
    ``name=0..1`` for integers from 0 to 1. Each call checks them. Raises OptionError
    for a wrong option.
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
        self._within = dict(map(_parse_promise, int32_inputs))
        super().__init__(
            TOSASupport(options.spec, self._within),
            "TOSABackend",
            options.compile_specs(),
            additional_checks=() if options.spec.takes_dynamic else (why_not_dynamic,),
        )
        self._target = options.spec

    @property
    def spec(self) -> Mapping[str, TosaSpec]:
        """Return the target, under the key ``spec``."""
        return MappingProxyType({"spec": self._target})

    def check_settings(self, programs: Mapping[str, ExportedProgram]) -> None:
        """Raise OptionError if a name in ``int32_inputs`` is no int64 input."""
        if not self._within:
            return
        inputs: list[tuple[Node, str]] = []
        for program in programs.values():
            inputs += _inputs_with_names(program)
        dtypes: dict[str, torch.dtype] = {}
        for node, name in inputs:
            val = node.meta.get("val")
            if isinstance(val, torch.Tensor):
                dtypes[node.name] = val.dtype
                dtypes[name] = val.dtype
        int64 = {name for name, dtype in dtypes.items() if dtype is torch.int64}
        for name in self._within:
            if name not in int64:
                text = (
                    f"int32_inputs names {name!r}, which is no int64 input of the"
                    " program"
                )
                if name in dtypes:
                    text += f", but {str(dtypes[name]).removeprefix('torch.')}"
                listed = dict.fromkeys(
                    input_name for node, input_name in inputs if node.name in int64
                )
                raise OptionError(
                    "option-invalid",
                    text,
                    hint=f"int64 inputs are {', '.join(listed) or 'none'}",
                )

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Partition the program and record how int64 values cross the borders.

        They are cast at the border if the target has no int64. A buffer becomes a
        variable if one partition alone reads and writes it and the target has
        variables.
        """
        result = super().partition(exported_program)
        _tag_variables(exported_program, self.spec["spec"])
        if self.spec["spec"].has_int64:
            return result
        result.boundary_types = {
            node.name: getattr(torch, node.meta.get(BORDER_DTYPE, "int32"))
            for node in exported_program.graph.nodes
            if _is_int64(node.meta.get("val"))
        }
        return result


def _inputs_with_names(program: ExportedProgram) -> list[tuple[Node, str]]:
    """Return the inputs of ``program``, each with the caller's name for it."""
    return list(zip(user_inputs(program), input_names(program), strict=True))


def _parse_promise(entry: str) -> tuple[str, Range]:
    """Read an entry of ``int32_inputs`` as a name and a range.

    Raises OptionError for malformed entries.
    """
    match = _PROMISE.fullmatch(entry)
    if match is None:
        text = (
            f"int32_inputs {entry!r} must be the name of an input, or have the form"
            " name=0..1"
        )
        raise OptionError("option-invalid", text)
    range = INT32 if match[2] is None else (int(match[2]), int(match[3]))
    if range[0] > range[1] or not inside(range, INT32):
        raise OptionError(
            "option-invalid",
            f"int32_inputs {entry!r}: {range[0]} to {range[1]} is not a range of int32",
        )
    return match[1], range


def _tag_variables(program: ExportedProgram, spec: TosaSpec) -> None:
    """Tag the mutated buffers that TOSA can keep as variables.

    Other buffers are inputs and outputs of delegates.
    """
    tag_mutated_buffer(program)
    for buffer in written_values(program):
        if not _is_variable(buffer.meta["val"], spec):
            buffer.meta.pop("delegation_tag", None)


def _is_variable(val: Any, spec: TosaSpec) -> bool:
    """Return whether the target has variables of this type.

    Variables are an extension and do not exist for every element type.
    """
    try:
        initial = Fact(type_of(val), True, None).value()
    except Unsupported:
        return False
    return spec.why_not(VARIABLE((initial,), variable="")) is None


def _has_floats(node: Node) -> bool:
    """Return whether a call returns floats."""
    results = pytree.tree_leaves(node.meta.get("val"))
    return any(
        isinstance(result, torch.Tensor) and result.dtype.is_floating_point
        for result in results
    )


def _is_int64(val: Any) -> bool:
    """Return whether ``val`` is a tensor of int64."""
    return isinstance(val, torch.Tensor) and val.dtype is torch.int64


def why_not_dynamic(node: Node) -> str | None:
    """Refuse dynamic sizes on targets without them.

    This is a check, not a rule, because the parts of a decomposed call have the same
    sizes.
    """
    for operand in (*node.all_input_nodes, node):
        val = operand.meta.get("val")
        if isinstance(val, torch.Tensor) and is_dynamic_tensor(val):
            if operand is node:
                return dynamic(val, "its result", None)
            return dynamic(val, f"the input {operand.name}", operand)
    return None
