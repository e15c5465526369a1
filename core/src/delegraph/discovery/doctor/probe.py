"""Examines each plugin in a process of its own: whatever its code does there, the one who asks lives on.

A child imports the light module in a fresh interpreter, then every target. It writes what it begins and what it finds
to a file, a line of JSON each; the last line of a child that died says what killed it.
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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from importlib_metadata import EntryPoint

from ...errors import DelegraphError
from ...plugin import PROJECT, BackendSpec, CommandSpec, Declaration, FormatSpec, RuntimeSpec
from ..entry_points import Key, load
from ..loading import missing
from ..record import Fault, PluginRecord, Status, without
from ..resolve import resolve

SECONDS = 60.0
"""How long one plugin may take. Importing torch alone takes some seconds on a cold disk."""
Say = Callable[..., None]


@dataclass(frozen=True)
class Examination:
    """What a child found. ``fatal`` is set if its process did not survive the import of the light module."""

    faults: tuple[Fault, ...] = ()
    warnings: tuple[Fault, ...] = ()
    fatal: Fault | None = None


def examine(found: Sequence[tuple[EntryPoint, PluginRecord]], seconds: float = SECONDS) -> dict[Key, Examination]:
    """Examine plugins, as many at a time as there are processors; each may take ``seconds``."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            made = list(pool.map(lambda pair: _examine_one(pair[0], pair[1], seconds), found))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return {(r.distribution, r.name): e for (_, r), e in zip(found, made, strict=True)}


# --- asking a child ---------------------------------------------------------------------------------------------------


def _examine_one(entry: EntryPoint, record: PluginRecord, seconds: float) -> Examination:
    with tempfile.TemporaryDirectory(prefix="delegraph-doctor-") as folder:
        job = {"entry": [entry.name, entry.value], "record": [record.distribution, record.version, record.location]}
        (Path(folder) / "job").write_text(json.dumps(job))
        end = _run_child(folder, seconds)
        lines = [json.loads(line) for line in _text(folder, "answer").splitlines()]
        return _conclusion(lines, f"{end}{_last_line(folder)}", record)


def _run_child(folder: str, seconds: float) -> str:
    """Run the child; says how it ended. Its output goes to a file, so that no pipe can block."""
    path = [p for p in sys.path if isinstance(p, str)]
    program = f"import sys; sys.path[:] = {path!r}; from {__name__} import main; main({folder!r})"
    command = [sys.executable, "-u", "-X", "faulthandler", "-c", program]
    with open(os.path.join(folder, "output"), "wb") as output:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=_environment())
        try:
            return _ending(child.wait(seconds))
        except subprocess.TimeoutExpired:
            _let_it_say_where(child)
            return f"took longer than {seconds:g} s"
        finally:
            child.kill()
            child.wait()


def _environment() -> dict[str, str]:
    """Without torch's own plugins, which its import would search all distributions for: they are not examined here."""
    return {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **os.environ}


def _let_it_say_where(child: subprocess.Popen[bytes]) -> None:
    """An abort makes faulthandler write the stack; a child that does not even do that is killed anyway."""
    if os.name == "posix":
        child.send_signal(signal.SIGABRT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(5)


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended the process with exit code {code}"
    return f"killed the process ({signal.strsignal(-code)})"


def _conclusion(lines: Sequence[dict[str, Any]], end: str, record: PluginRecord) -> Examination:
    """What the child wrote, and if it did not come to its end, how it ended and doing what."""
    faults = [Fault(Status(i["status"]), i["error"], i["hint"]) for i in lines if "error" in i]
    wrong = tuple(f for f in faults if f.status is not Status.OK)
    warnings = tuple(f for f in faults if f.status is Status.OK)
    last = next((i for i in reversed(lines) if "doing" in i), {"doing": "starting Python to examine it", "left": 0})
    if (doing := last["doing"]) == _DONE:
        return Examination(wrong, warnings)
    hint = f"upgrade {record.distribution} or tell its authors; {without(record)}"
    if end.startswith("took"):
        hint = f"if this machine is slow, allow more with --timeout; else {hint}"
    death = Fault(Status.BROKEN, f"{doing} {end}", hint)
    if doing == _LIGHT:
        return Examination(warnings=warnings, fatal=death)
    rest = Fault(
        Status.OK, f"{last['left']} more of its targets were not examined", "run doctor again when this is mended"
    )
    return Examination((*wrong, death), (*warnings, rest) if last["left"] else warnings)


_LIGHT, _DONE = "importing its light module", "done"


def _last_line(folder: str) -> str:
    """`` (file:line)`` of the plugin's code that was running, if the child could still tell."""
    stack = re.findall(r'^  File "(.+)", line (\d+)', _text(folder, "output"), re.MULTILINE)
    own = [f"{file}:{line}" for file, line in stack if not _is_library(file)]
    return f" ({own[0]})" if own else ""


def _is_library(file: str) -> bool:
    """Ours, or Python's own; what is installed lies below the standard library and is neither."""
    packages = any(part in file for part in ("site-packages", "dist-packages"))
    return file.startswith(("<", _HERE)) or (file.startswith(_STANDARD_LIBRARY) and not packages)


_HERE = str(Path(__file__).absolute().parents[2]) + os.sep
"""The folder of delegraph itself."""
_STANDARD_LIBRARY = sysconfig.get_path("stdlib") + os.sep


def _text(folder: str, name: str) -> str:
    path = Path(folder) / name
    return path.read_text(errors="replace") if path.exists() else ""


# --- the child --------------------------------------------------------------------------------------------------------


def main(folder: str) -> None:
    """Examine the plugin that the job in ``folder`` names, and end this process without waiting for its threads."""
    job = json.loads(_text(folder, "job"))
    (name, value), (distribution, version, location) = job["entry"], job["record"]
    with open(os.path.join(folder, "answer"), "a") as answer:
        _examine_here(
            EntryPoint(name, value, PROJECT),
            PluginRecord(name, distribution, version, location),
            lambda **fields: print(json.dumps(fields), file=answer, flush=True),
        )
    os._exit(0)


def _examine_here(entry: EntryPoint, record: PluginRecord, say: Say) -> None:
    say(doing=_LIGHT, left=0)
    before = _written()
    loaded = load(entry, record)
    for warning in (*loaded.warnings, *([_prints(record)] if _written() > before else [])):
        say(**asdict(warning))
    for fault in target_faults(loaded, lambda what, left: say(doing=f"importing {what}", left=left)):
        say(**asdict(fault))
    say(doing=_DONE, left=0)


def _written() -> int:
    """Bytes of output so far. It goes to a file and is not buffered, so that what native code writes counts too."""
    return os.fstat(1).st_size


def _prints(record: PluginRecord) -> Fault:
    hint = f"for the authors of {record.distribution}: every command imports it, and its output is not yours"
    return Fault(Status.OK, "its light module prints when it is imported", hint)


def target_faults(
    record: PluginRecord, begin: Callable[[str, int], None] = lambda target, left: None
) -> Iterator[Fault]:
    """Import all targets of the plugin's commands and usable backends, each for itself.

    Before each, ``begin`` is told which it is and how many are left after it.
    """
    examined = record.declarations if record.status in (Status.OK, Status.CONFLICT, Status.UNAVAILABLE) else ()
    usable = [d for d in examined if _backend_of(d) not in record.faults]
    for k, declaration in enumerate(usable, 1):
        begin(declaration.target, len(usable) - k)
        yield from _target_fault(declaration, record)


def _backend_of(declaration: Declaration) -> str | None:
    return declaration.name if isinstance(declaration, BackendSpec) else getattr(declaration, "backend", None)


def _target_fault(declaration: Declaration, record: PluginRecord) -> Iterator[Fault]:
    if isinstance(declaration, RuntimeSpec) and (needs := ", ".join(missing(declaration.requires))):
        error = f"the runtime of {declaration.backend!r} needs {needs}, which is not installed"
        yield Fault(Status.OK, f"{error}: it compiles and cannot run here", f"install {needs}")
        return
    if isinstance(declaration, (CommandSpec, FormatSpec)) and (needs := ", ".join(missing(declaration.requires))):
        what = f"format {declaration.suffix}" if isinstance(declaration, FormatSpec) else f"command {declaration.name}"
        error = f"the {what} needs {needs}, which is not installed"
        yield Fault(Status.OK, error, declaration.install_hint or f"install {needs}")
        return
    try:
        resolve(declaration, record)
    except DelegraphError as e:
        yield Fault(Status.BROKEN, e.message, e.hint or "")
