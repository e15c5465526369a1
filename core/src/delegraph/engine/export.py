"""The step ``export``: each method becomes an exported program.

Modules are exported, and programs of the caller are checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from delegraph_programs.export_module import expect_no_data_assigned, export_module
from delegraph_programs.separate_inputs import expect_distinct
from torch.export import ExportedProgram

from .. import errors
from ..errors import InputError

_OWN_FOLDER = str(Path(errors.__file__).parent)


class Source(NamedTuple):
    """The source of a method: a program or module, and the arguments of ``export``.

    ``program``: an ExportedProgram, or a module to export. ``inputs``, ``kwargs`` and
    ``shapes``: the arguments of ``torch.export.export`` for a module, or None.
    """

    program: Any
    inputs: Any
    kwargs: Any
    shapes: Any


def sources_by_method(
    program: Any, inputs: Any, kwargs: Any, shapes: Any
) -> dict[str, Source]:
    """Return method -> source, from the arguments of ``lower``.

    If ``program`` is not a mapping, the only method is ``forward``. If it is a mapping
    by method, each of the other arguments is a mapping by method or None. A method that
    such a mapping lacks gets None. Raises InputError for an empty ``program``, for a
    name or a mapping of a wrong type, and for the name of an unknown method.
    """
    if not isinstance(program, Mapping):
        return {"forward": Source(program, inputs, kwargs, shapes)}
    if not program:
        raise InputError("input-invalid", "there is no method to lower")
    for method in program:
        if not isinstance(method, str):
            raise InputError(
                "input-invalid", f"the name of a method must be a str, not {method!r}"
            )
    inputs_of = _by_method("example_inputs", inputs, program)
    kwargs_of = _by_method("example_kwargs", kwargs, program)
    shapes_of = _by_method("dynamic_shapes", shapes, program)
    return {
        method: Source(
            given, inputs_of.get(method), kwargs_of.get(method), shapes_of.get(method)
        )
        for method, given in program.items()
    }


def _by_method(
    argument: str, value: Any, methods: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return ``value``, a mapping by method; an empty one for None.

    ``argument``: its name in ``lower``. Raises InputError for a value of another type,
    and for a method that is not in ``methods``.
    """
    table = {} if value is None else value
    if not isinstance(table, Mapping):
        text = (
            f"{argument} of several methods is {{method: value}}, not"
            f" {type(table).__name__}"
        )
        raise InputError("input-invalid", text)
    unknown = sorted(map(str, table.keys() - methods.keys()))
    if unknown:
        text = (
            f"{argument} has the method {unknown[0]!r}, which the program does not have"
        )
        raise InputError(
            "input-invalid", text, hint=f"its methods: {', '.join(methods)}"
        )
    return table


def export_method(method: str, source: Source) -> ExportedProgram:
    """Return the program of a method, exported if ``source`` has a module.

    Raises InputError for a program that cannot be lowered, such as a module in training
    mode, and for a ``source`` of another type.
    """
    program = source.program
    if isinstance(program, torch.nn.Module):
        program = export_module(
            program,
            source.inputs,
            source.kwargs,
            source.shapes,
            libraries=[_OWN_FOLDER],  # errors do not quote lines of this folder
        )
    if not isinstance(program, ExportedProgram):
        kind = type(program).__name__
        hint = None
        if isinstance(program, type):
            kind = f"the class {program.__name__}"
            hint = f"make one of it: {program.__name__}(...)"
        text = f"method {method} must be an nn.Module or an ExportedProgram, not {kind}"
        raise InputError("input-invalid", text, hint=hint)
    # torch.export handles two cases wrongly: ``tensor.data = other`` in the model, and
    # two inputs that are the same tensor
    expect_no_data_assigned(program)
    expect_distinct(program)
    return program
