"""The support check: accepts calls that Apple's converter and compiler can compile."""

from __future__ import annotations

import operator
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from delegraph.partitioner import (
    CapabilityPartitioner,
    PartitionResult,
    Reason,
    Support,
)
from delegraph_engines import (
    TrialCompilation,
    mark_indices,
    tag_mutated_buffer,
    why_subgraph,
)
from delegraph_programs import (
    bound_arguments,
    is_random,
    placeholders,
    written_values,
)
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

from .border_types import BORDER, MOVES, mark_borders, operator_stem
from .converter import (
    DEQUANTIZE_CHANNELS,
    INDEX_PUT,
    Draft,
    has_rule,
    indexed_shape,
)
from .integer_ranges import Ranges, integer_values, ranges_of
from .model import compile_for_host

TYPES = frozenset(
    {
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int8,
        torch.uint8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.bool,
    }
)
"""Types of tensors that cross the border of a delegate, or lie inside."""
NO_RULE = "coreai-torch has no rule for this operator"
_REDUCTIONS = frozenset(
    "sum mean amax amin max min prod any all argmax argmin cumsum cumprod var std topk"
    " sort linalg_vector_norm _softmax _log_softmax logsumexp count_nonzero".split()
)
_ARITHMETIC = frozenset({"add", "maximum", "minimum", "pow", "clamp", "cumsum"})
_PRODUCTS = frozenset("pow mm bmm addmm baddbmm convolution".split())
"""Operators that are refused for integers: an overflow ends the process."""
_ORDERS = frozenset({"lt", "le", "gt", "ge"})
_CASTS = frozenset({"to", "_to_copy", "type_as"})
_INDEX_AT = {
    "embedding": 1,
    "gather": 2,
    "index_select": 2,
    "index": 1,
    "index_put": 1,
    "scatter": 2,
}
"""Operator -> the position of its argument with indices."""


def compile_alone(program: ExportedProgram) -> None:
    """Convert and compile a program of few calls. Raises Unsupported if that fails."""
    draft = Draft(program)
    with tempfile.TemporaryDirectory() as folder:
        try:
            compile_for_host(draft.program._module._mlir_module, Path(folder))
        except RuntimeError as error:
            text = str(error).strip().replace("\n", " ")
            raise draft.refused(f"Core AI: {text:.300}") from error


TRIALS = TrialCompilation(compile_alone)
"""Trials of converter and compiler, which take some milliseconds for a call."""


class CoreAIPartitioner(CapabilityPartitioner):
    """Gives Core AI the calls that it computes. It has no options."""

    def __init__(self) -> None:
        self._check = _Check()
        super().__init__(_Checked(self._check), "CoreAIBackend")

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Partition the program. Values in int64 cross the borders in int32."""
        mark_indices(exported_program)
        ranges = ranges_of(exported_program)
        borders = mark_borders(exported_program, lambda node: ranges[node].fits())
        result = super().partition(exported_program)
        result.boundary_types = borders
        _tag_states(exported_program)
        return result


class _Check:
    """The part of the support check that compiles nothing.

    ``ranges``: those of the integers of the program that is checked.
    """

    def __init__(self) -> None:
        self.ranges = Ranges()

    def __call__(self, node: Node) -> str | None:
        """Return why a call is refused; None if a trial has to decide."""
        why = why_subgraph(node, "Core AI's plugin")
        if why is not None:
            return why
        if is_random(node):
            return "it draws random numbers; the host does that"
        for value in (*node.all_input_nodes, node):
            why = _why_not_value(value)
            if why is not None:
                return why
            if _is_empty(value):
                # Core AI's compiler ends the process for some of them
                return f"{value.name} has no elements; the host computes such calls"
        if not has_rule(node):
            return NO_RULE
        return (
            self._why_not_32_bits(node)
            or self._why_not_cast(node)
            or self._why_not_zero_points(node)
            or _why_computed_otherwise(node)
        )

    def _why_not_zero_points(self, node: Node) -> str | None:
        """Return a reason if channels have zero points other than 0."""
        if node.target is not DEQUANTIZE_CHANNELS:
            return None
        zero_points: Any = node.args[2]
        if self.ranges[zero_points] == (0, 0):
            return None
        return "the plugin dequantizes channels only if their zero points are 0"

    def _why_not_cast(self, node: Node) -> str | None:
        """Return a reason if integers do not fit the type that they are cast to."""
        if operator_stem(node) not in _CASTS:
            return None
        source: Any = node.args[0]
        types = [*integer_values(source), *integer_values(node)]
        if len(types) < 2 or BORDER in source.meta:
            return None
        found = self.ranges[source]
        info = torch.iinfo(types[1])
        if info.min <= found.low and found.high <= info.max:
            return None
        return (
            f"{source.name} may have elements from {found.low} to {found.high}; Core AI"
            f" limits them to {types[1]}, and eager drops their high bits"
        )

    def _why_not_32_bits(self, node: Node) -> str | None:
        """Return a reason if integers do not fit 32 bits."""
        name = operator_stem(node)
        indices: list[Any] = []
        if name in _INDEX_AT:
            indices = pytree.tree_leaves(node.args[_INDEX_AT[name]])
        for value in (*node.all_input_nodes, node):
            if torch.int64 not in integer_values(value) or value in indices:
                continue
            if not isinstance(value.meta["val"], torch.Tensor):
                continue
            found = self.ranges[value]
            # a value that crosses the border in another type may have any elements,
            # unless this call computes it
            is_computed = value is node and name not in MOVES
            if not found.fits() and (is_computed or BORDER not in value.meta):
                text = (
                    f"{value.name} is int64 and may have elements from {found.low} to"
                    f" {found.high}; Core AI computes integers in 32 bits"
                )
                return Reason(text, cause="int64", of=value, unless=torch.int32)
        for number in _literals(node):
            # torch writes 2**63 - 1 for the end of an axis
            is_end = number == 2**63 - 1 and name.startswith("slice")
            if not -(2**31) <= number < 2**31 and not is_end:
                return f"Core AI computes in 32 bits, which {number} exceeds"
        return None


class _Checked(Support):
    """The whole support check: first ``_Check``, then trials of the accepted calls."""

    def __init__(self, check: _Check) -> None:
        self._check = check
        self._trials = TRIALS.after(check)

    def begin(self, exported_program: ExportedProgram) -> None:
        self._check.ranges = ranges_of(exported_program)
        self._trials.begin(exported_program)

    def why_not(self, node: Node) -> str | None:
        return self._trials.why_not(node)

    def is_constant(self, node: Node) -> bool:
        return self._trials.is_constant(node)

    def partition_why_not(self, nodes: Sequence[Node]) -> Mapping[Node, str]:
        return {}


def _tag_states(program: ExportedProgram) -> None:
    """Tag the buffers that a delegate keeps: those that one partition reads and writes.

    The host keeps others, and those that the converter does not take as states.
    """
    tag_mutated_buffer(program)
    specs = dict(placeholders(program))
    for buffer in written_values(program):
        is_buffer = specs[buffer].kind is InputKind.BUFFER
        if not is_buffer or not _is_state(buffer.meta["val"]):
            buffer.meta.pop("delegation_tag", None)


def _is_state(val: torch.Tensor) -> bool:
    """Return whether Core AI can keep a buffer: its type and its sizes are fixed."""
    is_fixed = all(isinstance(size, int) for size in val.shape)
    return is_fixed and val.dtype in TYPES and val.dtype is not torch.int64


def _why_computed_otherwise(node: Node) -> str | None:
    """Return a reason if the converter computes a call differently."""
    if getattr(node.target, "namespace", "") != "aten":
        return None
    given = bound_arguments(node)
    name = str(node.target).split(".")[1]
    if name in _ARITHMETIC and node.meta["val"].dtype is torch.bool:
        return "Core AI's runtime has no arithmetic of truth values"
    if node.target is INDEX_PUT:
        why = _why_not_index_put(node)
        if why is not None:
            return why
    if name in _ORDERS and all(map(_is_bool, node.args[:2])):
        return "Core AI's compiler does not store all comparisons of truth values"
    if name in _PRODUCTS and _is_integer(node):
        return "Core AI's runtime ends the process if powers or sums overflow"
    if name == "upsample_nearest2d" and not _is_enlarged_evenly(node, given):
        return "Core AI takes other neighbors than PyTorch if sizes do not grow by an integer"
    if name in _REDUCTIONS and _rank(node.args[0]) == 0:
        return "Core AI's compiler ends the process for reductions of a scalar"
    if name.startswith("avg_pool"):
        if given["ceil_mode"]:
            return "coreai-torch ignores ceil_mode of averages"
        if any(given["padding"]) and not given["count_include_pad"]:
            return "coreai-torch ignores count_include_pad=False"
    if name.startswith("max_pool") and _uses_result(node, 1):
        return "coreai-torch does not compute the indices of max pooling"
    return None


def _why_not_index_put(node: Node) -> str | None:
    """Return a reason if the plugin cannot give ``index_put`` a value for each index."""
    indices: Any = node.args[1]
    if any(_is_bool(index) for index in indices):
        return "Core AI's runtime ends the process if a mask has no true element"
    shape = indexed_shape(node)
    if all(isinstance(size, int) for size in shape):
        return None
    # compared as texts: comparisons of symbols would fix their sizes
    values: Any = node.args[2]
    if str(values.meta["val"].shape) != str(shape):
        return "Core AI repeats no values for places whose number varies"
    given = [index.meta["val"] for index in indices if index is not None]
    if len({str(val.shape) for val in given}) > 1 or given[0].dim() != 1:
        return "Core AI repeats no places whose number varies"
    return None


def _rank(value: Any) -> int:
    """Return the number of axes of a tensor; -1 for other arguments."""
    val = value.meta.get("val") if isinstance(value, Node) else None
    return val.dim() if isinstance(val, torch.Tensor) else -1


def _is_bool(value: Any) -> bool:
    """Return whether an operand is a tensor of truth values, or a truth value."""
    if isinstance(value, Node):
        return getattr(value.meta["val"], "dtype", None) is torch.bool
    return isinstance(value, bool)


def _is_integer(node: Node) -> bool:
    """Return whether the result of a call has integers."""
    return next(integer_values(node), None) is not None


def _is_enlarged_evenly(node: Node, given: Mapping[str, Any]) -> bool:
    """Return whether the sizes of an image grow by integer factors."""
    factors = given["scale_factors"]
    if factors is not None:
        return all(float(factor).is_integer() for factor in factors)
    before = given["input"].meta["val"].shape[-2:]
    after = node.meta["val"].shape[-2:]
    return all(
        isinstance(old, int) and isinstance(new, int) and new % old == 0
        for old, new in zip(before, after, strict=True)
    )


def _uses_result(node: Node, position: int) -> bool:
    """Return whether the result of a call at a position is used."""
    return any(
        user.target is operator.getitem and user.args[1] == position
        for user in node.users
    )


def _why_not_value(node: Node) -> str | None:
    """Return a reason if Core AI cannot hold a value of ``node``."""
    for val in pytree.tree_leaves(node.meta.get("val")):
        if isinstance(val, torch.Tensor):
            if val.dtype not in TYPES:
                text = f"{node.name} is {val.dtype}, which Core AI does not compute"
                if val.dtype is torch.float64:
                    return Reason(
                        text, cause=str(val.dtype), of=node, unless=torch.float32
                    )
                return Reason(text, cause=str(val.dtype), of=node)
            if free_unbacked_symbols(val):
                return f"the size of {node.name} depends on values of tensors"
        elif not isinstance(val, (torch.SymInt, int)) or isinstance(val, bool):
            kind = "None" if val is None else f"a {type(val).__name__}"
            return f"{node.name} is {kind}; delegates take tensors and sizes"
    return None


def _is_empty(node: Node) -> bool:
    """Return whether a value is a tensor without elements."""
    val = node.meta.get("val")
    if not isinstance(val, torch.Tensor):
        return False
    return any(isinstance(size, int) and size == 0 for size in val.shape)


def _literals(node: Node) -> list[int]:
    """Return the integers among the arguments of a call, and in lists there."""
    leaves = pytree.tree_leaves((node.args, node.kwargs))
    return [leaf for leaf in leaves if type(leaf) is int]
