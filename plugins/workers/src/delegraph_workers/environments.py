"""Represent backends of other environments by classes that ask a worker there.

``Backend_NAME``, ``Partitioner_NAME`` and ``Runtime_NAME`` are made on first use.
Nothing of the backend is imported here. Two environments may have the same backend, or
backends of one id: their names distinguish them.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from delegraph.backend import CompileSpec, PreprocessResult
from delegraph.errors import (
    ContractViolation,
    FormatError,
    PluginUnavailable,
    Unsupported,
)
from delegraph.partitioner import (
    DelegationSpec,
    Partitioner,
    PartitionResult,
    Reason,
    Refusal,
)
from delegraph.runtime import BackendRuntime, BlobHeader, Compatibility, Delegate
from delegraph_programs import build_program, copy_node, flat_call
from delegraph_programs.exported_program import CALL_DELEGATE, append_node
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Graph, Node

from .entry_bytes import unplain
from .forms import Form, write
from .hidden import HIDDEN
from .message import pack, unpack
from .plugin import described, identifier
from .supervise import Limits, WorkerProcess
from .tensors import read_values, write_values
from .workers import Remote, Workers

_NOTHING = Limits()
_LOCK = threading.Lock()


class Environment:
    """A backend's environment with its processes.

    One process runs delegates only, so that a crashing compiler cannot end it.
    """

    def __init__(self, name: str) -> None:
        if name not in described() or "error" in described()[name][1]:
            why = (
                described()[name][1]["error"]
                if name in described()
                else "the settings do not have it"
            )
            raise PluginUnavailable(
                "plugin-unavailable",
                f"the environment of backend {name!r} cannot be used: {why}",
            )
        self.name = name
        self._setting, self.told = described()[name]
        self.backend = str(self.told["name"])
        self.where = (
            f"{self.told['distribution']} {self.told['version']} in"
            f" {self.told['prefix']}"
        )
        self.workers = Workers(isolated=True, python=self._setting.python)
        self._runner: WorkerProcess | None = None
        self._running = threading.RLock()
        self._about: dict[Any, dict[str, Any]] = {}  # by compile specs, in one lowering
        # process and number of what nobody here has any more
        self._gone: deque[tuple[int, int]] = deque()
        self._owner = os.getpid()
        atexit.register(self.close)

    def close(self) -> None:
        """End the environment's processes, unless this process is a fork of their
        owner.
        """
        if os.getpid() != self._owner:
            return
        if self._runner is not None:
            self._runner.close()
            self._runner = None
        self.workers.close()

    def ask(
        self, header: Mapping[str, Any], program: ExportedProgram
    ) -> dict[str, Any]:
        """Return a worker's answer about a program. A lowering begins with it."""
        self.workers.forget()
        self._about.clear()
        answer, _ = self.workers.send(
            {**header, "backend": self.backend}, [write(program)], self.backend
        )
        return self._told(answer)[0]

    def about(self, specs: Sequence[CompileSpec] | None = None) -> dict[str, Any]:
        """Return facts for a cache: keeps_names, installed, and the fingerprint for
        specs.
        """
        rows = None if specs is None else rows_of(specs)
        if (key := repr(rows)) not in self._about:
            header = {"do": "about", "backend": self.backend, "specs": rows}
            self._about[key] = self._told(
                self.workers.send(header, [], self.backend)[0]
            )[0]
        return self._about[key]

    def run(
        self, header: Mapping[str, Any], parts: Sequence[bytes]
    ) -> tuple[dict[str, Any], list[memoryview], int]:
        """Return the answer of the process that runs delegates, and its process id.

        The process is started if there is none.
        """
        with self._running:
            if self._runner is None or not self._runner.alive:
                self._runner = WorkerProcess(self.workers.path, self._setting.python)
            gone = [self._gone.popleft() for _ in range(len(self._gone))]
            let_go = [number for process, number in gone if process == self._runner.pid]
            job = pack({**header, "backend": self.backend, "let_go": let_go}, parts)
            answer, _ = self._runner.run(job, _NOTHING)
            return *self._told(answer), self._runner.pid

    def keep_for(self, owner: Any, process: int, number: int) -> None:
        """Release an object of ``process`` with the next job after ``owner`` is gone.

        Not at once: an object may be collected in the middle of another job.
        """
        weakref.finalize(owner, self._gone.append, (process, number)).atexit = False

    def show(
        self, header: Mapping[str, Any], form: Form
    ) -> tuple[dict[str, Any], list[memoryview], int]:
        """Do ``run`` for a program. The process maps its large constants."""
        packed, _ = self.workers.lay_out([form])
        return self.run({**header, "folder": str(self.workers.path)}, packed)

    def _told(self, answer: bytes) -> tuple[dict[str, Any], list[memoryview]]:
        header, parts = unpack(answer)
        if "error" in header:
            raise self.workers.error(header["error"], {}, _NOTHING)
        return header, parts


def environment(name: str) -> Environment:
    """Return the environment of a backend of the settings. All threads share it."""
    with _LOCK:
        return _environment(name, os.getpid())


@cache
def _environment(name: str, process: int) -> Environment:
    """Return this process's environment: a fork cannot share its parent's pipes."""
    return Environment(name)


def __getattr__(attribute: str) -> Any:
    """Return the classes that ``plugin`` declares."""
    kind, _, named = attribute.partition("_")
    for name, (_, told) in described().items():
        if named != identifier(name):
            continue
        if kind == "Backend":
            return _backend(name, told["backend_id"], _NOTHING)
        if kind in ("Partitioner", "Runtime"):
            return _partitioner(name) if kind == "Partitioner" else _runtime(name)
    raise AttributeError(f"module {__name__!r} has no attribute {attribute!r}")


def rows_of(specs: Sequence[CompileSpec]) -> list[list[str]]:
    """Return compile specs as JSON values."""
    return [[spec.key, spec.value.hex()] for spec in specs]


# --- compiling ------------------------------------------------------------------------


@cache
def _backend(name: str, backend_id: str, limits: Limits) -> type[Remote]:
    """Return the class that compiles in a backend's environment, with limits."""

    def preprocess(
        edge_program: ExportedProgram, compile_specs: list[CompileSpec]
    ) -> PreprocessResult:
        there = environment(name)
        programs = {"": [edge_program]}
        specs = {"": [compile_specs]}
        result = there.workers.compile(
            backend_id, there.backend, {}, programs, specs, limits
        )[""][0]
        if isinstance(result.facts, Mapping):
            result.facts = {**result.facts, "environment": there.where}
        return result

    body = {
        "__module__": __name__,
        "__doc__": f"Compiles as {backend_id} does in the environment of {name!r}.",
        "thread_safe": True,
        "preprocess": staticmethod(preprocess),
        "limited": classmethod(lambda cls, limits: _backend(name, backend_id, limits)),
        "fingerprint": staticmethod(
            lambda compile_specs: (
                environment(name).about(compile_specs).get("fingerprint")
            )
        ),
        "installed": staticmethod(lambda: environment(name).about().get("installed")),
    }
    made: Any = type(backend_id, (Remote,), body)
    # after the class was checked, which reads all attributes
    made.keeps_names = _KeepsNames(name)
    return made  # type: ignore[no-any-return]


class _KeepsNames:
    """The attribute of a class in another environment.

    Reading it asks that environment.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> bool:
        return bool(environment(self._name).about().get("keeps_names", True))


# --- partitioning ---------------------------------------------------------------------


@cache
def _partitioner(name: str) -> type[Partitioner]:
    """Return the class that asks the backend's own partitioner."""
    return type(
        f"Partitioner_{identifier(name)}",
        (RemotePartitioner,),
        {"name": name, "__module__": __name__},
    )


class RemotePartitioner(Partitioner):
    """Tags the nodes that a partitioner in another environment tags, with its reasons.

    It gets whole programs. The operators that it keeps are kept; others are decomposed
    to core ATen before it is asked for its partitions.
    """

    name: str

    def __init__(self, **options: Any) -> None:
        super().__init__(options)

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        calls = [n for n in exported_program.graph.nodes if n.op == "call_function"]
        try:
            sent, nodes = _without_delegates(exported_program)
            told = self._ask("partition", sent)
        except Unsupported as e:
            why = (
                f"the program cannot be sent to the environment of {self.name!r}:"
                f" {e.message}"
            )
            return PartitionResult(
                exported_program, {}, refusals=[Refusal(n, why) for n in calls]
            )
        try:
            return self._followed(exported_program, nodes, told)
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            text = (
                f"the environment of {self.name!r} gave an invalid partitioner's answer:"
                f" {type(e).__name__}: {e}"
            )
            raise FormatError("format-invalid", text) from e

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[OpOverload], Callable[[Node], bool] | None]:
        try:
            sent, nodes = _without_delegates(ep)
            told = self._ask("keeps", sent)
        except Unsupported:
            return [], None
        kept = {nodes[str(name)] for name in told.get("kept", ()) if str(name) in nodes}
        asked = set(nodes.values())
        operators = [
            op for op in map(_operator, told.get("operators", ())) if op is not None
        ]
        # a call that a decomposition has made was not asked about: it is kept if others
        # of its operator are
        return operators, lambda node: node in kept or node not in asked

    def _ask(self, what: str, program: ExportedProgram) -> dict[str, Any]:
        return environment(self.name).ask(
            {"do": what, "options": dict(self.spec)}, program
        )

    def _followed(
        self,
        program: ExportedProgram,
        nodes: Mapping[str, Node],
        told: Mapping[str, Any],
    ) -> PartitionResult:
        """Apply the other partitioner's answer to the nodes of this program."""
        for name, tag in told["tags"].items():
            nodes[name].meta["delegation_tag"] = (
                tuple(tag) if isinstance(tag, list) else tag
            )
        for name, marks in told["marks"].items():
            nodes[name].meta.update(
                {
                    str(k): unplain(v)
                    for k, v in marks.items()
                    if k not in nodes[name].meta
                }
            )
        own = str(environment(self.name).told["backend_id"])
        specs = {}
        for tag, backend_id, given in told["partitions"]:
            if backend_id not in (own, environment(self.name)._setting.backend):
                text = (
                    f"the partitioner of {self.name!r} gave {tag} to {backend_id},"
                    " which is another backend"
                )
                raise ContractViolation("contract-violation", text)
            specs[str(tag)] = DelegationSpec(
                self.name, [CompileSpec(k, bytes.fromhex(v)) for k, v in given]
            )
        boundary = {
            nodes[name].name: getattr(torch, dtype)
            for name, dtype in told["boundary"].items()
        }
        return PartitionResult(
            program,
            specs,
            boundary,
            [_refusal(nodes, row) for row in told["refusals"] if row[0] in nodes],
        )


def _refusal(nodes: Mapping[str, Node], row: Sequence[Any]) -> Refusal:
    """Return the refusal of a row.

    The other partitioner cannot repeat the check, so the refusal names no change that
    would help.
    """
    name, text, final, hint, cause, of = row
    reason = Reason(str(text), hint=str(hint), cause=str(cause), of=nodes.get(str(of)))
    return Refusal(nodes[name], reason, final=bool(final))


def _operator(name: Any) -> OpOverload | None:
    """Return an operator such as ``aten.relu.default``; None if this torch lacks it."""
    found: Any = torch.ops
    for part in str(name).split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, OpOverload) else None


def _without_delegates(
    program: ExportedProgram,
) -> tuple[ExportedProgram, dict[str, Node]]:
    """Return a copy of a program with HIDDEN in place of results of delegates.

    Also returns the nodes of ``program`` by their names in the copy.
    """
    graph = Graph(owning_module=program.graph_module)
    copies = dict[Node, Node]()
    calls = [
        n
        for n in program.graph.nodes
        if n.op == "call_function" and n.target is CALL_DELEGATE
    ]
    skipped = {*calls, *(n.args[0] for n in calls)}
    returned = {user for call in calls for user in call.users}
    for node in program.graph.nodes:
        if node in returned:
            given = [n for n in node.args[0].args[1:] if isinstance(n, Node)]
            by_kind = {
                kind: [copies[n] for n in given if isinstance(n.meta.get("val"), kind)]
                for kind in (torch.Tensor, (int, torch.SymInt))
            }
            meta = {
                key: node.meta[key]
                for key in ("val", "debug_handle")
                if key in node.meta
            }
            copies[node] = append_node(
                graph,
                "call_function",
                HIDDEN,
                (*by_kind.values(),),
                {},
                node.name,
                meta,
            )
        elif node not in skipped:
            copies[node] = copy_node(graph, node, copies.__getitem__)
    inputs = program.graph_signature.input_specs
    outputs = program.graph_signature.output_specs
    arriving = sum(spec.kind is InputKind.USER_INPUT for spec in inputs)
    call = flat_call(arriving, len(outputs))
    made = build_program(
        program.graph_module, graph, inputs, outputs, program, call, check=False
    )
    for node in made.graph.nodes:
        node.meta.pop("delegation_tag", None)
    return made, {
        copy.name: node for node, copy in copies.items() if node not in returned
    }


# --- running --------------------------------------------------------------------------


@cache
def _runtime(name: str) -> type[BackendRuntime]:
    """Return the class that runs blobs in the backend's environment."""

    def load(
        processed_bytes: bytes,
        compile_specs: Sequence[CompileSpec],
        named_data: Mapping[str, bytes],
    ) -> Delegate:
        return _Loaded(name, processed_bytes, compile_specs, named_data)

    def compatible(
        header: BlobHeader,
        compile_specs: Sequence[CompileSpec],
        device: str | None = None,
    ) -> Compatibility | None:
        asked = {
            "id": header.backend_id,
            "size": header.size,
            "producer": header.producer,
        }
        asked |= {"do": "compatible", "specs": rows_of(compile_specs), "device": device}
        there = environment(name)
        told, _, _ = there.run(
            {**asked, "fingerprint": header.fingerprint}, [header.beginning]
        )
        try:
            return told["verdict"] and Compatibility(*told["verdict"])
        except (KeyError, TypeError, ValueError) as e:
            raise FormatError(
                "format-invalid",
                f"the environment of {name!r} gave a verdict that is none: {e}",
            ) from e

    body = {
        "__module__": __name__,
        "load": staticmethod(load),
        "compatible": staticmethod(compatible),
    }
    return type(f"Runtime_{identifier(name)}", (BackendRuntime,), body)


class _Loaded:
    """A delegate in the process of an environment."""

    def __init__(
        self,
        name: str,
        blob: bytes,
        specs: Sequence[CompileSpec],
        named_data: Mapping[str, bytes],
    ) -> None:
        self._name = name
        header = {"do": "load", "specs": rows_of(specs), "keys": list(named_data)}
        told, _, self._process = environment(name).run(
            header, [bytes(blob), *map(bytes, named_data.values())]
        )
        self._number = told["number"]
        environment(name).keep_for(self, self._process, self._number)

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        return call_there(self._name, self._number, self._process, *args)  # type: ignore[no-any-return]


def call_there(name: str, number: int, process: int, *args: Any) -> Any:
    """Call the object that a process of an environment has under a number."""
    rows, parts = write_values(args)
    header = {"do": "call", "number": number, "process": process, "values": rows}
    told, data, _ = environment(name).run(header, parts)
    values = read_values(told["values"], data)
    return values[0] if told.get("alone") and values else tuple(values)
