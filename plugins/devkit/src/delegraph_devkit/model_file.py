"""A MODEL of the command line as an example: its transforms are applied, and its inputs
are what is then taken.
"""

from __future__ import annotations

from typing import Any

import torch
from delegraph.command import read_model
from delegraph.errors import InputError
from delegraph_programs import copy_program, user_inputs
from delegraph_programs.distinct_inputs import distinct_inputs
from torch.export import ExportedProgram

from .programs import Example


def load_example(text: str) -> Example:
    """The module of a MODEL, or its program with its transforms applied, and inputs for
    it.

    Raises what ``read_model`` does, and InputError for a MODEL that has several
    methods, keyword arguments or dynamic shapes.
    """
    given = read_model(text)
    if (
        list(given.programs) != ["forward"]
        or given.kwargs["forward"]
        or given.dynamic_shapes["forward"]
    ):
        more = "methods, keyword arguments or dynamic shapes"
        raise InputError(
            "input-invalid",
            f"{text} gives {more}; an example is a model with its inputs only",
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
    """The inputs as they were, and random ones in place of those whose type or shape a
    transform has changed.
    """
    wanted = [node.meta.get("val") for node in user_inputs(program)]
    if len(wanted) != len(before):  # nested inputs, which no transform changes
        return before
    return tuple(_like(val, old) for val, old in zip(wanted, before, strict=True))


def _like(val: Any, old: Any) -> Any:
    """``old``, or a tensor of the type and shape of ``val`` with all integers of that
    type, or normal numbers.
    """
    if not isinstance(val, torch.Tensor) or (val.dtype, val.shape) == (
        getattr(old, "dtype", None),
        old.shape,
    ):
        return old
    if val.dtype.is_floating_point:
        return torch.randn(val.shape, dtype=val.dtype)
    limits = torch.iinfo(val.dtype)
    return torch.randint(limits.min, limits.max + 1, val.shape, dtype=val.dtype)
