"""What the user can do about a refusal. Every reason that has a hint is worded here, so that they sound alike."""

from __future__ import annotations

import operator
from typing import Any

import torch
from delegraph.partitioner import Reason
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from ...spec import TosaSpec

_MEANT = "TOSA wants every shape beforehand"
_CHOOSES = "quantized_decomposed::choose_qparams"
"""How operators are called that find the scale of a value at run time."""
_INSTEAD: dict[torch.dtype, tuple[str, torch.dtype]] = {
    torch.float64: (".float()", torch.float32),
    torch.uint8: (".int()", torch.int32),
    torch.uint16: (".int()", torch.int32),
}
"""Element types that TOSA lacks -> how to write another that it has."""


def dynamic(val: torch.Tensor, what: str, of: Node | None = None) -> Reason:
    """``what`` has sizes that are known at run time only; those that depend on the data are a cause of their own."""
    if any(free_unbacked_symbols(size) for size in val.shape):
        return data_dependent(f"{what} has a shape that depends on the data, {list(val.shape)}; {_MEANT}", of)
    return needs_sizes(f"{what} has the dynamic shape {list(val.shape)}; TOSA 1.0 wants every size at compile time")


def needs_sizes(text: str, wider: str = "TOSA-1.1+FP+INT+shape") -> Reason:
    """What only a target with sizes of the run time takes, such as ``wider``."""
    hint = (
        f"lower for spec={wider}, which computes with sizes, or export with static sizes (without these"
        " dynamic_shapes), once for each size that you need (delegraph.lower_buckets)"
    )
    return Reason(text, hint=hint, cause="dynamic", unless="static")


def data_dependent(text: str = f"the shape of its result depends on the data, and {_MEANT}", of: Any = None) -> Reason:
    """The result has as many elements as the data say."""
    hint = (
        "keep the shape: torch.where(mask, x, 0) or the best by torch.topk instead of x[mask] and nonzero; or do it"
        " before or after the model"
    )
    return Reason(text, hint=hint, cause="data-dependent", of=of)


def int64_value(node: Node, why: str) -> Reason:
    """An int64 that is made elsewhere and that may not fit into 32 bits."""
    cast = "write .int() behind what makes it"
    if node.op == "placeholder":
        cast = f"{_from_the_start(node.name, torch.int32, '.int()')}; a mask can be bool"
    text, hint = f"the input {node.name}: {why}", f"if its values fit into 32 bits, {cast}"
    return Reason(text, hint=hint, cause="int64", of=node, unless=torch.int32)


def _from_the_start(given: str, other: torch.dtype, cast: str) -> str:
    """Of an input or a buffer: a cast inside of the model is itself an operator on what TOSA does not take."""
    name = str(other).removeprefix("torch.")
    return f"let {given} be {name} from the start ({given}{cast} in the model stays on the host)"


def cast_of_bytes(dtype: torch.dtype | None, given: str | None) -> Reason:
    """uint8 that becomes another integer; ``given`` is the input, if it is one."""
    cast, other = _INSTEAD[torch.uint8]
    hint = _from_the_start(given, other, cast) if given else "as float32 it is taken"
    return Reason(f"uint8 is not converted to {dtype}, only to float32", hint=hint, cause="uint8")


def int64_result(text: str) -> Reason:
    """An int64 that is computed here and that may not fit into 32 bits."""
    how = ".int() on its operands, or dtype=torch.int32 where it takes that"
    return Reason(text, hint=f"if its values fit into 32 bits, compute it in int32: {how}", cause="int64")


def int64_carried(text: str) -> Reason:
    """An int64 that goes from one step to the next."""
    hint = "if its values fit into 32 bits, start from int32 (dtype=torch.int32), or write while_loop with `i < n`"
    return Reason(text, hint=hint, cause="int64")


def no_dtype(dtype: torch.dtype, what: str = "", of: Node | None = None) -> Reason:
    """TOSA has no such elements."""
    if of is not None and _is_chosen_scale(of):
        return scale_at_run_time()
    name = str(dtype).removeprefix("torch.")
    cast, other = _INSTEAD.get(dtype, ("", None))
    text, hint = f"TOSA has no {dtype}", ""
    if other is not None and of is None:
        hint = f"let it be {other}: without casts to {dtype}, and without buffers or constants of it"
    elif other is not None and of is not None:
        given = of.op == "placeholder"
        hint = _from_the_start(of.name, other, cast) if given else f"write {cast} behind what makes it"
    if dtype.is_complex:
        hint = "compute real and imaginary parts apart, as torch.view_as_real gives them"
    return Reason(f"{what}: {text}" if what else text, hint=hint, cause=name, of=of, unless=other)


def no_operand(dtype: torch.dtype) -> Reason:
    """An operand that a delegate moves and converts, but does not compute with."""
    reason = no_dtype(dtype, "its operand")
    if dtype is not torch.uint8:
        return reason
    hint = "write .float() behind it, which a delegate computes, or let it be int32 before it comes into the model"
    return Reason(reason, hint=hint, cause=reason.cause, unless=torch.int32)


def within(what: str, why: str) -> str:
    """The reason of a call inside of ``what``, with what the user can do about it."""
    if not isinstance(why, Reason):
        return f"{what}: {why}"
    return Reason(f"{what}: {why}", hint=why.hint, cause=why.cause, unless=why.unless)


def number_crosses(text: str) -> Reason:
    """A number of Python, or a size, where graphs of control flow take and return tensors."""
    return Reason(text, hint="let it be a tensor: torch.full((), number) in place of the number")


def number_at_run_time(text: str) -> Reason:
    """A number of Python that is computed of sizes, in a way that TOSA has no operators for, or elsewhere."""
    hint = "compute it with tensors: torch.full((), x.shape[0]) in place of the size, and torch.log or the like of that"
    return Reason(f"{text}; TOSA takes and returns tensors", hint=hint, cause="number", unless="static")


def undecided(text: str) -> Reason:
    """A rule asks for a size that is known at run time only."""
    hint = (
        "export with static sizes (without these dynamic_shapes), once for each that you need (delegraph.lower_buckets)"
    )
    return Reason(text, hint=hint, cause="dynamic", unless="static")


def by_size(text: str, instead: str) -> Reason:
    """A call whose operators differ from size to size; ``instead`` is one whose operators do not."""
    return Reason(text, hint=f"{instead}, or export with static sizes", cause="dynamic", unless="static")


def untold_size(text: str) -> Reason:
    """A part of the program computes with a size that none of its operands has."""
    hint = "delegate what is before it as well, or use there an input of the model that has this size, such as a mask"
    return Reason(text, hint=hint, cause="dynamic", unless="static")


def too_large(text: str) -> Reason:
    """A constant that a rule would have to spell out."""
    return Reason(text, hint="make it once, in the module's __init__, and register it as a buffer")


def other_target(spec: TosaSpec, text: str, ways: list[frozenset[str]]) -> Reason | str:
    """What another target takes: ``ways`` are the profiles and extensions, any of which would do."""
    if not ways or any(names <= spec.names for names in ways):
        return text
    wider = spec.with_names(min(ways, key=lambda names: (len(names - spec.names), sorted(names))))
    needs = " or ".join("+".join(sorted(names)) for names in ways)
    return Reason(text, hint=f"if your device has it, lower for spec={wider}", cause=f"target {needs}")


def scale_at_run_time() -> Reason:
    """Dynamic quantization."""
    hint = (
        "quantize with scales that calibration finds (delegraph.quantize), or leave these activations in floats;"
        " weights alone may be quantized"
    )
    return Reason("its scale is chosen at run time; TOSA's are constants", hint=hint, cause="dynamic quantization")


def _is_chosen_scale(node: Node) -> bool:
    source = node.args[0] if node.target is operator.getitem else None
    return isinstance(source, Node) and _chooses_scale(source.target)


def _chooses_scale(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and target._schema.name.startswith(_CHOOSES)


def neither(in_integers: str, in_floats: str) -> str:
    """A call on quantized values that neither way takes; the hint is that of the integer rule."""
    text = f"in integers: {in_integers}; in floats: {in_floats}"
    if not isinstance(in_integers, Reason):
        return text
    return Reason(text, hint=in_integers.hint, cause=in_integers.cause)


def at_border(spec: TosaSpec, node: Node, why: str) -> str:
    """``why``, with a hint for the quantize of an input or dequantize of a result, which INT leaves to the host."""
    name = node.target._schema.name if isinstance(node.target, torch._ops.OpOverload) else ""
    arrives = name == "quantized_decomposed::quantize_per_tensor" and node.all_input_nodes[0].op == "placeholder"
    leaves = name == "quantized_decomposed::dequantize_per_tensor" and all(u.op == "output" for u in node.users)
    if "FP" in spec.profiles or not (arrives or leaves):
        return why
    hint = "a program that takes and returns integers: transforms=[delegraph_tosa.borders.integer_borders]"
    return Reason(why, hint=hint, cause="quantized border")


def no_rule(target: Any) -> Reason:
    """There is no lowering for the operator."""
    if _chooses_scale(target):
        return scale_at_run_time()
    tags = getattr(target, "tags", ())
    if torch.Tag.nondeterministic_seeded in tags:
        return Reason(
            "it draws random numbers, which TOSA cannot", hint="pass the random numbers to the model as an input"
        )
    if torch.Tag.dynamic_output_shape in tags:
        return data_dependent()
    if torch.Tag.data_dependent_output in tags:
        hint = "keep it a tensor: torch.where or torch.cond instead of Python's if, tensors instead of numbers"
        return Reason("it makes a number of Python of the data", hint=hint)
    hint = "write it with operators that docs/op-support.md lists, or add a backend that takes it"
    return Reason("no TOSA lowering for this operator", hint=hint)
