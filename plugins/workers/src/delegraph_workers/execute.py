"""Execute jobs in a worker: compile partitions, or answer other requests.

Jobs and answers are messages (``message``). If the header of a job has the key "do",
that names one of the services of ``serve``. Otherwise the job compiles partitions.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import delegraph
import torch
from delegraph.backend import BackendDetails, CompileSpec, PreprocessResult
from delegraph.errors import ContractViolation, DelegraphError
from delegraph_programs import TRACING, user_inputs
from torch.export import ExportedProgram

from .constants import Absent, fetch_from
from .entry_bytes import write_result
from .failures import write_error
from .forms import Form, read, write
from .kept import release
from .message import pack, unpack
from .operators import register_operators
from .serve import SERVICES
from .supervise import data_size, run_isolated

Begun = Callable[[], None]
"""A function to call just before the backend. Time limits count from then on."""


def run(job: bytes) -> bytes:
    """Execute a job, as the call of an executor; an isolated job gets a new process."""
    header, _ = unpack(job)
    if header.get("isolated"):
        return run_isolated(job, header)
    return execute(job)


def warm(backends: Sequence[str]) -> int:
    """Import the modules for jobs of these backends, and export a first program.

    Returns the process id.
    """
    module = torch.nn.ReLU()
    with TRACING:  # the executor may have threads of a process that lowers
        program = torch.export.export(module, (torch.ones(1),), strict=False)
    read(b"".join(write(program).pieces()))
    for name in backends:
        # a job that needs the backend reports its error
        with contextlib.suppress(Exception, SystemExit):
            delegraph.get_backend(name)
    return os.getpid()


def execute(
    job: bytes, begun: Begun = lambda: None, memory_limit: int | None = None
) -> bytes:
    """Execute a job in this process; return its answer or its error as a message."""
    start = time.perf_counter()
    where = {"pid": os.getpid(), "host": platform.node()}
    try:
        header, parts = unpack(job)
        release(header.get("let_go", ()))
        service = header.get("do")
        if service is not None:
            if service not in SERVICES:
                raise DelegraphError(
                    "workers/versions",
                    f"the worker of {sys.prefix} does not know the job {service!r:.40}",
                    hint="install the same delegraph-workers in both environments",
                )
            begun()
            content, data = SERVICES[service](header, parts)
            return pack({**content, **where}, data)
        # the time for reading the job is measured before it is compiled
        facts = {"seconds": time.perf_counter() - start, **where}
        return pack(facts, _compile(header, parts, begun, memory_limit))
    except (Exception, SystemExit) as e:
        if isinstance(e.__cause__, Absent):
            return pack({"absent": str(e.__cause__), **where})
        return pack({"error": write_error(e), **where})


def _compile(
    header: Mapping[str, Any],
    parts: Sequence[memoryview],
    begun: Begun,
    memory_limit: int | None,
) -> Iterable[bytes]:
    """Return the packed results of a job's partitions."""
    backend: type[BackendDetails] = delegraph.get_backend(header["backend"])
    if backend.__name__ != header["class"]:
        text = (
            f"backend {header['backend']} is {backend.__name__} in the worker, and"
            f" {header['class']} in the job"
        )
        raise ContractViolation("contract-violation", text)
    _check_versions(header["versions"], backend)
    dtype = torch.get_default_dtype()
    threads = torch.get_num_threads()
    torch.set_default_dtype(getattr(torch, header["dtype"]))
    torch.set_num_threads(header["threads"])
    try:
        partitions = _read_partitions(header, parts)
        programs: dict[str, list[ExportedProgram]] = {}
        specs: dict[str, list[list[CompileSpec]]] = {}
        for partition in partitions:
            programs.setdefault(partition.method, []).append(partition.program)
            specs.setdefault(partition.method, []).append(partition.compile_specs)
        begun()
        lock = contextlib.nullcontext() if backend.thread_safe else TRACING
        with lock, _limited(memory_limit):
            returned = backend.preprocess_multimethod(programs, specs)
        wanted = {method: len(listed) for method, listed in programs.items()}
        _check_counts(backend, wanted, returned)
        results = {method: iter(returned[method]) for method in wanted}
        return [
            _packed(backend, next(results[partition.method]), partition)
            for partition in partitions
        ]
    finally:
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)


class _Signature(NamedTuple):
    """The names of a program's inputs, and the number of its outputs."""

    inputs: list[str]
    outputs: int

    @staticmethod
    def of(program: ExportedProgram) -> _Signature:
        names = [node.name for node in user_inputs(program)]
        return _Signature(names, len(program.graph_signature.output_specs))


class _Partition(NamedTuple):
    """A partition of a job, with its form and signature before it is compiled."""

    method: str
    program: ExportedProgram
    compile_specs: list[CompileSpec]
    form: Form
    signature: _Signature


def _read_partitions(
    header: Mapping[str, Any], parts: Sequence[memoryview]
) -> list[_Partition]:
    """Return the partitions of a job: their forms come first in ``parts``."""
    count = len(header["programs"])
    digests = map(bytes.fromhex, header["inline"])
    inline = dict(zip(digests, parts[count:], strict=True))
    fetch = fetch_from(header["folder"], inline)
    forms = parts[:count]
    register_operators(forms)
    partitions = []
    for (method, settings), form in zip(header["programs"], forms, strict=True):
        program = read(form, fetch, named=True)
        specs = [CompileSpec(key, bytes.fromhex(value)) for key, value in settings]
        partitions.append(
            _Partition(method, program, specs, write(program), _Signature.of(program))
        )
    return partitions


def versions_of(distribution: str) -> dict[str, str]:
    """Return the versions that must be equal in both processes, by distribution.

    These are the versions of delegraph, torch and ``distribution``, which has the
    backend.
    """
    from importlib.metadata import PackageNotFoundError, version

    found = {"delegraph": delegraph.__version__, "torch": torch.__version__}
    with contextlib.suppress(PackageNotFoundError):
        found[distribution] = version(distribution)
    return found


def _check_versions(wanted: Mapping[str, str], backend: type[BackendDetails]) -> None:
    """Raise DelegraphError if this environment would compile differently.

    ``wanted`` is the result of ``versions_of`` in the other process.
    """
    distributions = [name for name in wanted if name not in ("delegraph", "torch")]
    found = versions_of(distributions[0] if distributions else "delegraph")
    differing = [
        f"{name} {found.get(name)}, not {given}"
        for name, given in wanted.items()
        if found.get(name) != given
    ]
    if differing:
        raise DelegraphError(
            "workers/versions",
            f"the worker for {backend.__name__} has other versions than this process:"
            f" {', '.join(differing)}",
            hint="install the same versions in both environments",
        )


def _check_counts(
    backend: type[BackendDetails], wanted: Mapping[str, int], returned: Any
) -> None:
    """Raise ContractViolation unless each method has as many results as programs."""
    counts = {}
    if isinstance(returned, Mapping):
        for method, results in returned.items():
            if isinstance(results, (list, tuple)):
                counts[method] = len(results)
    if counts != wanted:
        text = (
            f"{backend.__name__}.preprocess_multimethod returned {returned!r:.80}; it"
            f" got {wanted} programs"
        )
        raise ContractViolation("contract-violation", text)


def _packed(backend: type[BackendDetails], result: Any, partition: _Partition) -> bytes:
    """Return the bytes of a result (``entry_bytes``).

    Raises ContractViolation if it is no PreprocessResult, or if the backend changed the
    inputs or outputs of the program.
    """
    if not isinstance(result, PreprocessResult):
        raise ContractViolation(
            "contract-violation",
            f"{backend.__name__}.preprocess returned {result!r:.80}; it must return a"
            " PreprocessResult",
        )
    program = partition.program
    names = partition.signature.inputs
    remaining = [
        node.name
        for node in program.graph.nodes
        if node.op == "placeholder" and node.name in names
    ]
    outputs = len(program.graph_signature.output_specs)
    if _Signature(remaining, outputs) != partition.signature:
        raise ContractViolation(
            "contract-violation",
            f"{backend.__name__}.preprocess changed the signature of its program: its"
            f" inputs were {names}, now {remaining}",
        )
    return write_result("", None, result, partition.form)


@contextlib.contextmanager
def _limited(limit: int | None) -> Iterator[None]:
    """Limit a block to ``limit`` bytes of memory more than the process uses.

    An allocation beyond the limit fails.
    """
    if limit is None:
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    # an existing limit stays
    existing = [n for n in before if n != resource.RLIM_INFINITY]
    soft = min(data_size() + limit, sys.maxsize, *existing)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
