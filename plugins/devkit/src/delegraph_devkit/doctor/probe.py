"""Examines each plugin in a child process, so that a plugin that crashes or exits does
not end this process.

The child imports the light module in a fresh interpreter, and then every target. To a
file, it writes one line of JSON for each step before it begins, and for each fault. If
the child dies, the last line says in which step.
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
from delegraph.discovery.declarations import plugin_manager, resolve
from delegraph.discovery.explanations import without
from delegraph.discovery.installed import load_plugin
from delegraph.discovery.loading import missing
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

The import of torch alone takes several from a cold disk.
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
    """What is wrong with a plugin: faults that prevent the use of some of it, and
    warnings.

    ``fatal`` is set if the child process ended during the import of the light module;
    else it is None.
    """

    faults: tuple[Fault, ...] = ()
    warnings: tuple[Fault, ...] = ()
    fatal: Fault | None = None

    @classmethod
    def of(cls, faults: Sequence[Fault], *warnings: Fault) -> ProbeResult:
        """The result with ``faults``, of which those with status ok become warnings,
        and with more ``warnings``.
        """
        wrong = tuple(f for f in faults if f.status is not Status.OK)
        return cls(wrong, (*(f for f in faults if f.status is Status.OK), *warnings))


def probe(
    plugins: Sequence[tuple[EntryPoint, PluginRecord]], seconds: float = SECONDS
) -> dict[str, ProbeResult]:
    """Examine plugins in child processes, as many at a time as there are processors;
    each may take ``seconds``.
    """
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            results = list(
                pool.map(
                    lambda plugin: _probe_in_child(plugin[0], plugin[1], seconds),
                    plugins,
                )
            )
        except BaseException:
            # such as KeyboardInterrupt: do not examine the remaining plugins
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return {
        r.full_name: result for (_, r), result in zip(plugins, results, strict=True)
    }


# --- asking a child -------------------------------------------------------------------


def _probe_in_child(
    entry: EntryPoint, record: PluginRecord, seconds: float
) -> ProbeResult:
    """Examine one plugin in a child process.

    If that hangs or crashes, the result names the line of code it was at.
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
    """Run the child for the job in ``folder``; returns how it ended, as text that
    continues "importing ...".

    The child's output goes to the file "output" in the folder: a child that writes to a
    full pipe would wait for ever.
    """
    path = [p for p in sys.path if isinstance(p, str)]
    program = (
        f"import sys; sys.path[:] = {path!r}; from {__name__} import main;"
        f" main({folder!r})"
    )
    command = [sys.executable, "-u", "-X", "faulthandler", "-c", program]
    # Importing torch would otherwise import torch's own plugins, which are not examined
    # here.
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
    """The result from the ``lines`` of JSON that the child wrote: each is a fault, or
    the step that it began.

    ``end``: how the child ended, the result of ``_run_child``. It becomes a fault of
    the last step, unless that step is _DONE. ``record``: of the plugin.
    """
    faults = [
        Fault(Status(i["status"]), i["error"], i["hint"]) for i in lines if "error" in i
    ]
    step = next(
        (i for i in reversed(lines) if "doing" in i),
        {"doing": "starting Python to examine it", "left": 0},
    )
    if (doing := step["doing"]) == _DONE:
        return ProbeResult.of(faults)
    hint = f"upgrade {record.distribution} or tell its authors; {without(record)}"
    if end.startswith("took"):  # the child was killed because its time was up
        hint = f"if this machine is slow, allow more with --timeout; else {hint}"
    death = Fault(Status.BROKEN, f"{doing} {end}", hint)
    # the light module itself ended the child, so this process must not import it either
    if doing == _LIGHT:
        return ProbeResult(warnings=ProbeResult.of(faults).warnings, fatal=death)
    rest = f"{step['left']} more of its targets were not examined"
    skipped = (
        [Fault(Status.OK, rest, "run doctor again when this is mended")]
        if step["left"]
        else []
    )
    return ProbeResult.of([*faults, death], *skipped)


def _is_library(file: str) -> bool:
    """Whether a file belongs to delegraph or to Python's standard library."""
    # the folder of the standard library also contains that of installed packages
    packages = any(part in file for part in ("site-packages", "dist-packages"))
    return file.startswith(("<", *_LIBRARIES)) or (
        file.startswith(_STANDARD_LIBRARY) and not packages
    )


def _text(folder: str, name: str) -> str:
    """The text of the file ``name`` in ``folder``; "" if it does not exist."""
    path = Path(folder) / name
    return path.read_text(errors="replace") if path.exists() else ""


# --- the child ------------------------------------------------------------------------


def main(folder: str) -> None:
    """The child: examine the plugin that the file "job" in ``folder`` names, then exit
    without waiting for threads.
    """
    job = json.loads(_text(folder, "job"))
    (name, value), origin = job["entry"], job["record"]
    with open(os.path.join(folder, "answer"), "a") as answer:

        def write(**fields: Any) -> None:
            """Append one line of JSON to the answer, at once: the next step may end
            this process.
            """
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
            PluginRecord(name, *origin),
        )
        seconds = time.monotonic() - start
        sys.meta_path.remove(watch)
        if os.fstat(1).st_size > size_before:
            hint = (
                f"for the authors of {record.distribution}: every command imports it,"
                " and its output is not yours"
            )
            write(
                **asdict(
                    Fault(
                        Status.OK, "its light module prints when it is imported", hint
                    )
                )
            )
        slow = _slow_import(watch, seconds)
        if slow is not None:
            write(**asdict(slow))
        for fault in target_faults(
            record, lambda target, left: write(doing=f"importing {target}", left=left)
        ):
            write(**asdict(fault))
        write(doing=_DONE, left=0)
    os._exit(0)


def _slow_import(watch: Watch, seconds: float) -> Fault | None:
    """The warning for a light module that imports a heavy module, or is slow; else
    None.

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
    """Import all targets of a plugin, except those of backends that cannot be used;
    yields a fault for each failure.

    Runtimes are also asked whether they can run programs here.

    Before each import, ``begin`` is called with the target and the number of targets
    that come after it.
    """
    declared = (
        record.declarations
        if record.status in (Status.OK, Status.CONFLICT, Status.UNAVAILABLE)
        else ()
    )
    usable = [d for d in declared if _backend_of(d) not in record.faults]
    for k, declaration in enumerate(usable, 1):
        begin(declaration.target, len(usable) - k)
        if (absent := _absent(declaration)) is not None:
            yield absent
            continue
        try:
            target = resolve(declaration, record)
            if isinstance(declaration, RuntimeSpec) and not target.is_available():
                yield Fault(
                    Status.OK,
                    f"{target.__name__} says that it cannot run programs here",
                    "",
                )
        except NoRuntime as e:  # compiling works, so it is a warning
            error = (
                f"programs of {_backend_of(declaration)!r} cannot run here: {e.message}"
            )
            yield Fault(Status.OK, error, e.hint or "")
        except DelegraphError as e:
            yield Fault(Status.BROKEN, e.message, e.hint or "")
        except Exception as e:  # ``resolve`` raises no other: it is the plugin's
            error = (
                f"{declaration.target} raised {type(e).__name__} when asked whether it"
                f" is available: {e}"
            )
            yield Fault(
                Status.BROKEN,
                error,
                f"upgrade {record.distribution} or tell its authors; {without(record)}",
            )


def _backend_of(declaration: Declaration) -> str | None:
    """The backend that ``declaration`` declares, or that it belongs to; None for
    declarations without a backend.
    """
    return (
        declaration.name
        if isinstance(declaration, BackendSpec)
        else getattr(declaration, "backend", None)
    )


def _absent(declaration: Declaration) -> Fault | None:
    """The warning for a declaration that needs modules that are not installed; None if
    all are there.

    None for a backend, too, because its record has that fault already.
    """
    needs = ", ".join(missing(declaration.requires))
    if not needs or isinstance(declaration, BackendSpec):
        return None
    so = f": {declaration.without}" if declaration.without else ""
    error = f"the {declaration.title} needs {needs}, which is not installed{so}"
    return Fault(Status.OK, error, declaration.install_hint or f"install {needs}")
