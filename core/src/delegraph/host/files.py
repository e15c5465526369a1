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
from ..discovery.plugin_call import PluginCall
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
from ..io.as_path import as_path
from ..io.blob_pieces import is_blob
from ..io.escape_for_terminal import printable
from ..plugin import FormatSpec
from ..runtime import BEGINNING, BlobHeader
from .blob_compatibility import ProgramCompatibility, compatibility_of


class LoadedProgram:
    """A program that was read from a file. Its methods are called like those of the
    program that was saved. ``methods``: name -> function.
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
        """Return the names of the methods."""
        return list(self._methods)

    def method(self, name: str) -> Callable[..., Any]:
        """Return a method to call. Raises InputError if there is none of that name."""
        if name not in self._methods:
            raise InputError(
                "input-invalid",
                f"there is no method {name!r}; methods: {self.methods}",
                hint="choose one: loaded.method(name), on the command line --method NAME",
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
        ``device`` if one is named. The runtimes of the delegates decide.

        No delegate is loaded. Raises OptionError if the format cannot list the
        delegates of a file.
        """
        return self._file.compatible(device)

    def profile(
        self, *args: Any, repeats: int = 10, method: str | None = None, **kwargs: Any
    ) -> Any:
        """Return the times of a call: see ``delegraph_analysis.profile_file``, which
        loads the file again.
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
        """Return backend id -> kind of native code, for the delegates in the file that
        are native code.
        """
        return self._file.native_blobs()

    @property
    def only_method(self) -> str:
        """Return the name of the method for calls that name none.

        It is the name of the only method, or "forward" if there are several, even if
        "forward" is not one of them.
        """
        if len(self._methods) == 1:
            return self.methods[0]
        return "forward"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the only method, or ``forward``. Raises InputError if there are several
        without ``forward``.
        """
        return self.method(self.only_method)(*args, **kwargs)


class FileFormat:
    """The format of one file, chosen by the name of ``path``. ``suffix``: the declared
    suffix of the format.

    Methods of the format are called through this object, so that errors in these
    methods name the plugin.
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
        """Return the format's method ``ability``, such as ``file.serialize``, as a
        function with errors that name the plugin.

        Called for each attribute that this class does not have itself. Raises
        OptionError if the format does not define the method.
        """
        if not self.defines(ability):
            raise OptionError(
                "option-invalid", f"the format of {self.suffix} files has no {ability}"
            )
        return self._call(ability).around(getattr(self.kind, ability))

    def why_not(self, backend_ids: Collection[str]) -> str | None:
        """Return why programs for these backends cannot be saved in this format; None
        if they can.
        """
        return self._call("why_not").around(self.kind.why_not)(backend_ids)

    def _call(self, doing: str) -> PluginCall:
        """Return the context manager for calls of the format's plugin. ``doing``: the
        plugin's task, for errors.
        """
        return PluginCall(self.kind, doing, str(self.path), registry=self.registry)

    def contents(
        self, program: ProgramContents, options: Mapping[str, Any]
    ) -> dict[str, bytes | Blob]:
        """Return file name -> contents, for all files of a program.

        The name of the program's own file is ``""``; the other files are written to the
        same folder. ``options``: those of ``save``. Raises ContractViolation if the
        format returns no own file, or something else than bytes and Blobs.
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
                raise ContractViolation(
                    "contract-violation",
                    f"{self.kind.__name__}.{function} returned"
                    f" {type(content).__name__}, not bytes or a Blob",
                )
        # the code of a Blob runs later, when the Blob is written; errors in that code
        # name the plugin, too
        call = self._call("write_to")
        return {
            name: c if isinstance(c, bytes) else _AttributedBlob(c, call)
            for name, c in contents.items()
        }

    def save(self, program: ProgramContents, options: Mapping[str, Any]) -> int:
        """Write a program to the path, completely or not at all; return the size in
        bytes of the file, or of all files in the folder.

        ``options``: those of ``save``. A format may define ``write``, and then writes
        its files itself. Otherwise the format only makes the bytes, and delegraph
        writes them, so an error of the disk does not count as an error of the plugin.
        """
        if self.defines("write"):
            self.write(program, self.path, options)
            paths = self.path.rglob("*") if self.is_folder else [self.path]
            return sum(path.stat().st_size for path in paths)
        contents = self.contents(program, options)
        write_files(contents, self.path)
        return len(contents[""])

    def native_blobs(self, runtime: str | None = None) -> dict[str, str]:
        """Return backend id -> kind of native code, for the delegates that are native
        code where they run.

        ``runtime``: the runtime that executes the whole file; None if each delegate
        runs in the runtime of its backend. A ``runtime`` executes native code for each
        delegate, so all delegates count. Returns {} if the format does not list its
        delegates.
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
        """Raise InputError if the file has delegates that are native code. The error
        names the first of them. ``runtime``: as in ``native_blobs``.
        """
        for backend_id, kind in self.native_blobs(runtime).items():
            raise _native_refused(self.path, backend_id, kind)

    def load(
        self,
        runtime: str | None = None,
        timer: FileTimer | None = None,
        allow_native: bool = True,
        **limits: int | None,
    ) -> LoadedProgram:
        """Read the program in the file. ``runtime``: the name of a runtime that
        executes the whole program; None: each delegate runs in its backend's runtime.

        ``timer`` gets the times of delegates, and those of all instructions if the
        format has ``profile``; with ``runtime``, the timer gets nothing. Entries of
        ``limits`` that are not None are passed to the format's ``read``.
        ``allow_native``: whether delegates may be native code.

        Raises InputError for a file that cannot be opened, or that has native code
        which is not allowed; NoRuntime if the runtime does not execute such files;
        OptionError for a limit that the format does not have.
        """
        bounds = self._bounds(runtime, limits)
        # if the file is missing, the user made a mistake, and not the plugin that reads
        # the file
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
            raise InputError(
                "input-invalid",
                f"cannot read {self.path}: {e.strerror or e}",
                hint=hint,
            ) from e
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
            raise ContractViolation(
                "contract-violation",
                f"{self.kind.__name__}.read returned {type(methods).__name__}, not the"
                " methods of a program by name",
            )
        call = self._call("call")
        from .executor import uncompiled  # imports torch

        attributed = {
            name: uncompiled(call.around(method)) for name, method in methods.items()
        }
        return LoadedProgram(attributed, self)

    def compatible(self, device: str | None = None) -> ProgramCompatibility:
        """Return whether each delegate in the file can run here, or on ``device``. The
        runtimes of the delegates decide; nothing is loaded.

        Raises OptionError if the format cannot list the delegates of a file.
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

        Raises OptionError for a limit that is no natural number, or for which the
        format's ``read`` has no parameter. With a ``runtime``, which executes the whole
        file, it raises OptionError for any limit.
        """
        bounds = {name: value for name, value in limits.items() if value is not None}
        for name, value in bounds.items():
            lacking = None  # the runtime or format that does not have this limit
            if runtime is not None:
                lacking = f"the runtime {runtime!r}"
            elif name not in inspect.signature(self.kind.read).parameters:
                lacking = f"the format of {self.suffix} files"
            if lacking is not None:
                raise OptionError("option-invalid", f"{lacking} has no limit {name!r}")
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
        keeps no facts about blobs; then a header is made from the blob itself. Raises
        InputError if the delegate is native code, and ``allow_native`` is False.
        """
        # imported late: a file that is only inspected needs no torch
        from .executor import Delegates, LoadedDelegate, StoredDelegate

        path = self.file.path
        registry = self.file.registry
        native = registry.native_code(backend_id)
        if native and not self.allow_native:
            raise _native_refused(path, backend_id, native)
        if header is None:
            beginning = bytes(processed_bytes[:BEGINNING])
            header = BlobHeader(backend_id, len(processed_bytes), beginning)
        stored = StoredDelegate(
            backend_id,
            processed_bytes,
            list(compile_specs),
            data=dict(named_data or {}),
            where=f"a delegate of {path}",
            header=header,
        )
        if self.timer is None:
            return LoadedDelegate(stored, Delegates(registry))
        timed = provided("delegraph_analysis.observe:TimedDelegate", "timing a file")
        hook = timed(backend_id, partial(self.timer.spent, backend_id))
        return LoadedDelegate(stored, Delegates(registry), hook)


def _native_refused(path: Path, backend_id: str, kind: str) -> InputError:
    """Return the error about a delegate that is native code, of this ``kind``."""
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
    """A plugin's blob. Errors in the blob's code name the plugin, except OSErrors,
    which come from the file that is written.
    """

    blob: Blob
    call: PluginCall

    def __len__(self) -> int:
        return len(self.blob)

    def write_to(self, file: BinaryIO) -> None:
        """Write the bytes to ``file``; an error other than OSError names the plugin."""
        try:
            self.blob.write_to(file)
        except OSError:
            raise
        except BaseException:
            with self.call:  # makes the error name the plugin
                raise
