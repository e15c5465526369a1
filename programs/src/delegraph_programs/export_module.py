"""Exports modules; its errors name the user's line and repeat torch's advice."""

from __future__ import annotations

import inspect
import itertools
import os
import re
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule

from .errors import InputError
from .separate_inputs import distinct_inputs
from .source_line import Source, innermost, source_of
from .tracing_lock import TRACING, unlogged
from .training_mode import reads_mode

_CHECK_OF_DATA = torch.ops.aten._has_compatible_shallow_copy_type.default
"""The call that torch.export keeps of an assignment ``tensor.data = other``."""
_RNN_WARNING = (
    r"The tensor attributes (\S*\._flat_weights\[\d+\](, )?)+ were assigned during"
    r" export"
)
"""torch's warning about the attributes of its own recurrent layers."""
_TORCHSCRIPT_HINT = (
    "lower the Python module that was scripted, or trace it: torch.jit.trace removes"
    " branches and loops"
)
_EXPLANATION = re.compile(r"^ *Explanation: (.*)", re.MULTILINE)
_OWN_FOLDER = str(Path(__file__).parent)


def export_module(
    module: torch.nn.Module,
    inputs: Any = None,
    kwargs: Any = None,
    dynamic_shapes: Any = None,
    libraries: Sequence[str] = (),
) -> ExportedProgram:
    """Export a module in eval mode.

    ``inputs``: a tuple of example inputs, or a single tensor. ``kwargs``: example
    keyword arguments, in any order. ``libraries``: folders of the caller's own code.

    If torch cannot export the module, this raises InputError. The error has torch's
    reason in one line, its advice, and the innermost line of the user's program that is
    not in ``libraries``. Raises InputError also for a module in training mode, and for
    inputs of other types. A module of TorchScript is converted first.
    """
    expect_no_training(module)
    # the name of its class; only modules of TorchScript have an ``original_name``
    kind = getattr(module, "original_name", _name_of(module))
    is_torchscript = isinstance(module, torch.jit.ScriptModule)
    takes_inputs = is_torchscript or inspect.signature(module.forward).parameters
    if inputs is None and not kwargs and takes_inputs:
        hint = (
            "delegraph.lower(module, (x, ...)): a tuple of tensors of the right shapes"
            " and dtypes"
        )
        raise InputError(
            "input-invalid", f"{kind} is a module: example_inputs are needed", hint=hint
        )
    args = _arguments_of(inputs)
    if is_torchscript and kwargs:
        raise InputError(
            "input-invalid",
            f"TorchScript takes inputs by position, not by name: {', '.join(kwargs)}",
            hint="pass all example inputs in example_inputs",
        )
    try:
        with TRACING, unlogged(("torch.export._trace",)), warnings.catch_warnings():
            warnings.filterwarnings("ignore", _RNN_WARNING, UserWarning)
            kwargs = _in_order_of_forward(module, kwargs)
            if isinstance(
                dynamic_shapes,
                torch.export.ShapesCollection | torch.export.AdditionalInputs,
            ):
                # before tensors are copied, because these find tensors by identity
                dynamic_shapes = dynamic_shapes.dynamic_shapes(module, args, kwargs)  # type: ignore[no-untyped-call]
            args, kwargs = distinct_inputs((args, kwargs), module)
            if isinstance(module, torch.jit.ScriptModule):
                # imported late: torch's converter imports a lot
                from .convert_torchscript import module_of_torchscript

                module = module_of_torchscript(module, args)
                # torch's warning about a branch on a size, which is constant here
                warnings.filterwarnings("ignore", "Pred is a Python constant")
            return torch.export.export(
                module, args, kwargs, dynamic_shapes=dynamic_shapes
            )
    except Exception as e:  # torch and the code of the model may raise anything
        reason, advice = _reason_and_hint(str(e))
        if is_torchscript:
            advice = advice or _TORCHSCRIPT_HINT
        text = f"torch.export could not export {kind}: {type(e).__name__}: {reason}"
        raise InputError(
            "export-failed", text, source=_user_line(e, libraries), hint=advice
        ) from e


def expect_no_data_assigned(program: ExportedProgram) -> None:
    """Raise InputError if the model assigns ``tensor.data = other``.

    torch.export drops the assignment, and keeps only a check of the types.
    """
    modules = (m for m in program.graph_module.modules() if isinstance(m, GraphModule))
    nodes = itertools.chain.from_iterable(module.graph.nodes for module in modules)
    for node in nodes:
        if node.target is not _CHECK_OF_DATA:
            continue
        text = (
            f"{node.args[0]}.data is assigned; torch.export drops the assignment, and"
            " the program keeps the old value"
        )
        hint = (
            "write into the tensor with x.copy_(other), or use the other tensor with"
            " x = other"
        )
        raise InputError("input-invalid", text, node, source_of(node), hint)


def expect_no_training(module: torch.nn.Module) -> None:
    """Raise InputError if a part of ``module`` computes as in training."""
    # The module of an ExportedProgram has its own ``eval``, which raises an error.
    is_exported = "eval" in vars(module)
    for name, part in module.named_modules():
        if part.training and (is_exported or reads_mode(part)):
            hint = "call .eval() on the model first"
            if is_exported:
                hint = "give the ExportedProgram that it comes from"
            text = f"module {name or _name_of(module)} is in training mode"
            raise InputError("training-mode", text, hint=hint)


def _name_of(module: torch.nn.Module) -> str:
    """Return the name that torch prints for a module: by default, that of its class."""
    return str(module._get_name())  # type: ignore[no-untyped-call]


def _reason_and_hint(message: str) -> tuple[str, str | None]:
    """Return the reason in a message of torch.export as one line, and a hint or None.

    The message has many lines. The reason is its first line, with the explanation of
    Dynamo if there is one. The hint is torch's suggestion, or our own for frequent
    errors.
    """
    first, _, rest = message.strip().partition("\n")
    # a list of signatures follows, which is left out
    first = first.removesuffix(", but expected one of:")
    if first.endswith(":") and rest:
        first = f"{first} {rest.splitlines()[0]}"
    explanation = _EXPLANATION.search(rest)
    reason = f"{first}: {explanation[1]}" if explanation else first
    if "not a known type" in first:  # a result or an argument of the user's own class
        hint = (
            "for a dataclass: torch.export.register_dataclass(TheClass), once, before"
        )
        return reason.partition(" See https")[0], hint
    fixes = rest.partition("Suggested fixes:\n")[2].partition("\n\n")[0].splitlines()
    if fixes:
        return reason, f"torch suggests {'; '.join(line.strip() for line in fixes)}"
    if "on data-dependent expression" in first:
        hint = (
            "use torch.cond or torch.where for a branch on values, and torch._check for"
            " facts that always hold"
        )
        return reason, hint
    return reason, None


def _arguments_of(inputs: Any) -> tuple[Any, ...]:
    """Return ``inputs`` (a tuple, a list, a tensor or None) as a tuple.

    Raises InputError for another type.
    """
    if isinstance(inputs, torch.Tensor):
        return (inputs,)
    if not isinstance(inputs, tuple | list | None):
        raise InputError(
            "input-invalid",
            f"example_inputs must be a tuple of arguments; got {type(inputs).__name__}",
        )
    return tuple(inputs or ())


def _in_order_of_forward(module: torch.nn.Module, kwargs: Any) -> Any:
    """Return the keyword arguments in the order of the parameters of ``forward``.

    This becomes the order of the program's inputs. Arguments that ``forward`` takes by
    ``**`` come last, in the order of the caller.
    """
    if not kwargs or not isinstance(kwargs, Mapping):
        return kwargs
    parameters = inspect.signature(module.forward).parameters
    in_order = [name for name in parameters if name in kwargs]
    # a dict keeps the first occurrence of each name
    return {name: kwargs[name] for name in dict.fromkeys([*in_order, *kwargs])}


def _user_line(error: BaseException, libraries: Sequence[str]) -> Source | None:
    """Return the innermost line of the user's program that torch was tracing, or None.

    Lines in ``libraries``, which are folders, are not the user's.
    """
    # Dynamo keeps the frames of the user's code in ``real_stack``.
    frames = [
        *traceback.extract_tb(error.__traceback__),
        *getattr(error, "real_stack", ()),
    ]
    folders = tuple(f"{folder}{os.sep}" for folder in (_OWN_FOLDER, *libraries))
    sources = [
        Source(f.filename, f.lineno or 0, f.name, (f.line or "").strip())
        for f in frames
        # torch generates the code in "<string>"
        if f.filename != "<string>" and not f.filename.startswith(folders)
    ]
    return innermost(sources)
