"""Load a MODEL of the command line as an example, with its transforms applied."""

from __future__ import annotations

from typing import Any

import torch
from delegraph.command import read_model
from delegraph.errors import InputError
from delegraph_programs import copy_program, user_inputs
from delegraph_programs.separate_inputs import distinct_inputs
from torch.export import ExportedProgram

from .programs import Example


def load_example(text: str) -> Example:
    """Return the module of a MODEL, or its program after its transforms, and inputs.

    Raises the errors of ``read_model``. Raises InputError for a MODEL with several
    methods, keyword arguments or dynamic shapes.
    """
    given = read_model(text)
    if list(given.programs) != ["forward"]:
        raise InputError(
            "input-invalid",
            f"{text} has the methods {', '.join(given.programs)}; the checks take"
            " a model with forward alone",
        )
    if given.kwargs["forward"] or given.dynamic_shapes["forward"]:
        has = "keyword arguments" if given.kwargs["forward"] else "dynamic shapes"
        raise InputError(
            "input-invalid",
            f"{text} has {has}; the checks take a model with positional inputs alone",
        )
    model = given.programs["forward"]
    inputs = given.inputs["forward"] or ()
    if not given.transforms and not isinstance(model, ExportedProgram):
        return model, inputs
    if isinstance(model, ExportedProgram):
        program = copy_program(model)
    else:
        program = torch.export.export(model, distinct_inputs(inputs, model))
    for transform in given.transforms:
        program = transform(program)
    return program, _inputs(program, inputs)


def _inputs(program: ExportedProgram, before: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the inputs; those with a type or shape that a transform changed become
    random tensors.
    """
    wanted = [node.meta.get("val") for node in user_inputs(program)]
    if len(wanted) != len(before):  # no transform changes nested inputs
        return before
    return tuple(_like(val, old) for val, old in zip(wanted, before, strict=True))


def _like(val: Any, old: Any) -> Any:
    """Return ``old``, or a random tensor with the type and shape of ``val``."""
    if not isinstance(val, torch.Tensor):
        return old
    if val.dtype == getattr(old, "dtype", None) and val.shape == old.shape:
        return old
    if val.dtype.is_floating_point:
        return torch.randn(val.shape, dtype=val.dtype)
    limits = torch.iinfo(val.dtype)
    return torch.randint(limits.min, limits.max + 1, val.shape, dtype=val.dtype)
