"""Read the user's settings: backends in other environments, and their descriptions.

The settings name executables. So they are read from the user's own folder or from a
named file, never from the working directory. Imports neither torch nor numpy.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import subprocess
import sys
import tempfile
import tomllib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from delegraph.errors import DelegraphWarning

CONFIG = "DELEGRAPH_CONFIG"
"""The variable that names another file of settings; ``--config FILE`` sets it."""
LARGEST = 1_000_000
"""The most bytes of a file of settings."""
SECONDS = 60.0
"""Seconds in which an environment must describe its backend."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
KINDS = {"str": str, "int": int, "float": float, "bool": bool, "list": list}
"""The types of options, by their names in descriptions."""


class BadSettings(Exception):
    """Invalid settings, or an environment that does not describe its backend."""


@dataclass(frozen=True)
class Setting:
    """A backend in another environment: its interpreter, and its names.

    ``name`` is the name in this environment, ``backend`` the name in the other.
    ``fault``: the error in its table, which disables only this backend.
    """

    name: str
    python: str
    backend: str
    fault: str = ""


def path_of_settings() -> Path:
    """Return the file of settings, which need not exist."""
    if os.environ.get(CONFIG):
        return Path(os.environ[CONFIG])
    if sys.platform == "win32":
        roaming = os.environ.get("APPDATA") or Path.home() / "AppData/Roaming"
        return Path(roaming) / "delegraph/delegraph.toml"
    if sys.platform == "darwin":
        return Path.home() / "Library/Application Support/delegraph/delegraph.toml"
    return xdg_folder("XDG_CONFIG_HOME", ".config") / "delegraph/delegraph.toml"


def xdg_folder(variable: str, usual: str) -> Path:
    """Return the user's folder that a variable names, or the usual one.

    The XDG specification ignores relative paths, which would depend on the working
    directory.
    """
    given = os.environ.get(variable, "")
    return Path(given) if os.path.isabs(given) else Path.home() / usual


def settings() -> list[Setting]:
    """Return the backends of the file of settings. Raises BadSettings."""
    path = path_of_settings()
    try:
        text = _content(path)
    except FileNotFoundError:
        if os.environ.get(CONFIG):
            raise BadSettings(f"there is no file {path}") from None
        return []
    except OSError as e:
        raise BadSettings(f"{path} cannot be read: {e.strerror or e}") from e
    return read_settings(text, path)


def _content(path: Path) -> str:
    """Return the text of the file of settings.

    Raises OSError, and BadSettings for a file that is not regular, too large, not
    UTF-8, or writable by others.
    """
    # without O_NONBLOCK, opening a pipe waits for a writer
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise BadSettings(f"{path} is no regular file; settings must be in one")
        if os.name == "posix":
            is_foreign = status.st_uid not in (0, os.geteuid())
            if is_foreign or status.st_mode & stat.S_IWOTH:
                raise BadSettings(
                    f"{path} names executables, but other users own it or can write to"
                    " it"
                )
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(LARGEST + 1)
    finally:
        os.close(descriptor)
    if len(data) > LARGEST:
        raise BadSettings(
            f"{path} is larger than {LARGEST // 1_000_000} MB; a file of settings has"
            " only a few lines"
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as e:
        raise BadSettings(
            f"{path} cannot be read: it is not UTF-8 at byte {e.start}"
        ) from e


def read_settings(text: str, path: Path) -> list[Setting]:
    """Return the backends in the text of a file of settings.

    A wrong table disables only its backend. Unknown tables and keys are warnings.
    Raises BadSettings for a text that is no TOML.
    """
    try:
        whole = tomllib.loads(text)
    except (ValueError, RecursionError) as e:
        raise BadSettings(f"{path}: {e}") from e
    for key in sorted(whole.keys() - {"backends"}):
        _ignore(
            f"{path}: the table or key {key!r} is ignored; write tables [backends.NAME]"
        )
    tables = whole.get("backends", {})
    if not isinstance(tables, Mapping):
        _ignore(
            f"{path}: backends is ignored, because it is a {type(tables).__name__};"
            " write tables [backends.NAME]"
        )
        return []
    made = []
    for name, table in tables.items():
        if _NAME.fullmatch(name):
            made.append(_setting(name, table, path))
        else:
            _ignore(
                f"{path}: [backends.{name!r}] is ignored; a name consists of letters,"
                " digits and . _ + -"
            )
    return made


def _setting(name: str, table: Any, path: Path) -> Setting:
    """Return the backend of a table; ``fault`` names the error in the table."""
    given = table if isinstance(table, Mapping) else {}
    python = given.get("python")
    backend = given.get("backend", name)
    fault = (
        f'{path}: the table needs python = "/absolute/path/of/a/python", and may have'
        ' backend = "name in that environment"'
    )
    if not isinstance(python, str) or not isinstance(backend, str):
        return Setting(name, "", "", fault)
    if not os.path.isabs(python):
        return Setting(name, "", "", fault)
    unknown = sorted(given.keys() - {"python", "backend"})
    if unknown:
        text = f"{path}: the table has the unknown key {unknown[0]!r}"
        return Setting(name, python, backend, text)
    return Setting(name, python, backend)


def _ignore(text: str) -> None:
    """Warn about an ignored part of the file of settings."""
    warnings.warn(text, DelegraphWarning, stacklevel=2)


def description_of(setting: Setting) -> dict[str, Any]:
    """Return an environment's description of a backend, the result of ``describe``.

    The user's cache folder keeps it until the installed distributions change: then a
    folder of the environment's path has another time of change. Raises BadSettings.
    """
    if setting.fault:
        raise BadSettings(setting.fault)
    folder = xdg_folder("XDG_CACHE_HOME", ".cache") / "delegraph/environments"
    names = json.dumps([setting.python, setting.backend])
    path = folder / f"{hashlib.sha256(names.encode()).hexdigest()}.json"
    description = _cached_description(path)
    if description is not None:
        return description

    description = _run_describe(setting)
    kept = {"description": description, "stamps": _stamps(description["path"])}
    # without a writable folder, the next process needs half a second to ask again
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(kept), "utf-8")
        partial.rename(path)
    return description


def _cached_description(path: Path) -> dict[str, Any] | None:
    """Return a kept description; None if it is missing, outdated or damaged."""
    try:
        kept = json.loads(path.read_text("utf-8"))
        description = dict(kept["description"])
        is_current = kept["stamps"] == _stamps(description["path"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return description if is_current and _is_description(description) else None


def _is_description(answer: dict[str, Any]) -> bool:
    """Return whether an answer has a protocol and the path of modules.

    Only these are checked here: descriptions of other protocols have other fields.
    """
    path = answer.get("path")
    if type(answer.get("protocol")) is not int or not isinstance(path, list):
        return False
    return all(type(folder) is str for folder in path)


def _stamps(path: list[str]) -> list[Any]:
    """Return the time of the last change of each folder, in nanoseconds.

    A missing folder has None.
    """
    return [
        os.stat(folder).st_mtime_ns if os.path.exists(folder) else None
        for folder in path
    ]


def variables_for_other(folder: Path) -> dict[str, str]:
    """Return the environment variables for a process of another environment.

    Variables about this environment are left out: the other one may use a plugin that
    is disabled here.
    """
    about_this = {
        "PYTHONPATH",
        "PYTHONHOME",
        "PYTHONPLATLIBDIR",
        "PYTHONEXECUTABLE",
        "__PYVENV_LAUNCHER__",
        "DELEGRAPH_PLUGINS",
        "DELEGRAPH_DISABLE_PLUGINS",
    }
    variables = {k: v for k, v in os.environ.items() if k not in about_this}
    variables[CONFIG] = str(_empty_settings(folder))
    return variables


def _empty_settings(folder: Path) -> Path:
    """Return an empty file of settings for the processes of another environment.

    With the user's settings, an environment with this distribution would start itself
    again and again.
    """
    path = folder / "delegraph.toml"
    path.touch(mode=0o600)
    return path


def _run_describe(setting: Setting) -> dict[str, Any]:
    """Let the environment describe the backend."""
    command = [setting.python, "-m", "delegraph_workers.describe", setting.backend]
    with tempfile.TemporaryDirectory(prefix="delegraph-") as nowhere:
        environment = variables_for_other(Path(nowhere))
        try:
            done = subprocess.run(
                command,
                env=environment,
                cwd=nowhere,
                capture_output=True,
                timeout=SECONDS,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired) as e:
            raise BadSettings(f"{setting.python}: {e}") from e
    try:
        answer = json.loads(done.stdout.decode("utf-8", "replace").splitlines()[-1])
    except (ValueError, IndexError):
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        why = lines[-1] if lines else f"exit code {done.returncode}"
        raise BadSettings(
            f"{setting.python} does not describe {setting.backend!r}: {why:.300}"
        ) from None
    if not isinstance(answer, dict):
        raise BadSettings(
            f"{setting.python}: it answered {answer!r:.80} for {setting.backend!r}"
        )
    if "error" in answer:
        raise BadSettings(f"{setting.python}: {answer['error']}")
    if not _is_description(answer):
        raise BadSettings(
            f"{setting.python} describes {setting.backend!r} in an unknown form;"
            " install the delegraph-workers of this environment there"
        )
    return answer
