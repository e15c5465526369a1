"""Examine each plugin in a child process, which a plugin may crash or end.

The child imports the light module in a fresh interpreter, and then every target. It
writes lines of JSON to a file: each step before it begins, and each fault. If the child
dies, the last line names the step.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import delegraph
import delegraph_programs
from delegraph.discovery.explain_exception import disable_hint
from delegraph.discovery.import_by_name import missing
from delegraph.discovery.import_target import import_target
from delegraph.discovery.installed import load_plugin
from delegraph.discovery.read_declarations import plugin_manager
from delegraph.discovery.records import Fault, PluginRecord, Status
from delegraph.errors import DelegraphError, NoRuntime
from delegraph.plugin import PROJECT, BackendSpec, Declaration, RuntimeSpec

from ..import_watch import Watch

SLOW = 0.5
"""Seconds after which an import counts as slow.

Every command imports all light modules, so each slow one matters.
"""
SECONDS = 60.0
"""Seconds that one plugin may take.

The import of torch from a cold disk alone takes several seconds.
"""
_LIGHT = "importing its light module"
_DONE = "done"
_LIBRARIES = tuple(
    str(Path(file).absolute().parent) + os.sep
    for file in (
        delegraph_programs.__file__,
        delegraph.__file__,
        os.path.dirname(__file__),
    )
)
_STANDARD_LIBRARY = sysconfig.get_path("stdlib") + os.sep


@dataclass(frozen=True)
class ProbeResult:
    """The faults of a plugin, which prevent the use of parts of it, and its warnings.

    ``fatal`` is the fault that ended the child process during the import of the light
    module.
    """

    faults: tuple[Fault, ...] = ()
    warnings: tuple[Fault, ...] = ()
    fatal: Fault | None = None

    @classmethod
    def of(cls, faults: Sequence[Fault], *warnings: Fault) -> ProbeResult:
        """Return a result; ``faults`` with the status ok become warnings."""
        problems = [fault for fault in faults if fault.status is not Status.OK]
        harmless = [fault for fault in faults if fault.status is Status.OK]
        return cls(tuple(problems), (*harmless, *warnings))


def probe(
    plugins: Sequence[tuple[EntryPoint, PluginRecord]], seconds: float = SECONDS
) -> dict[str, ProbeResult]:
    """Examine plugins in child processes, one for each processor at a time.

    Each plugin may take ``seconds``.
    """
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        futures = {
            record.full_name: pool.submit(_probe_in_child, entry, record, seconds)
            for entry, record in plugins
        }
        try:
            return {name: future.result() for name, future in futures.items()}
        except BaseException:
            # such as KeyboardInterrupt: do not examine the remaining plugins
            pool.shutdown(wait=False, cancel_futures=True)
            raise


# --- the parent -----------------------------------------------------------------------


def _probe_in_child(
    entry: EntryPoint, record: PluginRecord, seconds: float
) -> ProbeResult:
    """Examine one plugin in a child process.

    If the child hangs or crashes, the result names its last line of code.
    """
    with tempfile.TemporaryDirectory(prefix="delegraph-doctor-") as folder:
        job = {
            "entry": [entry.name, entry.value],
            "record": [record.distribution, record.version, record.location],
        }
        (Path(folder) / "job").write_text(json.dumps(job))
        end = _run_child(folder, seconds)
        lines = [json.loads(line) for line in _text(folder, "answer").splitlines()]
        # a child that hangs or crashes prints its stack, innermost frame first
        # (faulthandler)
        stack = re.findall(
            r'^  File "(.+)", line (\d+)', _text(folder, "output"), re.MULTILINE
        )
        running = next(
            (f" ({file}:{line})" for file, line in stack if not _is_library(file)), ""
        )
        return _conclude(lines, f"{end}{running}", record)


def _run_child(folder: str, seconds: float) -> str:
    """Run the child for the job in ``folder``; return its end, as text that continues
    "importing ...".

    The output goes to the file "output" in the folder: with a pipe, a child that prints
    much would wait for ever.
    """
    path = [p for p in sys.path if isinstance(p, str)]
    program = (
        f"import sys; sys.path[:] = {path!r}; from {__name__} import main;"
        f" main({folder!r})"
    )
    command = [sys.executable, "-u", "-X", "faulthandler", "-c", program]
    # without this variable, torch imports its own plugins
    environment = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **os.environ}
    with open(os.path.join(folder, "output"), "wb") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
        )
        try:
            code = child.wait(seconds)
        except subprocess.TimeoutExpired:
            if os.name == "posix":  # an abort makes faulthandler write the stack
                child.send_signal(signal.SIGABRT)
                # if it takes too long, there is no stack
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(5)
            return f"took longer than {seconds:g} s"
        finally:
            child.kill()
            child.wait()
    ended = f"ended the process with exit code {code}"
    return ended if code >= 0 else f"killed the process ({signal.strsignal(-code)})"


def _conclude(
    lines: Sequence[dict[str, Any]], end: str, record: PluginRecord
) -> ProbeResult:
    """Return the result from the child's ``lines`` of JSON: faults, and steps that it
    began.

    ``end`` is the result of ``_run_child``. It becomes a fault of the last step, unless
    that step is _DONE.
    """
    step = {"doing": "starting Python to examine it", "left": 0}
    faults = []
    for line in lines:
        if "error" in line:
            faults.append(Fault(Status(line["status"]), line["error"], line["hint"]))
        if "doing" in line:
            step = line
    doing = step["doing"]
    if doing == _DONE:
        return ProbeResult.of(faults)
    hint = f"upgrade {record.distribution} or tell its authors; {disable_hint(record)}"
    if end.startswith("took"):  # longer than the limit
        hint = f"if this machine is slow, allow more with --timeout; else {hint}"
    death = Fault(Status.BROKEN, f"{doing} {end}", hint)
    # the light module itself ended the child, so this process must not import it either
    if doing == _LIGHT:
        return ProbeResult(warnings=ProbeResult.of(faults).warnings, fatal=death)
    if not step["left"]:
        return ProbeResult.of([*faults, death])

    skipped = Fault(
        Status.OK,
        f"{step['left']} more of its targets were not examined",
        "run doctor again after mending this fault",
    )
    return ProbeResult.of([*faults, death], skipped)


def _is_library(file: str) -> bool:
    """Return whether a file belongs to delegraph or to Python's standard library."""
    if file.startswith(("<", *_LIBRARIES)):
        return True
    # the folder of the standard library also contains that of installed packages
    is_package = any(part in file for part in ("site-packages", "dist-packages"))
    return file.startswith(_STANDARD_LIBRARY) and not is_package


def _text(folder: str, name: str) -> str:
    """Return the text of the file ``name`` in ``folder``; "" if it does not exist."""
    path = Path(folder) / name
    return path.read_text(errors="replace") if path.exists() else ""


# --- the child ------------------------------------------------------------------------


def main(folder: str) -> None:
    """Examine the plugin that the file "job" in ``folder`` names, in the child.

    Exits without waiting for threads.
    """
    job = json.loads(_text(folder, "job"))
    name, value = job["entry"]
    with open(os.path.join(folder, "answer"), "a") as answer:

        def write(**fields: Any) -> None:
            """Append one line of JSON, and flush: the next step may end this process."""
            print(json.dumps(fields), file=answer, flush=True)

        write(doing=_LIGHT, left=0)
        # stdout is an unbuffered file (``_run_child``), so its size also counts what
        # native code prints.
        size_before = os.fstat(1).st_size
        watch = Watch()
        sys.meta_path.insert(0, watch)
        start = time.monotonic()
        record = load_plugin(
            plugin_manager(),
            EntryPoint(name, value, PROJECT),
            PluginRecord(name, *job["record"]),
        )
        seconds = time.monotonic() - start
        sys.meta_path.remove(watch)
        if os.fstat(1).st_size > size_before:
            prints = Fault(
                Status.OK,
                "its light module prints when it is imported",
                f"for the authors of {record.distribution}: print nothing, because"
                " every command imports this module",
            )
            write(**asdict(prints))
        slow = _slow_import(watch, seconds)
        if slow is not None:
            write(**asdict(slow))

        def begin(target: str, left: int) -> None:
            write(doing=f"importing {target}", left=left)

        for fault in target_faults(record, begin):
            write(**asdict(fault))
        write(doing=_DONE, left=0)
    os._exit(0)


def _slow_import(watch: Watch, seconds: float) -> Fault | None:
    """Return a warning if a light module imports a heavy module, or is slow.

    One warning is enough: torch imports numpy, and both are slow.
    """
    heavy = watch.first()
    if heavy is not None:
        return Fault(
            Status.OK,
            f"its light module imports {heavy}, which slows every listing down"
            f" ({watch.importers[heavy]})",
            "for its authors: import it in the modules that the targets name",
        )
    if seconds > SLOW:
        return Fault(
            Status.OK,
            f"its light module took {seconds:.1f} s to import, which slows every"
            " listing down",
            "for its authors: do the work in the modules that the targets name",
        )
    return None


def target_faults(
    record: PluginRecord, begin: Callable[[str, int], None] = lambda target, left: None
) -> Iterator[Fault]:
    """Import all targets of a plugin, except those of unusable backends; yield a fault
    for each failure.

    A runtime that is not available here is a warning. Before each import, ``begin`` is
    called with the target and the number of later targets.
    """
    if record.status not in (Status.OK, Status.CONFLICT, Status.UNAVAILABLE):
        return
    usable = [d for d in record.declarations if _backend_of(d) not in record.faults]
    for k, declaration in enumerate(usable, 1):
        begin(declaration.target, len(usable) - k)
        absent = _absent(declaration)
        if absent is not None:
            yield absent
            continue
        try:
            target = import_target(declaration, record)
            if isinstance(declaration, RuntimeSpec) and not target.is_available():
                yield Fault(
                    Status.OK,
                    f"{target.__name__} cannot run programs on this host"
                    " (is_available is False)",
                    "",
                )
        except NoRuntime as e:  # compiling works, so it is a warning
            error = (
                f"programs of {_backend_of(declaration)!r} cannot run on this host:"
                f" {e.message}"
            )
            yield Fault(Status.OK, error, e.hint or "")
        except DelegraphError as e:
            yield Fault(Status.BROKEN, e.message, e.hint or "")
        except (
            Exception
        ) as e:  # ``import_target`` raises no other: the plugin is at fault
            error = (
                f"is_available of {declaration.target} raised {type(e).__name__}: {e}"
            )
            yield Fault(
                Status.BROKEN,
                error,
                f"upgrade {record.distribution} or tell its authors; {disable_hint(record)}",
            )


def _backend_of(declaration: Declaration) -> str | None:
    """Return the backend of a declaration; None if it has no backend."""
    if isinstance(declaration, BackendSpec):
        return declaration.name
    return getattr(declaration, "backend", None)


def _absent(declaration: Declaration) -> Fault | None:
    """Return a warning if modules that a declaration needs are not installed.

    Backends get no warning here: their record has that fault already.
    """
    needs = ", ".join(missing(declaration.requires))
    if not needs or isinstance(declaration, BackendSpec):
        return None
    error = f"the {declaration.title} needs {needs}, which is not installed"
    if declaration.without:
        error += f": {declaration.without}"
    return Fault(Status.OK, error, declaration.install_hint or f"install {needs}")
