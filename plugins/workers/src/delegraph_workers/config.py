"""Read the user's settings: backends in other environments, and their descriptions.

The settings name executables. So they are read from the user's own folder or from a
named file, never from the working directory. Imports neither torch nor numpy.
"""

from __future__ import annotations

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
    """Settings that cannot be used, or an environment that does not answer."""


@dataclass(frozen=True)
class Setting:
    """A backend in another environment: its names here and there, and the interpreter.

    ``wrong``: the fault of its table, which disables only this backend.
    """

    name: str
    python: str
    backend: str
    wrong: str = ""


def path_of_settings() -> Path:
    """Return the file of settings, which need not exist."""
    if os.environ.get(CONFIG):
        return Path(os.environ[CONFIG])
    if sys.platform == "win32":
        return (
            Path(os.environ.get("APPDATA") or Path.home() / "AppData/Roaming")
            / "delegraph/delegraph.toml"
        )
    if sys.platform == "darwin":
        return Path.home() / "Library/Application Support/delegraph/delegraph.toml"
    return _folder("XDG_CONFIG_HOME", ".config") / "delegraph/delegraph.toml"


def _folder(variable: str, usual: str) -> Path:
    """Return a folder of the user's.

    A variable with a relative path is ignored, as its specification requires. Otherwise
    it would name a folder in the working directory.
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
    descriptor = os.open(
        path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    )
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise BadSettings(
                f"{path} is no regular file; the settings are read from regular files"
                " only"
            )
        if os.name == "posix" and (
            status.st_mode & stat.S_IWOTH or status.st_uid not in (0, os.geteuid())
        ):
            raise BadSettings(
                f"{path} names executables, and others own it or can write to it"
            )
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(LARGEST + 1)
    finally:
        os.close(descriptor)
    if len(data) > LARGEST:
        raise BadSettings(
            f"{path} is larger than {LARGEST // 1_000_000} MB; a file of settings is a"
            " few lines"
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as e:
        raise BadSettings(
            f"{path} cannot be read: it is not UTF-8 at byte {e.start}"
        ) from e


def read_settings(text: str, path: Path) -> list[Setting]:
    """Return the backends in the text of a file of settings.

    A wrong table disables its backend alone. Unknown tables and keys are warnings.
    Raises BadSettings for a text that is no TOML.
    """
    try:
        whole = tomllib.loads(text)
    except (ValueError, RecursionError) as e:
        raise BadSettings(f"{path}: {e}") from e
    for key in sorted(whole.keys() - {"backends"}):
        _ignore(
            f"{path}: the table or key {key!r} is ignored; the file has tables"
            " [backends.NAME]"
        )
    tables = whole.get("backends", {})
    if not isinstance(tables, Mapping):
        _ignore(
            f"{path}: backends is ignored, as it is a {type(tables).__name__}; the file"
            " has tables [backends.NAME]"
        )
        return []
    made = []
    for name, table in tables.items():
        if not _NAME.fullmatch(name):
            _ignore(
                f"{path}: [backends.{name!r}] is ignored; a name is letters, digits and"
                " . _ + -"
            )
            continue
        given = table if isinstance(table, Mapping) else {}
        python = given.get("python")
        backend = given.get("backend", name)
        if (
            not isinstance(python, str)
            or not os.path.isabs(python)
            or not isinstance(backend, str)
        ):
            text = (
                'the table has python = "/absolute/path/of/a/python", and may have'
                ' backend = "its name there"'
            )
            made.append(Setting(name, "", "", f"{path}: {text}"))
        elif unknown := sorted(given.keys() - {"python", "backend"}):
            made.append(
                Setting(
                    name,
                    python,
                    backend,
                    f"{path}: the table has the unknown key {unknown[0]!r}",
                )
            )
        else:
            made.append(Setting(name, python, backend))
    return made


def _ignore(text: str) -> None:
    """Warn about an ignored part of the file of settings."""
    warnings.warn(text, DelegraphWarning, stacklevel=2)


def description_of(setting: Setting) -> dict[str, Any]:
    """Return an environment's description of a backend (``describe``).

    Raises BadSettings.

    It is kept in the user's cache folder until the installed distributions change.
    """
    if setting.wrong:
        raise BadSettings(setting.wrong)
    base = _folder("XDG_CACHE_HOME", ".cache") / "delegraph/environments"
    kept = base / (
        hashlib.sha256(
            json.dumps([setting.python, setting.backend]).encode()
        ).hexdigest()
        + ".json"
    )
    try:
        known = json.loads(kept.read_text("utf-8"))
        if known["stamps"] == _stamps(known["told"]["path"]) and _is_description(
            known["told"]
        ):
            return dict(known["told"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # there is none, or it is of another version: the environment is asked
    told = _ask(setting)
    try:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = kept.with_suffix(f".{os.getpid()}")
        partial.write_text(
            json.dumps({"told": told, "stamps": _stamps(told["path"])}), "utf-8"
        )
        partial.rename(kept)
    except OSError:
        # a folder that cannot be written costs half a second the next time, and nothing
        # else
        return told
    return told


def _is_description(told: dict[str, Any]) -> bool:
    """Return whether an answer has a protocol and the path.

    The rest has the form of ``describe`` of that protocol.
    """
    path = told.get("path")
    return (
        type(told.get("protocol")) is int
        and isinstance(path, list)
        and all(type(p) is str for p in path)
    )


def _stamps(path: list[str]) -> list[Any]:
    """Return when each folder last changed, in nanoseconds; None for a missing one."""
    return [
        os.stat(folder).st_mtime_ns if os.path.exists(folder) else None
        for folder in path
    ]


def variables_there(folder: Path) -> dict[str, str]:
    """Return the environment variables for a process of another environment.

    Those about this environment are left out. A plugin that is disabled here may be
    used there.
    """
    about_this = {
        "PYTHONPATH",
        "PYTHONHOME",
        "PYTHONPLATLIBDIR",
        "PYTHONEXECUTABLE",
        "__PYVENV_LAUNCHER__",
    }
    about_this |= {"DELEGRAPH_PLUGINS", "DELEGRAPH_DISABLE_PLUGINS"}
    return {k: v for k, v in os.environ.items() if k not in about_this} | {
        CONFIG: str(no_settings(folder))
    }


def no_settings(folder: Path) -> Path:
    """Return an empty file of settings for the processes of another environment.

    With the user's settings, an environment with this distribution would ask itself
    without end.
    """
    path = folder / "delegraph.toml"
    path.touch(mode=0o600)
    return path


def _ask(setting: Setting) -> dict[str, Any]:
    """Let the environment describe the backend."""
    command = [setting.python, "-m", "delegraph_workers.describe", setting.backend]
    with tempfile.TemporaryDirectory(prefix="delegraph-") as nowhere:
        environment = variables_there(Path(nowhere))
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
        told = json.loads(done.stdout.decode("utf-8", "replace").splitlines()[-1])
    except (ValueError, IndexError):
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or [
            f"exit code {done.returncode}"
        ]
        raise BadSettings(
            f"{setting.python} does not describe {setting.backend!r}: {said[0]:.300}"
        ) from None
    if not isinstance(told, dict) or "error" in told:
        why = (
            str(told["error"])
            if isinstance(told, dict)
            else f"it answered {told!r:.80} for {setting.backend!r}"
        )
        raise BadSettings(f"{setting.python}: {why}")
    if not _is_description(told):
        text = (
            f"{setting.python} describes {setting.backend!r} in no known form; has it"
            " another delegraph-workers?"
        )
        raise BadSettings(text)
    return told
