"""Modules and functions become exported programs, one a method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.export import ExportedProgram

from ..errors import InputError
from ..exported_program import user_inputs
from .tracing import TRACING


def _export(method: str, program: Any, inputs: Any, kwargs: Any, shapes: Any) -> ExportedProgram:
    if isinstance(program, torch.nn.Module):
        program = _export_module(program, inputs, kwargs, shapes)
    if not isinstance(program, ExportedProgram):
        text = f"method {method}: an nn.Module or an ExportedProgram is wanted, not {type(program).__name__}"
        raise InputError("input-invalid", text)
    if not user_inputs(program):
        text = f"method {method} takes no inputs: there is nothing to compute at run time"
        raise InputError("input-invalid", text, hint="give the module an input, or compute its constant result once")
    return program


def _export_module(module: torch.nn.Module, inputs: Any, kwargs: Any, shapes: Any) -> ExportedProgram:
    training = next((name or type(module).__name__ for name, m in module.named_modules() if m.training), None)
    if training is not None:
        raise InputError(
            "training-mode", f"module {training} is in training mode", hint="call .eval() on the model first"
        )
    if inputs is None and not kwargs:
        hint = "delegraph.lower(module, (x, ...)): a tuple of tensors of the right shapes and dtypes"
        raise InputError("input-invalid", f"{type(module).__name__} is a module: example_inputs are needed", hint=hint)
    if not isinstance(inputs, tuple | None):
        raise InputError("input-invalid", f"example_inputs is a tuple of arguments, not {type(inputs).__name__}")
    try:
        with TRACING:
            return torch.export.export(module, inputs or (), kwargs, dynamic_shapes=shapes)
    except Exception as e:
        text = f"torch.export could not export {type(module).__name__}: {_first_line(e)}"
        raise InputError("export-failed", text) from e


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


def _by_method(program: Any, inputs: Any, kwargs: Any, shapes: Any) -> dict[str, tuple[Any, Any, Any, Any]]:
    """{method: (program, example inputs, example keyword arguments, dynamic shapes)}."""
    if not isinstance(program, Mapping):
        return {"forward": (program, inputs, kwargs, shapes)}
    if not program:
        raise InputError("input-invalid", "there is no method to lower")
    tables = [dict(t or {}) for t in (inputs, kwargs, shapes)]
    return {m: (p, *(t.get(m) for t in tables)) for m, p in program.items()}
