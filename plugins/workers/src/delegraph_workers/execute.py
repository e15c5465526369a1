"""Do a worker's job: compile the partitions in it.

Jobs and answers are bytes (``message``).
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import delegraph
import torch
from delegraph.backend import BackendDetails, CompileSpec, PreprocessResult
from delegraph.errors import ContractViolation, DelegraphError
from delegraph_programs import TRACING, user_inputs
from torch.export import ExportedProgram

from .constants import Absent, fetch_from
from .entry_bytes import write_result
from .failures import describe
from .forms import Form, read, write
from .kept import let_go
from .message import pack, unpack
from .operators import register_operators
from .serve import ANSWERS
from .supervise import data_size

Begun = Callable[[], None]
"""A function that is called when the backend begins.

Until then, modules and the partition were read.
"""


def run(job: bytes) -> bytes:
    """Do a job in this process; executors of other processes get this function."""
    header, _ = unpack(job)
    if header.get("isolated"):
        from .supervise import run_isolated

        return run_isolated(job, header)
    return execute(job)


def warm(backends: Sequence[str]) -> int:
    """Import the modules for jobs of these backends, and make a first program.

    Returns the process id.
    """
    module = torch.nn.ReLU()
    with TRACING:  # the executor may have threads of a process that lowers
        program = torch.export.export(module, (torch.ones(1),), strict=False)
    read(b"".join(write(program).pieces()))
    for name in backends:
        # the job that needs it says what is wrong
        with contextlib.suppress(Exception, SystemExit):
            delegraph.get_backend(name)
    return os.getpid()


def execute(
    job: bytes, begun: Begun = lambda: None, memory_limit: int | None = None
) -> bytes:
    """Compile the partitions of a job; return the results or the error."""
    start = time.perf_counter()
    where = {"pid": os.getpid(), "host": platform.node()}
    try:
        header, parts = unpack(job)
        let_go(header.get("let_go", ()))
        service = header.get("do")
        if service is not None:
            if service not in ANSWERS:
                text = (
                    f"the worker of {sys.prefix} does not know the job {service!r:.40}"
                )
                raise DelegraphError(
                    "workers/versions",
                    text,
                    hint="install the same delegraph-workers there",
                )
            begun()
            told, data = ANSWERS[service](header, parts)
            return pack({**told, **where}, data)
        return pack(
            {"seconds": time.perf_counter() - start, **where},
            _compile(header, parts, begun, memory_limit),
        )
    except (Exception, SystemExit) as e:
        if isinstance(e.__cause__, Absent):
            return pack({"absent": str(e.__cause__), **where})
        return pack({"error": describe(e), **where})


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
    _expect_versions(header["versions"], backend)
    settings = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(getattr(torch, header["dtype"]))
    torch.set_num_threads(header["threads"])
    try:
        forms = len(header["programs"])
        inline = dict(
            zip(map(bytes.fromhex, header["inline"]), parts[forms:], strict=True)
        )
        fetch = fetch_from(header["folder"], inline)
        register_operators(parts[:forms])
        programs = [read(part, fetch, named=True) for part in parts[:forms]]
        written = [write(program) for program in programs]
        borders = [_border(program) for program in programs]
        by_method: dict[str, list[int]] = {}
        for k, (method, _) in enumerate(header["programs"]):
            by_method.setdefault(method, []).append(k)
        specs = [
            [CompileSpec(key, bytes.fromhex(value)) for key, value in given]
            for _, given in header["programs"]
        ]
        begun()
        with (
            contextlib.nullcontext() if backend.thread_safe else TRACING,
            _limited(memory_limit),
        ):
            returned = backend.preprocess_multimethod(
                {
                    method: [programs[k] for k in listed]
                    for method, listed in by_method.items()
                },
                {
                    method: [list(specs[k]) for k in listed]
                    for method, listed in by_method.items()
                },
            )
        _expect_counts(backend, by_method, returned)
        results = {
            k: result
            for m, listed in by_method.items()
            for k, result in zip(listed, returned[m], strict=True)
        }
        return [
            _packed(backend, results[k], written[k], borders[k], programs[k])
            for k in range(forms)
        ]
    finally:
        torch.set_default_dtype(settings[0])
        torch.set_num_threads(settings[1])


def versions_of(distribution: str) -> dict[str, str]:
    """Return the versions that must be the same where a partition is made and compiled."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"delegraph": delegraph.__version__, "torch": torch.__version__}
    with contextlib.suppress(PackageNotFoundError):
        found[distribution] = version(distribution)
    return found


def _expect_versions(wanted: Mapping[str, str], backend: type[BackendDetails]) -> None:
    """Raise DelegraphError if this environment would compile differently."""
    distribution = next(
        (name for name in wanted if name not in ("delegraph", "torch")), "delegraph"
    )
    found = versions_of(distribution)
    differing = [
        f"{name} {found.get(name)}, not {given}"
        for name, given in wanted.items()
        if found.get(name) != given
    ]
    if differing:
        text = (
            f"a worker for {backend.__name__} has other versions than the process that"
            f" asks: {', '.join(differing)}"
        )
        raise DelegraphError(
            "workers/versions", text, hint="install the same ones there"
        )


def _border(program: ExportedProgram) -> tuple[list[str], int]:
    """Return the names of a program's inputs, and the number of its outputs."""
    return [node.name for node in user_inputs(program)], len(
        program.graph_signature.output_specs
    )


def _expect_counts(
    backend: type[BackendDetails], by_method: Mapping[str, Sequence[int]], returned: Any
) -> None:
    """Raise ContractViolation unless each method has as many results as programs."""
    wanted = {method: len(listed) for method, listed in by_method.items()}
    listed = (
        {m: r for m, r in returned.items() if isinstance(r, (list, tuple))}
        if isinstance(returned, Mapping)
        else {}
    )
    if {method: len(results) for method, results in listed.items()} != wanted:
        text = (
            f"{backend.__name__}.preprocess_multimethod returned {returned!r:.80}; it"
            f" was given {wanted} programs"
        )
        raise ContractViolation("contract-violation", text)


def _packed(
    backend: type[BackendDetails],
    result: Any,
    form: Form,
    border: tuple[list[str], int],
    program: ExportedProgram,
) -> bytes:
    """A result as bytes.

    ContractViolation if it is something else, or if the program is now called
    otherwise.
    """
    if not isinstance(result, PreprocessResult):
        text = (
            f"{backend.__name__}.preprocess returned {result!r:.80}; a PreprocessResult"
            " is wanted"
        )
        raise ContractViolation("contract-violation", text)
    left = [
        node.name
        for node in program.graph.nodes
        if node.op == "placeholder" and node.name in border[0]
    ]
    if (left, len(program.graph_signature.output_specs)) != border:
        text = (
            f"{backend.__name__}.preprocess changed how its program is called: its"
            f" inputs were {border[0]}, now {left}"
        )
        raise ContractViolation("contract-violation", text)
    return write_result("", None, result, form)


@contextlib.contextmanager
def _limited(limit: int | None) -> Iterator[None]:
    """A block that may take ``limit`` bytes of memory more than the process has: what
    asks for more gets an error.
    """
    if limit is None:
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    # a limit that is there already is not lifted
    others = [n for n in before if n != resource.RLIM_INFINITY]
    resource.setrlimit(
        resource.RLIMIT_DATA,
        (min(data_size() + limit, sys.maxsize, *others), before[1]),
    )
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
