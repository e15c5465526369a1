"""Exports modules, with errors that name the user's line and torch's advice."""

from __future__ import annotations

import inspect
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
_OF_TORCHS_RNNS = (
    r"The tensor attributes (\S*\._flat_weights\[\d+\](, )?)+ were assigned during"
    r" export"
)
_INSTEAD_OF_TORCHSCRIPT = (
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
    # the name under which torch prints it: its class, by default
    kind = module._get_name()  # type: ignore[no-untyped-call]  # torch's
    kind = getattr(module, "original_name", kind)  # that of TorchScript
    expect_no_training(module)
    is_torchscript = isinstance(module, torch.jit.ScriptModule)
    if (
        inputs is None
        and not kwargs
        and (is_torchscript or inspect.signature(module.forward).parameters)
    ):
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
            warnings.filterwarnings("ignore", _OF_TORCHS_RNNS, UserWarning)
            kwargs = _in_order_of_forward(module, kwargs)
            if isinstance(
                dynamic_shapes,
                torch.export.ShapesCollection | torch.export.AdditionalInputs,
            ):
                # these find tensors by identity
                dynamic_shapes = dynamic_shapes.dynamic_shapes(module, args, kwargs)  # type: ignore[no-untyped-call]
            args, kwargs = distinct_inputs((args, kwargs), module)
            if isinstance(module, torch.jit.ScriptModule):
                # imported late: torch's converter imports a lot
                from .torchscript import module_of_torchscript

                module = module_of_torchscript(module, args)
                # a branch on a size, which is constant here
                warnings.filterwarnings("ignore", "Pred is a Python constant")
            return torch.export.export(
                module, args, kwargs, dynamic_shapes=dynamic_shapes
            )
    except Exception as e:  # torch and the code of the model may raise anything
        reason, advice = _reason_and_hint(str(e))
        if is_torchscript:
            advice = advice or _INSTEAD_OF_TORCHSCRIPT
        text = f"torch.export could not export {kind}: {type(e).__name__}: {reason}"
        raise InputError(
            "export-failed", text, source=_user_line(e, libraries), hint=advice
        ) from e


def expect_no_data_assigned(program: ExportedProgram) -> None:
    """Raise InputError if the model assigns ``tensor.data = other``.

    torch.export drops the assignment. Only a check of the types shows that there was
    one.
    """
    modules = (m for m in program.graph_module.modules() if isinstance(m, GraphModule))
    assigned = (n for m in modules for n in m.graph.nodes if n.target is _CHECK_OF_DATA)
    for node in assigned:
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
    # the module of an ExportedProgram: torch replaces ``eval`` to forbid it
    is_exported = "eval" in vars(module)
    # the modules that compute differently in training, by name
    in_training = [
        name or module._get_name()  # type: ignore[no-untyped-call]  # torch's
        for name, m in module.named_modules()
        if m.training and (is_exported or reads_mode(m))
    ]
    if in_training:
        text = f"module {in_training[0]} is in training mode"
        hint = (
            "give the ExportedProgram that it comes from"
            if is_exported
            else "call .eval() on the model first"
        )
        raise InputError("training-mode", text, hint=hint)


def _reason_and_hint(message: str) -> tuple[str, str | None]:
    """Return the reason in a message of torch.export as one line, and a hint or None.

    The message has many lines. The reason is its first line, with the explanation if
    there is one. The hint is its advice.
    """
    first, _, rest = message.strip().partition("\n")
    # torch appends a list of signatures
    first = first.removesuffix(", but expected one of:")
    if first.endswith(":") and rest:  # then the next line belongs to it
        first = f"{first} {rest.splitlines()[0]}"
    # Dynamo, which traces branches and loops, gives one
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
        return (
            reason,
            (
                "use torch.cond or torch.where for a branch on values, and"
                " torch._check for facts that always hold"
            ),
        )
    return reason, None


def _arguments_of(inputs: Any) -> tuple[Any, ...]:
    """Return ``inputs`` as a tuple. Raises InputError unless it is a tuple, a list, a
    tensor or None.
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

    This becomes the order of the inputs. Arguments that ``forward`` takes by ``**``
    come last, in the order of the caller.
    """
    if not kwargs or not isinstance(kwargs, Mapping):
        return kwargs
    known = [
        name for name in inspect.signature(module.forward).parameters if name in kwargs
    ]
    return {name: kwargs[name] for name in dict.fromkeys([*known, *kwargs])}


def _user_line(error: BaseException, libraries: Sequence[str]) -> Source | None:
    """Return the innermost line of the user's program that torch was tracing, or None.

    Lines in ``libraries``, which are folders, are not the user's.
    """
    # Dynamo keeps the frames of the user's code in ``real_stack``. Frames of libraries
    # are left out, and those of code that torch generates (file "<string>").
    frames = [
        *traceback.extract_tb(error.__traceback__),
        *getattr(error, "real_stack", ()),
    ]
    folders = tuple(f"{folder}{os.sep}" for folder in (_OWN_FOLDER, *libraries))
    tracing = [
        f
        for f in frames
        if f.filename != "<string>" and not f.filename.startswith(folders)
    ]
    return innermost(
        Source(f.filename, f.lineno or 0, f.name, (f.line or "").strip())
        for f in tracing
    )
