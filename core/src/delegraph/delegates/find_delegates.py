"""The delegates of a program, called by its own graph or by a subgraph, such as a
branch or a loop body.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from delegraph_programs.exported_program import CALL_DELEGATE
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from ..backend import Blob, CompileSpec, NamedDataStore, NamedDataStoreOutput
from ..errors import InputError
from ..io.atomic_write import write_whole
from .lowered_module import Argument, LoweredBackendModule


def delegate_calls(
    program: ExportedProgram | GraphModule,
) -> Iterator[tuple[Node, LoweredBackendModule]]:
    """Yield each call of a delegate, with the delegate's module.

    The calls in the graph come first, in graph order, then the calls in its subgraphs,
    at any depth. A subgraph that several nodes refer to is searched once.
    """
    module = program if isinstance(program, GraphModule) else program.graph_module
    subgraphs: dict[str, GraphModule] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr":
            attribute = getattr(module, str(node.target), None)
            if isinstance(attribute, GraphModule):
                subgraphs[str(node.target)] = attribute
        elif node.target is CALL_DELEGATE:
            # the first argument is the ``get_attr`` node of the delegate's module
            yield node, getattr(module, node.args[0].target)
    for subgraph in subgraphs.values():
        yield from delegate_calls(subgraph)


def merged_named_data(
    programs: Iterable[ExportedProgram], own: Mapping[str, bytes] = MappingProxyType({})
) -> NamedDataStoreOutput:
    """Return the named data of all delegates of ``programs``, together with ``own``, the
    caller's data by key.

    Equal contents are stored once. Raises NamedDataError if different contents have the
    same key.
    """
    # a delegate may be called several times; a dict keeps the order
    modules: dict[LoweredBackendModule, None] = {}
    for program in programs:
        modules |= dict.fromkeys(module for _, module in delegate_calls(program))
    store = NamedDataStore()
    for module in modules:
        if module.named_data_store_output is not None:
            store.merge_named_data_store(module.named_data_store_output)
    for key, content in own.items():
        store.add_named_data(key, content)
    return store.get_named_data_store_output()


class MethodPrograms:
    """The lowered programs of several methods, by name."""

    def __init__(self, programs: Mapping[str, ExportedProgram]) -> None:
        self._programs = dict(programs)

    def exported_program(self, name: str = "forward") -> ExportedProgram:
        """Return the program of a method, with calls of its delegates.

        Raises InputError if no method has that name.
        """
        return self._programs[self._checked_name(name)]

    def _checked_name(self, name: str) -> str:
        """Return ``name`` unchanged. Raises InputError if no method has that name."""
        if name not in self._programs:
            raise InputError(
                "input-invalid",
                f"there is no method {name!r}; methods: {list(self._programs)}",
            )
        return name

    @property
    def named_data(self) -> NamedDataStoreOutput:
        """Return the named data of all delegates of all methods.

        Equal contents are stored once, as in one program file.
        """
        return merged_named_data(self._programs.values())


@dataclass(frozen=True)
class DelegateInfo:
    """One delegate of a lowered program.

    ``name``: the attribute of the method's program that has the module. ``nodes``: the
    operators that the delegate replaces, as a report counts them: without calls that
    unpack results or compute sizes. ``seconds``: step of the lowering -> its seconds.
    ``compiled``: the origin of the blob, in words, if the lowering used a cache:
    compiled now, from the cache, or equal to another delegate; "" without a cache.
    """

    method: str
    name: str
    module: LoweredBackendModule
    nodes: tuple[Node, ...]
    seconds: Mapping[str, float] = field(default_factory=dict)
    compiled: str = ""

    @property
    def backend_id(self) -> str:
        """Return the name of the backend's class."""
        return self.module.backend_id

    @property
    def processed_bytes(self) -> bytes:
        """Return the backend's blob as bytes."""
        return self.module.processed_bytes

    @property
    def blob(self) -> bytes | Blob:
        """Return the backend's blob: bytes, or a ``Blob``, which has several parts.

        After the first read of ``processed_bytes``, which joins the parts, it is bytes.
        """
        return self.module.blob

    @property
    def compile_specs(self) -> list[CompileSpec]:
        """Return the settings for backend and runtime."""
        return self.module.compile_specs

    @property
    def named_data(self) -> NamedDataStoreOutput | None:
        """Return the data that this delegate reads by key; None if it has none."""
        return self.module.named_data_store_output

    @property
    def debug_handle_map(self) -> dict[Any, tuple[int, ...]]:
        """Return a mapping from the backend's debug identifiers to the debug handles of
        their operators.
        """
        return dict(self.module.meta.get("debug_handle_map") or {})

    @property
    def facts(self) -> dict[str, str]:
        """Return facts that the backend reported about the delegate, by name."""
        return dict(self.module.meta.get("facts", {}))

    @property
    def figures(self) -> dict[Any, dict[str, int | float]]:
        """Return a mapping from the backend's debug identifiers to the amounts that the
        backend expects, by name, such as cycles.
        """
        return dict(self.module.meta.get("figures", {}))

    @property
    def producer(self) -> str:
        """Return the backend's distribution and its version, or "" if not known."""
        return str(self.module.meta.get("producer", ""))

    @property
    def fingerprint(self) -> str:
        """Return the backend's text about everything that the blob depends on.

        The text has, for example, the version of a compiler, but not the program.
        Returns "" if the backend has no fingerprint.
        """
        return str(self.module.meta.get("fingerprint", ""))

    @property
    def inputs(self) -> tuple[Argument, ...]:
        """Return the run-time inputs in calling order."""
        return self.module.inputs

    @property
    def outputs(self) -> tuple[Argument, ...]:
        """Return the outputs in calling order."""
        return self.module.outputs

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the blob to ``path``, completely or not at all."""
        write_whole(path, self.module.blob)
