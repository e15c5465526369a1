"""Saves, loads and shows programs in the formats that plugins offer; errors name the
plugin.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from ..discovery.first_party import provided
from ..discovery.plugin_errors import AtWork
from ..discovery.registry import Registry
from ..errors import ContractViolation, InputError, NoRuntime, OptionError
from ..formats import (
    Blob,
    FileTimer,
    ProgramContents,
    ProgramFormat,
    Quantization,
    Summary,
    defines,
    write_files,
)
from ..io.escape import printable
from ..io.lazy_blob import is_blob
from ..io.paths import as_path
from ..plugin import FormatSpec
from ..runtime import BEGINNING, BlobHeader
from .compatibility import ProgramCompatibility, compatibility_of


class LoadedProgram:
    """A program that was read from a file, called as before it was saved. ``methods``:
    name -> function.
    """

    def __init__(
        self, methods: Mapping[str, Callable[..., Any]], file: FileFormat
    ) -> None:
        self._methods = dict(methods)
        self._file = file

    def __repr__(self) -> str:
        return (
            f"<LoadedProgram {printable(self._file.path.name)}:"
            f" {printable(', '.join(self.methods))}>"
        )

    @property
    def methods(self) -> list[str]:
        """Return names of the methods."""
        return list(self._methods)

    def method(self, name: str) -> Callable[..., Any]:
        """Return a method to call. Raises InputError if there is none of that name."""
        if name not in self._methods:
            hint = "choose one: loaded.method(name), on the command line --method NAME"
            raise InputError(
                "input-invalid",
                f"there is no method {name!r}; methods: {self.methods}",
                hint=hint,
            )
        return self._methods[name]

    @property
    def quantization(self) -> Quantization:
        """Return the scales and zero points of the program's quantized inputs and
        outputs, by name, as the file has them.

        Raises OptionError if the format cannot tell, FormatError for a damaged file.
        """
        return cast(Quantization, self._file.quantization(self._file.path))

    @property
    def summary(self) -> Summary:
        """Return facts about the file, such as names, types and shapes of inputs and
        outputs.

        ``delegraph_analysis.summary_text`` prints them. Raises OptionError if the
        format cannot tell.
        """
        return cast(Summary, self._file.summarize(self._file.path))

    @property
    def named_data(self) -> Mapping[str, bytes | memoryview]:
        """Return named data in the file by key; {} for formats without it. Raises
        FormatError for a damaged file.
        """
        if not self._file.defines("named_data"):
            return {}
        return cast(
            "Mapping[str, bytes | memoryview]", self._file.named_data(self._file.path)
        )

    def compatible(self, device: str | None = None) -> ProgramCompatibility:
        """Return whether each delegate of the file can run on this host, or on
        ``device`` if named, as its runtime judges.

        The delegates need not be loaded for this. Raises OptionError if files of the
        format do not say which delegates they hold.
        """
        return self._file.compatible(device)

    def profile(
        self, *args: Any, repeats: int = 10, method: str | None = None, **kwargs: Any
    ) -> Any:
        """Where the time of a call goes: see ``delegraph_analysis.profile_file``. Calls
        the file's program anew.
        """
        profile = provided("delegraph_analysis:profile_file", "profile()")
        return profile(
            self._file,
            *args,
            repeats=repeats,
            method=method or self.only_method,
            **kwargs,
        )

    @property
    def native_blobs(self) -> dict[str, str]:
        """Return the kind of native code by backend, for the delegates in the file that
        are native code.
        """
        return self._file.native_blobs()

    @property
    def only_method(self) -> str:
        """Return the method of calls that name none: the only one, or ``forward``."""
        return self.methods[0] if len(self._methods) == 1 else "forward"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call ``forward``, or the only method."""
        return self.method(self.only_method)(*args, **kwargs)


class FileFormat:
    """The format of one file, chosen by the name of ``path``. ``suffix`` is the
    format's.

    Methods of the format are called through this object, so that errors in them name
    the plugin.
    """

    def __init__(self, path: str | os.PathLike[str], registry: Registry) -> None:
        """Raises InputError if ``path`` cannot name a file, and the errors of
        ``Registry.get_format``.
        """
        self.path = as_path(path)
        self.registry = registry
        self.kind: type[ProgramFormat] = registry.get_format(self.path)
        spec = registry.find(FormatSpec, os.fspath(self.path))
        self.suffix = spec.suffix
        self.is_folder = spec.folder

    def defines(self, ability: str) -> bool:
        """Return whether the format defines the method ``ability`` of
        ``ProgramFormat``.
        """
        return defines(self.kind, ability)

    def __getattr__(self, ability: str) -> Callable[..., Any]:
        """Return the format's method ``ability``, such as ``file.serialize``; errors in
        it name the plugin.

        Called for each attribute that this class does not have itself. Raises
        OptionError if the format does not define the method.
        """
        if not self.defines(ability):
            raise OptionError(
                "option-invalid", f"the format of {self.suffix} files has no {ability}"
            )
        return self._work(ability).around(getattr(self.kind, ability))

    def why_not(self, backend_ids: Collection[str]) -> str | None:
        """Return why programs for these backends cannot be saved in this format; None
        if they can.
        """
        return self._work("why_not").around(self.kind.why_not)(backend_ids)

    def _work(self, doing: str) -> AtWork:
        """Return the context manager that attributes errors in ``doing`` to the
        format's plugin.
        """
        return AtWork(self.kind, doing, str(self.path), registry=self.registry)

    def contents(
        self, program: ProgramContents, options: Mapping[str, Any]
    ) -> dict[str, bytes | Blob]:
        """Return file name -> contents, for all files of a program.

        The name of the program's own file is ``""``; its folder gets the others, too.
        ``options``: those of ``save``. Raises ContractViolation if the format returns
        something else than bytes and Blobs.
        """
        if self.defines("files"):
            contents = self.files(program, options)
            function = "files"
        else:
            contents = {"": self.serialize(program, options)}
            function = "serialize"
        if not isinstance(contents, Mapping) or "" not in contents:
            raise ContractViolation(
                "contract-violation",
                f"{self.kind.__name__}.files returned no file of the program",
            )
        for content in contents.values():
            if not isinstance(content, bytes) and not is_blob(content):
                text = (
                    f"{self.kind.__name__}.{function} returned"
                    f" {type(content).__name__}, not bytes or a Blob"
                )
                raise ContractViolation("contract-violation", text)
        # a Blob's code runs when it is written; errors in it name the plugin, too
        work = self._work("write_to")
        return {
            name: c if isinstance(c, bytes) else _AttributedBlob(c, work)
            for name, c in contents.items()
        }

    def save(self, program: ProgramContents, options: Mapping[str, Any]) -> int:
        """Write a program to the path, completely or not at all; returns the size of
        the file in bytes.

        ``options``: those of ``save``. Unless the format writes files itself, the
        format only makes the bytes and delegraph writes them: an error of the disk then
        does not count as the plugin's.
        """
        if self.defines("write"):
            self.write(program, self.path, options)
            written = self.path.rglob("*") if self.is_folder else [self.path]
            return sum(file.stat().st_size for file in written)
        contents = self.contents(program, options)
        write_files(contents, self.path)
        return len(contents[""])

    def native_blobs(self, runtime: str | None = None) -> dict[str, str]:
        """Return the kind of native code by backend id, for the delegates that are
        native code where they run.

        A ``runtime`` that executes the whole file executes all delegates with native
        code of its own. {} for a format that does not list its delegates.
        """
        if not self.defines("blobs"):
            return {}
        found = {}
        for blob in self.blobs(self.path):
            backend_id = blob.header.backend_id
            kind = self.registry.native_code(backend_id)
            if kind or runtime is not None:
                found[backend_id] = kind or f"a program for {runtime}"
        return found

    def check_native(self, runtime: str | None = None) -> None:
        """Raise InputError if the file has delegates that are native code."""
        for backend_id, kind in self.native_blobs(runtime).items():
            raise _native_refused(self.path, backend_id, kind)

    def load(
        self,
        runtime: str | None = None,
        timer: FileTimer | None = None,
        allow_native: bool = True,
        **limits: int | None,
    ) -> LoadedProgram:
        """Read the program in the file, for this host or for the ``runtime`` of that
        name.

        ``timer`` gets the times of this host's calls: of delegates, and of all
        instructions if the format has ``profile``. ``limits``, except those that are
        None, are passed to the format's ``read``. ``allow_native``: whether delegates
        may be native code. Raises InputError for a file that cannot be opened, or that
        has native code which is not allowed, NoRuntime if the runtime does not execute
        such files, OptionError for a limit that the format does not have.
        """
        bounds = self._bounds(runtime, limits)
        # a file that is missing is the user's mistake, and not an error of the plugin
        # that reads it
        try:
            if self.is_folder:
                os.listdir(self.path)
            else:
                self.path.open("rb").close()
        except OSError as e:
            hint = None
            if isinstance(e, NotADirectoryError):
                hint = (
                    f"a {self.suffix} file is a folder: unpack it if it is an archive"
                )
            text = f"cannot read {self.path}: {e.strerror or e}"
            raise InputError("input-invalid", text, hint=hint) from e
        if runtime is not None and self.suffix != self.registry.suffix_for(runtime):
            raise NoRuntime(
                "no-runtime",
                f"the runtime {runtime!r} does not execute {self.suffix} files",
            )
        if not allow_native:
            self.check_native(runtime)
        load_delegate = _DelegateLoader(self, timer, allow_native)
        if runtime:
            methods = self.load_in(runtime, self.path)
        elif timer is not None and self.defines("profile"):
            methods = self.profile(self.path, load_delegate, timer.see)
        else:
            methods = self.read(self.path, load_delegate, **bounds)
        if (
            not isinstance(methods, Mapping)
            or not methods
            or not all(map(callable, methods.values()))
        ):
            text = (
                f"{self.kind.__name__}.read returned {type(methods).__name__}, not the"
                " methods of a program by name"
            )
            raise ContractViolation("contract-violation", text)
        call = self._work("call")
        from .executor import uncompiled  # imports torch

        attributed = {
            name: uncompiled(call.around(method)) for name, method in methods.items()
        }
        return LoadedProgram(attributed, self)

    def compatible(self, device: str | None = None) -> ProgramCompatibility:
        """Return whether each delegate in the file can run here, or on ``device``, as
        its runtime judges; nothing is loaded.

        Raises OptionError if files of the format do not say which delegates they hold.
        """
        blobs = self.blobs(self.path)
        answers = (
            compatibility_of(blob.header, blob.compile_specs, self.registry, device)
            for blob in blobs
        )
        return ProgramCompatibility(tuple(zip(blobs, answers, strict=True)))

    def _bounds(
        self, runtime: str | None, limits: Mapping[str, int | None]
    ) -> dict[str, int]:
        """Return the limits of ``load`` that the user gave: ``limits`` without those
        that are None.

        Raises OptionError for a limit that is no natural number, or that the format's
        ``read`` has no parameter for. A ``runtime`` that executes the whole file has no
        limits.
        """
        bounds = {name: value for name, value in limits.items() if value is not None}
        for name, value in bounds.items():
            if (
                runtime is not None
                or name not in inspect.signature(self.kind.read).parameters
            ):
                owner = (
                    f"the runtime {runtime!r} has"
                    if runtime
                    else f"the format of {self.suffix} files has"
                )
                raise OptionError("option-invalid", f"{owner} no limit {name!r}")
            if type(value) is not int or value < 0:
                raise OptionError(
                    "option-invalid", f"{name} is a natural number, not {value!r}"
                )
        return bounds


@dataclass(frozen=True)
class _DelegateLoader:
    """Makes functions of the delegates in a file (``formats.LoadDelegate``)."""

    file: FileFormat
    timer: FileTimer | None
    allow_native: bool

    def __call__(
        self,
        backend_id: str,
        processed_bytes: bytes,
        compile_specs: Any = (),
        named_data: Mapping[str, bytes] | None = None,
        header: BlobHeader | None = None,
    ) -> Callable[..., tuple[Any, ...]]:
        """Return a delegate in the file as a function, loaded at its first call.

        ``named_data``: None if the delegate has none. ``header``: None if the format
        keeps no facts about blobs; then it is made from the blob itself.
        """
        # imported late: a file that is only inspected needs no torch
        from .executor import Delegates, LoadedDelegate, StoredDelegate

        path = self.file.path
        registry = self.file.registry
        native = registry.native_code(backend_id)
        if native and not self.allow_native:
            raise _native_refused(path, backend_id, native)
        stored = StoredDelegate(
            backend_id,
            processed_bytes,
            list(compile_specs),
            dict(named_data or {}),
            f"a delegate of {path}",
            header
            or BlobHeader(
                backend_id, len(processed_bytes), bytes(processed_bytes[:BEGINNING])
            ),
        )
        if self.timer is None:
            return LoadedDelegate(stored, Delegates(registry))
        timed = provided("delegraph_analysis.observe:TimedDelegate", "timing a file")
        hook = timed(backend_id, partial(self.timer.spent, backend_id))
        return LoadedDelegate(stored, Delegates(registry), hook)


def _native_refused(path: Path, backend_id: str, kind: str) -> InputError:
    text = (
        f"{path} has native code, which is not allowed: a delegate of {backend_id} is"
        f" {kind}"
    )
    hint = (
        "allow it (allow_native=True; delegraph run without --no-native) only if you"
        " trust the maker of the file"
    )
    return InputError("input-invalid", text, hint=hint)


@dataclass(frozen=True, eq=False)
class _AttributedBlob:
    """A plugin's blob. Errors of its code name the plugin; errors of the file that it
    writes to stay OSErrors.
    """

    blob: Blob
    work: AtWork

    def __len__(self) -> int:
        return len(self.blob)

    def write_to(self, file: BinaryIO) -> None:
        """Write the bytes to ``file``; an error other than OSError names the plugin."""
        try:
            self.blob.write_to(file)
        except OSError:
            raise
        except BaseException:
            with self.work:  # makes the error name the plugin
                raise
