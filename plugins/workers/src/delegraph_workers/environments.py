"""Represent backends of other environments by classes that call a worker there.

``Backend_NAME``, ``Partitioner_NAME`` and ``Runtime_NAME`` are made on first use. This
process does not import the backend. Two environments may have the same backend, or
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
from typing import Any, NamedTuple

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

_NO_LIMITS = Limits()
_LOCK = threading.Lock()


class Answer(NamedTuple):
    """The content of an answer, its parts of bytes, and the id of its process."""

    content: dict[str, Any]
    parts: list[memoryview]
    process: int


class Environment:
    """A backend's environment with its processes.

    ``workers`` compile and partition. Another process, which ``run`` calls, has loaded
    delegates and quantizers: a crashing compiler cannot end it. ``backend`` is the
    backend's full name there, ``where`` describes its distribution for reports.
    """

    def __init__(self, name: str) -> None:
        if name not in described():
            raise _unusable(name, "the settings do not contain it")
        self._setting, self.description = described()[name]
        if "error" in self.description:
            raise _unusable(name, self.description["error"])
        self.name = name
        self.backend = str(self.description["name"])
        self.where = (
            f"{self.description['distribution']} {self.description['version']} in"
            f" {self.description['prefix']}"
        )
        self.workers = Workers(isolated=True, python=self._setting.python)
        self._runtime_process: WorkerProcess | None = None
        self._runtime_lock = threading.RLock()
        # answers of ``about`` in this lowering, by compile specs
        self._about: dict[Any, dict[str, Any]] = {}
        # process and number of objects that this process uses no more (``kept``)
        self._unused: deque[tuple[int, int]] = deque()
        self._owner = os.getpid()
        atexit.register(self.close)

    def close(self) -> None:
        """End the environment's processes; a fork of their owner does not end them."""
        if os.getpid() != self._owner:
            return
        if self._runtime_process is not None:
            self._runtime_process.close()
            self._runtime_process = None
        self.workers.close()

    def ask(
        self, header: Mapping[str, Any], program: ExportedProgram
    ) -> dict[str, Any]:
        """Return a worker's answer to a job about ``program``.

        A lowering begins with such a job, so facts of the last lowering are dropped.
        """
        self.workers.forget()
        self._about.clear()
        job = {**header, "backend": self.backend}
        answer, _ = self.workers.send(job, [write(program)], self.backend)
        return self._content(answer)[0]

    def about(self, specs: Sequence[CompileSpec] | None = None) -> dict[str, Any]:
        """Return facts about the backend for keys of a cache (``serve.about``).

        With ``specs``, the facts include their fingerprint.
        """
        rows = None if specs is None else rows_of(specs)
        key = repr(rows)
        if key not in self._about:
            header = {"do": "about", "backend": self.backend, "specs": rows}
            answer, _ = self.workers.send(header, [], self.backend)
            self._about[key] = self._content(answer)[0]
        return self._about[key]

    def run(self, header: Mapping[str, Any], parts: Sequence[bytes]) -> Answer:
        """Return the answer of the process that has delegates and quantizers.

        The process is started if there is none.
        """
        with self._runtime_lock:
            if self._runtime_process is None or not self._runtime_process.alive:
                self._runtime_process = WorkerProcess(
                    self.workers.path, self._setting.python
                )
            pid = self._runtime_process.pid
            unused = [self._unused.popleft() for _ in range(len(self._unused))]
            let_go = [number for process, number in unused if process == pid]
            job = pack({**header, "backend": self.backend, "let_go": let_go}, parts)
            answer, _ = self._runtime_process.run(job, _NO_LIMITS)
            content, data = self._content(answer)
            return Answer(content, data, pid)

    def release_after(self, owner: Any, process: int, number: int) -> None:
        """Release object ``number`` of ``process`` after ``owner`` is deleted.

        The next job releases it. Releasing it at once is impossible: ``owner`` may be
        deleted during another job.
        """
        weakref.finalize(owner, self._unused.append, (process, number)).atexit = False

    def run_with_program(self, header: Mapping[str, Any], form: Form) -> Answer:
        """Like ``run``, for a job about a program, the only part of the job.

        The process maps the program's large constants.
        """
        packed, _ = self.workers.lay_out([form])
        return self.run({**header, "folder": str(self.workers.path)}, packed)

    def _content(self, answer: bytes) -> tuple[dict[str, Any], list[memoryview]]:
        """Return the header and the parts of an answer; raise its error."""
        header, parts = unpack(answer)
        if "error" in header:
            raise self.workers.error(header["error"], {}, _NO_LIMITS)
        return header, parts


def _unusable(name: str, why: str) -> PluginUnavailable:
    return PluginUnavailable(
        "plugin-unavailable",
        f"the environment of backend {name!r} cannot be used: {why}",
    )


def environment(name: str) -> Environment:
    """Return the environment of a backend of the settings. All threads share it."""
    with _LOCK:
        return _environment(name, os.getpid())


@cache
def _environment(name: str, process: int) -> Environment:
    """Return the environment of one process: a fork cannot share its parent's pipes."""
    return Environment(name)


def __getattr__(attribute: str) -> Any:
    """Return the classes that ``plugin`` declares."""
    kind, _, backend = attribute.partition("_")
    for name, (_, description) in described().items():
        if backend != identifier(name):
            continue
        if kind == "Backend":
            return _backend(name, description["backend_id"], _NO_LIMITS)
        if kind == "Partitioner":
            return _partitioner(name)
        if kind == "Runtime":
            return _runtime(name)
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
        compiled = there.workers.compile(
            backend_id, there.backend, {}, programs, specs, limits
        )
        [result] = compiled[""]
        if isinstance(result.facts, Mapping):
            result.facts = {**result.facts, "environment": there.where}
        return result

    def limited(cls: type[Remote], limits: Limits) -> type[Remote]:
        return _backend(name, backend_id, limits)

    def fingerprint(compile_specs: list[CompileSpec]) -> Any:
        return environment(name).about(compile_specs).get("fingerprint")

    def installed() -> Any:
        return environment(name).about().get("installed")

    body = {
        "__module__": __name__,
        "__doc__": f"Compiles as {backend_id} does in the environment of {name!r}.",
        "thread_safe": True,
        "preprocess": staticmethod(preprocess),
        "limited": classmethod(limited),
        "fingerprint": staticmethod(fingerprint),
        "installed": staticmethod(installed),
    }
    made: Any = type(backend_id, (Remote,), body)
    # the check of a new class reads all attributes, and must not start a worker
    made.keeps_names = _KeepsNames(name)
    return made  # type: ignore[no-any-return]


class _KeepsNames:
    """The attribute ``keeps_names`` of a class in another environment.

    Reading it calls a worker there.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> bool:
        return bool(environment(self._name).about().get("keeps_names", True))


# --- partitioning ---------------------------------------------------------------------


@cache
def _partitioner(name: str) -> type[Partitioner]:
    """Return the class that calls the backend's own partitioner."""
    return type(
        f"Partitioner_{identifier(name)}",
        (RemotePartitioner,),
        {"name": name, "__module__": __name__},
    )


class RemotePartitioner(Partitioner):
    """Tags nodes as a partitioner in another environment does, with its reasons.

    That partitioner gets whole programs. The operators that it keeps are not
    decomposed; others are decomposed to core ATen before.
    """

    name: str

    def __init__(self, **options: Any) -> None:
        super().__init__(options)

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        try:
            sent, nodes = _without_delegates(exported_program)
            answer = self._ask("partition", sent)
        except Unsupported as e:
            why = (
                f"the program cannot be sent to the environment of {self.name!r}:"
                f" {e.message}"
            )
            refusals = [
                Refusal(node, why)
                for node in exported_program.graph.nodes
                if node.op == "call_function"
            ]
            return PartitionResult(exported_program, {}, refusals=refusals)
        try:
            return self._apply(answer, exported_program, nodes)
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise FormatError(
                "format-invalid",
                f"the partitioner in the environment of {self.name!r} gave an invalid"
                f" answer: {type(e).__name__}: {e}",
            ) from e

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[OpOverload], Callable[[Node], bool] | None]:
        try:
            sent, nodes = _without_delegates(ep)
            answer = self._ask("keeps", sent)
        except Unsupported:
            return [], None
        names = map(str, answer.get("kept", ()))
        kept = {nodes[name] for name in names if name in nodes}
        known = set(nodes.values())
        found = map(_operator, answer.get("operators", ()))
        operators = [operator for operator in found if operator is not None]

        def keeps(node: Node) -> bool:
            # the other partitioner does not know calls that decompositions made: they
            # are kept if their operator is
            return node in kept or node not in known

        return operators, keeps

    def _ask(self, job: str, program: ExportedProgram) -> dict[str, Any]:
        """Let a worker run the service ``job`` with the options and a program."""
        header = {"do": job, "options": dict(self.spec)}
        return environment(self.name).ask(header, program)

    def _apply(
        self,
        answer: Mapping[str, Any],
        program: ExportedProgram,
        nodes: Mapping[str, Node],
    ) -> PartitionResult:
        """Apply the other partitioner's answer (``serve.partition``) to this program.

        ``nodes`` are those of the program by their names in the answer.
        """
        for name, tag in answer["tags"].items():
            # JSON has no tuples
            meta = nodes[name].meta
            meta["delegation_tag"] = tuple(tag) if isinstance(tag, list) else tag
        for name, marks in answer["marks"].items():
            meta = nodes[name].meta
            new = {str(k): unplain(v) for k, v in marks.items() if k not in meta}
            meta.update(new)
        boundary = {
            nodes[name].name: getattr(torch, dtype)
            for name, dtype in answer["boundary"].items()
        }
        refusals = [
            _refusal(nodes, row) for row in answer["refusals"] if row[0] in nodes
        ]
        specs = self._delegation_specs(answer["partitions"])
        return PartitionResult(program, specs, boundary, refusals)

    def _delegation_specs(self, rows: Any) -> dict[str, DelegationSpec]:
        """Return the partitions of an answer, by tag."""
        there = environment(self.name)
        own = (str(there.description["backend_id"]), there._setting.backend)
        specs = {}
        for tag, backend_id, settings in rows:
            if backend_id not in own:
                raise ContractViolation(
                    "contract-violation",
                    f"the partitioner of {self.name!r} gave partition {tag} to"
                    f" {backend_id}, another backend",
                )
            compile_specs = [
                CompileSpec(key, bytes.fromhex(value)) for key, value in settings
            ]
            specs[str(tag)] = DelegationSpec(self.name, compile_specs)
        return specs


def _refusal(nodes: Mapping[str, Node], row: Sequence[Any]) -> Refusal:
    """Return the refusal of a row.

    It names no change that would help: the other partitioner cannot repeat its check.
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

    Forms cannot express delegates, and the other environment may lack them. Also returns the nodes of ``program`` by their names in the copy.
    """
    graph = Graph(owning_module=program.graph_module)
    copies = dict[Node, Node]()
    skipped = set[Node]()
    results = set[Node]()
    for node in program.graph.nodes:
        if node.op == "call_function" and node.target is CALL_DELEGATE:
            skipped |= {node, node.args[0]}
            results.update(node.users)
    for node in program.graph.nodes:
        if node in results:
            copies[node] = _hidden(graph, node, copies)
        elif node not in skipped:
            copies[node] = copy_node(graph, node, copies.__getitem__)
    inputs = program.graph_signature.input_specs
    outputs = program.graph_signature.output_specs
    user_inputs = sum(spec.kind is InputKind.USER_INPUT for spec in inputs)
    call = flat_call(user_inputs, len(outputs))
    made = build_program(
        program.graph_module, graph, inputs, outputs, program, call, check=False
    )
    for node in made.graph.nodes:
        node.meta.pop("delegation_tag", None)
    names = {copy.name: node for node, copy in copies.items() if node not in results}
    return made, names


def _hidden(graph: Graph, node: Node, copies: Mapping[Node, Node]) -> Node:
    """Add a call of HIDDEN to ``graph`` in place of ``node``, a result of a delegate.

    It has the delegate's operands: tensors, then numbers.
    """
    tensors = []
    numbers = []
    for operand in node.args[0].args[1:]:  # type: ignore[union-attr]
        if not isinstance(operand, Node):
            continue
        value = operand.meta.get("val")
        if isinstance(value, torch.Tensor):
            tensors.append(copies[operand])
        elif isinstance(value, (int, torch.SymInt)):
            numbers.append(copies[operand])
    meta: dict[str, Any] = {}
    for key in ("val", "debug_handle"):
        if key in node.meta:
            meta[key] = node.meta[key]
    return append_node(
        graph, "call_function", HIDDEN, (tensors, numbers), {}, node.name, meta
    )


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
        job = {
            "do": "compatible",
            "id": header.backend_id,
            "size": header.size,
            "producer": header.producer,
            "fingerprint": header.fingerprint,
            "specs": rows_of(compile_specs),
            "device": device,
        }
        answer = environment(name).run(job, [header.beginning])
        try:
            verdict = answer.content["verdict"]
            return None if verdict is None else Compatibility(*verdict)
        except (KeyError, TypeError, ValueError) as e:
            raise FormatError(
                "format-invalid",
                f"the Python environment of {name!r} gave an invalid answer about"
                f" the compatibility of a blob: {e}",
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
        parts = [bytes(blob), *map(bytes, named_data.values())]
        answer = environment(name).run(header, parts)
        self._process = answer.process
        self._number = answer.content["number"]
        environment(name).release_after(self, self._process, self._number)

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        return call_there(self._name, self._number, self._process, *args)  # type: ignore[no-any-return]


def call_there(name: str, number: int, process: int, *args: Any) -> Any:
    """Call the object with a number in a process of an environment (``kept``).

    Returns a tuple, or a tensor if the object returns a tensor.
    """
    rows, parts = write_values(args)
    header = {"do": "call", "number": number, "process": process, "values": rows}
    answer = environment(name).run(header, parts)
    values = read_values(answer.content["values"], answer.parts)
    if answer.content.get("alone") and values:
        return values[0]
    return tuple(values)
