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

    If ``program`` is no mapping, the only method is ``forward``. If it is a mapping by
    method, each of the other arguments is a mapping by method or None. A method that
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
    arguments = {
        "example_inputs": inputs,
        "example_kwargs": kwargs,
        "dynamic_shapes": shapes,
    }
    # method -> value, for each argument, in the order of the fields of ``Source``
    tables: list[Mapping[str, Any]] = []
    for argument, table in arguments.items():
        if table is not None and not isinstance(table, Mapping):
            text = (
                f"{argument} of several methods is {{method: value}}, not"
                f" {type(table).__name__}"
            )
            raise InputError("input-invalid", text)
        if unknown := sorted(map(str, (table or {}).keys() - program.keys())):
            text = (
                f"{argument} has the method {unknown[0]!r}, which the program does not"
                " have"
            )
            raise InputError(
                "input-invalid", text, hint=f"its methods: {', '.join(program)}"
            )
        tables.append(table or {})
    return {
        method: Source(given, *[table.get(method) for table in tables])
        for method, given in program.items()
    }


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
            libraries=[_OWN_FOLDER],
        )
    if not isinstance(program, ExportedProgram):
        kind = (
            f"the class {program.__name__}"
            if isinstance(program, type)
            else type(program).__name__
        )
        text = f"method {method} must be an nn.Module or an ExportedProgram, not {kind}"
        hint = (
            f"make one of it: {program.__name__}(...)"
            if isinstance(program, type)
            else None
        )
        raise InputError("input-invalid", text, hint=hint)
    expect_no_data_assigned(program)
    expect_distinct(program)
    return program
