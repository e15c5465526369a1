"""A file with the outputs of lowered programs, from which an interrupted run continues.

It has outputs and no scores: a metric may depend on anything, so a later run could not
recognize its scores.
"""

from __future__ import annotations

import hashlib
import io
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from operator import attrgetter
from typing import Any

import delegraph
import torch
from delegraph import LoweredProgram, default_registry
from delegraph.delegates import LoweredBackendModule
from delegraph.errors import NoRuntime, WriteError
from delegraph_programs.tensor_bytes import fingerprint, why_no_bytes
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from .samples import Sample

_MARK = 0x64676F75
"""The ``application_id`` in our files, which SQLite keeps in their header."""


class OutputStore:
    """Outputs by key in a SQLite file. Programs and inputs determine the keys.

    So one file may have outputs of several programs. Outputs of a program that changed
    are not found.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Check or make the file. Raises WriteError if it has other content."""
        self._path = path
        if not os.path.exists(path) or os.path.getsize(path) == 0:
            self._execute(f"PRAGMA application_id = {_MARK}")
        elif self._execute("PRAGMA application_id") != [(_MARK,)]:
            raise self._error("it has other content")
        self._execute(
            "CREATE TABLE IF NOT EXISTS outputs (key TEXT PRIMARY KEY, value BLOB)"
        )

    def remembering(
        self, lowered: LoweredProgram, method: str, call: Callable[[Sample], Any]
    ) -> Callable[[Sample], Any]:
        """Return ``call``, a call of a method of ``lowered``, with its outputs kept.

        The returned function takes a sample's outputs from the file. If the file has
        none, the function calls ``call`` and writes them. If a program or a sample has
        no safe description, ``call`` runs each time.
        """
        program = lowered.exported_program(method)
        spec = program.call_spec.out_spec
        assert spec is not None
        try:
            identity = _describe_program(program)
        except _Unknown:
            return call

        def call_once(sample: Sample) -> Any:
            try:
                # the index is the random seed of the call: see ``verify_over``
                given = _describe([sample.index, sample.args, sample.kwargs])
            except _Unknown:
                return call(sample)
            key = hashlib.sha256(repr([identity, given]).encode()).hexdigest()
            leaves = self._find(key)
            if leaves is not None:
                return pytree.tree_unflatten(leaves, spec)
            outputs = call(sample)
            self._add(key, pytree.tree_leaves(outputs))
            return outputs

        return call_once

    def _find(self, key: str) -> list[Any] | None:
        """Return the flat outputs of a call; None if the file does not have them."""
        rows = self._execute("SELECT value FROM outputs WHERE key = ?", key)
        if not rows:
            return None
        leaves: list[Any] = torch.load(io.BytesIO(rows[0][0]), weights_only=True)
        return leaves

    def _add(self, key: str, leaves: list[Any]) -> None:
        """Write the flat outputs of a call."""
        content = io.BytesIO()
        # a clone has no other elements in its memory, which would be written too
        torch.save(pytree.tree_map_only(torch.Tensor, torch.clone, leaves), content)
        self._execute(
            "INSERT OR REPLACE INTO outputs VALUES (?, ?)", key, content.getvalue()
        )

    def _execute(self, statement: str, *values: str | bytes) -> list[Any]:
        """Run a statement of SQL, and return its rows. Raises WriteError."""
        try:
            with closing(sqlite3.connect(self._path, isolation_level=None)) as file:
                # waiting for the disk takes 30 ms a sample; only a power failure, not
                # the end of the process, can damage the file without it
                file.execute("PRAGMA synchronous = OFF")
                return file.execute(statement, values).fetchall()
        except sqlite3.Error as e:
            raise self._error(e) from e

    def _error(self, why: object) -> WriteError:
        text = f"the outputs of samples cannot be kept in {self._path}: {why}"
        return WriteError("write-failed", text, hint="name a new file")


class _Unknown(Exception):
    """A value has no description that is certain to change with the value."""


def _describe(value: Any) -> Any:
    """Return lists and plain values whose ``repr`` is another one for another value.

    Raises _Unknown for an object of a class that is not treated here.
    """
    if isinstance(value, torch.Tensor):
        if why_no_bytes(value) is not None:
            raise _Unknown
        return [fingerprint(value), list(value.stride())]
    if isinstance(value, dict):
        return [type(value).__name__, _describe([*value.items()])]
    if isinstance(value, (tuple, list)):
        return [type(value).__name__, *map(_describe, value)]
    if value is None or type(value) in (bool, int, float, complex, str):
        return value
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    raise _Unknown


def _describe_program(program: ExportedProgram) -> list[Any]:
    """Return a description of everything in a program that determines its outputs.

    Raises _Unknown if there is none: a constant has no bytes or is of an unknown class,
    or a backend has no runtime here.
    """
    parts: list[Any] = [torch.__version__, delegraph.__version__]
    parts.append(str(program.graph_signature))
    parts += [_describe(dict(program.state_dict)), _describe(dict(program.constants))]
    for name, module in program.graph_module.named_modules():
        parts.append(name)
        if isinstance(module, LoweredBackendModule):
            parts.append(_describe_delegate(module))
        elif isinstance(module, GraphModule):
            parts += [str(module.graph), *_describe_attributes(module)]
    return parts


def _describe_attributes(module: GraphModule) -> list[Any]:
    """Return descriptions of the tensors that are attributes of a graph."""
    parts = []
    for node in module.graph.nodes:
        if node.op == "get_attr":
            value = attrgetter(str(node.target))(module)
            if not isinstance(value, (GraphModule, LoweredBackendModule)):
                parts.append(_describe(value))
    return parts


def _describe_delegate(module: LoweredBackendModule) -> list[Any]:
    """Return a description of a blob, its data, its initial state and its runtime."""
    try:
        runtime = default_registry().runtime_for(module.backend_id)
    except NoRuntime:  # eager PyTorch runs it, until a runtime is installed
        raise _Unknown from None
    named_data = module.named_data()
    return [
        runtime.__module__,
        runtime.__qualname__,
        module.meta.get("producer"),
        module.meta.get("fingerprint"),
        [(spec.key, bytes(spec.value)) for spec in module.compile_specs],
        _describe([module.processed_bytes, named_data, module.state_tensors()]),
    ]
