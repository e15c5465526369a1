"""Reasons of refusals with a hint for the user.

All hints are worded in this module. Each function returns a ``Reason``: its text, the
hint, and a ``cause``, a key by which the report groups refusals that one change would
remove. ``unless`` is this change: another dtype, a range, or static sizes. ``of`` is
the operand because of which the call is refused. ``instead`` is a reason with another
change: the report tries both, and gives the hint with which more operators are taken.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from delegraph.partitioner import Reason
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from ...spec import TosaSpec
from ...spec.target import ways_of

_SMALL = (1 << 15) - 1
"""End of a range of inputs for which most computed integers fit into 32 bits."""
NO_RULE = "no TOSA lowering for this operator"
_MEANT = "TOSA wants every shape beforehand"
_QUANTIZE = (
    "quantize the model (delegraph.quantize, or --quantize FILE): the target computes"
    " with integers alone"
)
_CHOOSES = "quantized_decomposed::choose_qparams"
"""Prefix of operators that compute a scale from data at run time."""
_INSTEAD: dict[torch.dtype, tuple[str, torch.dtype]] = {
    torch.float64: (".float()", torch.float32),
    torch.uint8: (".int()", torch.int32),
    torch.uint16: (".int()", torch.int32),
}
"""Element type that TOSA lacks -> a cast to a type that it has, and this type."""


def dynamic(val: torch.Tensor, what: str, of: Node | None = None) -> Reason:
    """Return the reason to refuse ``val``, named ``what``, for its dynamic sizes.

    ``of`` is its node. Sizes that depend on data (as of nonzero) have another cause and
    hint, because exporting with static sizes does not help there.
    """
    if any(free_unbacked_symbols(size) for size in val.shape):
        return data_dependent(
            f"{what} has a shape that depends on the data, {list(val.shape)}; {_MEANT}",
            of,
        )
    return needs_sizes(
        f"{what} has the dynamic shape {list(val.shape)}; TOSA 1.0 needs every size at"
        " compile time"
    )


def needs_sizes(text: str, wider: str = "TOSA-1.1+FP+INT+shape") -> Reason:
    """Return the reason for a call that needs a target with EXT-SHAPE.

    ``wider`` is the name of a target with this extension: the hint advises to lower for
    it.
    """
    hint = (
        f"lower for spec={wider}, which computes with sizes, or export with static"
        " sizes (without these dynamic_shapes), once for each size that you need"
        " (delegraph.lower_buckets)"
    )
    return Reason(text, hint=hint, cause="dynamic", unless="static")


def data_dependent(
    text: str = f"the shape of its result depends on the data, and {_MEANT}",
    of: Any = None,
) -> Reason:
    """Return the reason for a tensor with a data-dependent number of elements.

    ``of`` is its node.
    """
    hint = (
        "keep the shape: torch.where(mask, x, 0) or the best by torch.topk instead of"
        " x[mask] and nonzero; or do it before or after the model"
    )
    return Reason(text, hint=hint, cause="data-dependent", of=of)


def int64_value(node: Node, why: str) -> Reason:
    """Return the reason to refuse an int64 input that may not fit into int32.

    ``why`` is the range of its integers, as a text.
    """
    name = node.name
    text = f"the input {name}: {why}"

    def reason(hint: str, unless: Any, instead: Reason | None = None) -> Reason:
        """Return the reason with a hint; ``instead`` has another one."""
        return Reason(
            text, hint=hint, cause="int64", of=node, unless=unless, instead=instead
        )

    if node.op != "placeholder":
        hint = (
            "if its values fit into 32 bits, write .int() after the call that makes it"
        )
        return reason(hint, torch.int32)

    def declare_range(case: str, low: int, high: int) -> str:
        """Return the hint to declare a range of the input in ``case``."""
        promise = f'options={{"tosa": {{"int32_inputs": ["{name}={low}..{high}"]}}}}'
        return f"{case}, declare that: {promise}, with its range"

    # each reason has the one before it as its alternative
    as_int32 = reason(f"let {name} be int32 from the start", torch.int32)
    mask = declare_range("if it is a mask", 0, 1)
    as_mask = reason(mask, (0, 1), as_int32)
    small = declare_range("if its values lie in a small range", 0, _SMALL)
    as_small = reason(small, (0, _SMALL), as_mask)
    hint = (
        "if its values fit into 32 bits, declare that,"
        f' options={{"tosa": {{"int32_inputs": ["{name}"]}}}}'
        f' ("{name}=0..1" for a mask that is computed with), or let {name} be int32 from'
        " the start; a mask can be bool"
    )
    return reason(hint, (-(1 << 31), (1 << 31) - 1), as_small)


def _give_other_dtype(input: str, other: torch.dtype, cast: str) -> str:
    """Return a hint part: give the input or buffer ``input`` another dtype.

    ``cast`` is a call such as ``.int()``. Written in the model, it would not help: no
    delegate takes the cast's operand, so the host computes the cast.
    """
    name = str(other).removeprefix("torch.")
    return (
        f"let {input} be {name} from the start ({input}{cast} in the model stays on the"
        " host)"
    )


def cast_of_bytes(dtype: torch.dtype | None, input: str | None) -> Reason:
    """Return the reason for a cast of uint8 to another type than float32.

    ``input`` is the name of the input that is cast; None if the operand is no input.
    """
    cast, other = _INSTEAD[torch.uint8]
    hint = "as float32 it is taken"
    if input is not None:
        hint = _give_other_dtype(input, other, cast)
    text = f"uint8 is not converted to {dtype}, only to float32"
    return Reason(text, hint=hint, cause="uint8")


def int64_result(text: str) -> Reason:
    """Return the reason for a computed int64 that may not fit into int32."""
    how = ".int() on its operands, or dtype=torch.int32 where it takes that"
    return Reason(
        text,
        hint=f"if its values fit into 32 bits, compute it in int32: {how}",
        cause="int64",
    )


def int64_carried(text: str) -> Reason:
    """Return the reason for an int64 that a loop carries without a bound."""
    hint = (
        "if its values fit into 32 bits, start from int32 (dtype=torch.int32), or write"
        " while_loop with `i < n`"
    )
    return Reason(text, hint=hint, cause="int64")


def no_dtype(dtype: torch.dtype, what: str = "", of: Node | None = None) -> Reason:
    """Return the reason for a tensor of a dtype that TOSA lacks.

    ``what`` names the tensor ("" for no name). ``of`` is its node if it is an operand,
    None for a result or a constant.
    """
    # a scale that is computed at run time is float64: the cause is dynamic
    # quantization, not the type
    if of is not None and _is_chosen_scale(of):
        return scale_at_run_time()
    name = str(dtype).removeprefix("torch.")
    cast, other = _INSTEAD.get(dtype, ("", None))
    text = f"TOSA has no {dtype}"
    if what:
        text = f"{what}: {text}"
    hint = ""
    if dtype.is_complex:
        hint = (
            "compute real and imaginary parts apart, as torch.view_as_real gives them"
        )
    elif other is not None and of is None:
        hint = (
            f"let it be {other}: without casts to {dtype}, and without buffers or"
            " constants of it"
        )
    elif other is not None and of is not None:
        hint = f"write {cast} after the call that makes it"
        if of.op == "placeholder":
            hint = _give_other_dtype(of.name, other, cast)
    return Reason(text, hint=hint, cause=name, of=of, unless=other)


def no_operand(dtype: torch.dtype) -> Reason:
    """Return the reason for a uint8 or complex operand without a rule."""
    reason = no_dtype(dtype, "its operand")
    if dtype is not torch.uint8:
        return reason
    hint = (
        "write .float() behind it, which a delegate computes, or let it be int32 before"
        " it comes into the model"
    )
    return Reason(reason, hint=hint, cause=reason.cause, unless=torch.int32)


def within(what: str, why: str) -> str:
    """Add ``what``, a branch or composite, to the reason of a call inside it.

    If ``why`` has a hint, the result has the same one.
    """
    if not isinstance(why, Reason):
        return f"{what}: {why}"
    return Reason(
        f"{what}: {why}",
        hint=why.hint,
        cause=why.cause,
        unless=why.unless,
        instead=why.instead,
    )


def number_crosses(text: str) -> Reason:
    """Return the reason for a number that enters or leaves a branch or loop."""
    return Reason(
        text, hint="let it be a tensor: torch.full((), number) in place of the number"
    )


def number_at_run_time(text: str) -> Reason:
    """Return the reason for a run-time number that TOSA needs as a tensor."""
    hint = (
        "compute it with tensors: torch.full((), x.shape[0]) in place of the size, and"
        " torch.log or the like of that"
    )
    return Reason(
        f"{text}; TOSA takes and returns tensors",
        hint=hint,
        cause="number",
        unless="static",
    )


def undecided(text: str) -> Reason:
    """Return the reason for a call that must know a size at compile time."""
    hint = (
        "export with static sizes (without these dynamic_shapes), once for each that"
        " you need (delegraph.lower_buckets)"
    )
    return Reason(text, hint=hint, cause="dynamic", unless="static")


def by_size(text: str, instead: str) -> Reason:
    """Return the reason for a call that needs other operators for each size.

    ``instead`` is the hint: a call that becomes the same operators for every size.
    """
    return Reason(
        text,
        hint=f"{instead}, or export with static sizes",
        cause="dynamic",
        unless="static",
    )


def unknown_size(text: str) -> Reason:
    """Return the reason for a partition with a size that no input has."""
    hint = (
        "delegate the calls before it as well, or use there an input of the model that"
        " has this size, such as a mask"
    )
    return Reason(text, hint=hint, cause="dynamic", unless="static")


def too_large(text: str) -> Reason:
    """Return the reason for a call that would store a large constant."""
    return Reason(
        text, hint="make it once, in the module's __init__, and register it as a buffer"
    )


def too_many_comparisons(text: str) -> Reason:
    """Return the reason for sorting or searching too many elements.

    TOSA compares each element with each other.
    """
    hint = (
        "take the best alone, x.topk(k) of k up to 64, found one after the other; sort"
        " fewer elements, or sort before or after the model"
    )
    return Reason(text, hint=hint, cause="comparisons")


def other_target(spec: TosaSpec, text: str, ways: list[frozenset[str]]) -> Reason | str:
    """Return the reason of a refusal by the target, with a hint to another.

    ``ways`` are sets of names of profiles and extensions; a target that has all names
    of one set takes the call. The hint recommends the target that adds the fewest names
    to ``spec``. There is no hint if no target helps: ``ways`` is empty, or ``spec`` has
    all names of a set and still refuses the call.
    """
    if not ways or any(names <= spec.names for names in ways):
        return text
    # a target for integers, and a model of floats
    if all("PRO-FP" in names for names in ways):
        return Reason(text, hint=_QUANTIZE, cause="floats for integers")

    def cost(names: frozenset[str]) -> tuple[int, list[str]]:
        """Return how many names are added; equal numbers are sorted by name."""
        return len(names - spec.names), sorted(names)

    wider = spec.with_names(min(ways, key=cost))
    hint = f"if your device has it, lower for spec={wider}"
    return Reason(text, hint=hint, cause=f"target {ways_of(ways, spec.version)}")


def scale_at_run_time() -> Reason:
    """Return the reason to refuse dynamic quantization."""
    hint = (
        "quantize with scales that calibration finds (delegraph.quantize), or leave"
        " these activations in floats; weights alone may be quantized"
    )
    return Reason(
        "its scale is chosen at run time; TOSA's are constants",
        hint=hint,
        cause="dynamic quantization",
    )


def _is_chosen_scale(node: Node) -> bool:
    """Return whether ``node`` is a result of an operator that computes a scale."""
    source = node.args[0] if node.target is operator.getitem else None
    return isinstance(source, Node) and _chooses_scale(source.target)


def _chooses_scale(target: Any) -> bool:
    """Return whether the operator ``target`` computes a scale from the data."""
    return _schema_name(target).startswith(_CHOOSES)


def _schema_name(target: Any) -> str:
    """Return the name of an operator with its namespace; "" for other targets."""
    if not isinstance(target, torch._ops.OpOverload):
        return ""
    return target._schema.name


def neither(in_integers: str, in_floats: str) -> str:
    """Return the reason for a quantized call refused in integers and floats.

    The arguments are the reasons of both refusals; the result has the hint of the
    first.
    """
    text = f"in integers: {in_integers}; in floats: {in_floats}"
    if not isinstance(in_integers, Reason):
        return text
    return Reason(text, hint=in_integers.hint, cause=in_integers.cause)


def at_border(spec: TosaSpec, node: Node, why: str) -> str:
    """Add a hint to the refusal ``why`` of ``node`` on a target without floats.

    There, the host quantizes inputs and dequantizes results. If ``node`` does that, the
    hint is a transform with which the program takes and returns integers. If ``node``
    computes floats, the hint is to quantize the model.
    """
    if "FP" in spec.profiles:
        return why
    name = _schema_name(node.target)
    is_at_border = False
    if name == "quantized_decomposed::quantize_per_tensor":
        is_at_border = node.all_input_nodes[0].op == "placeholder"
    elif name == "quantized_decomposed::dequantize_per_tensor":
        is_at_border = all(user.op == "output" for user in node.users)
    if is_at_border:
        hint = (
            "a program that takes and returns integers:"
            " transforms=[delegraph_tosa.borders.integer_borders]"
        )
        return Reason(why, hint=hint, cause="quantized border")
    if "needs PRO-FP" in why and not isinstance(why, Reason):
        return Reason(why, hint=_QUANTIZE, cause="floats for integers")
    return why


def no_rule(target: Any) -> Reason:
    """Return the reason for an operator without a rule.

    Its tags show why TOSA cannot have one.
    """
    if _chooses_scale(target):
        return scale_at_run_time()
    tags = getattr(target, "tags", ())
    if torch.Tag.nondeterministic_seeded in tags:
        return Reason(
            "it draws random numbers, which TOSA cannot",
            hint="pass the random numbers to the model as an input",
        )
    if torch.Tag.dynamic_output_shape in tags:
        return data_dependent()
    if torch.Tag.data_dependent_output in tags:
        hint = (
            "keep it a tensor: torch.where or torch.cond instead of Python's if,"
            " tensors instead of numbers"
        )
        return Reason(
            "it reads a Python number from the elements of a tensor", hint=hint
        )
    hint = (
        "write it with operators that TOSA takes, or add a backend that takes it;"
        " `delegraph coverage tosa` of delegraph-devkit lists TOSA's operators"
    )
    return Reason(NO_RULE, hint=hint)


def no_rule_for_integers(spec: TosaSpec, why: str) -> str:
    """Add a hint to quantize if ``spec`` has integers only and the call has floats.

    Such an operator is decomposed, and its parts are refused because they compute with
    floats.
    """
    if "FP" in spec.profiles or NO_RULE not in why:
        return why
    return Reason(
        "it computes with floats; the target has integers alone",
        hint=_QUANTIZE,
        cause="floats for integers",
    )
