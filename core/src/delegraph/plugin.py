"""The declarations and hooks of plugins. This module imports only the standard library
and pluggy.

An entry point in the group ``delegraph`` names a *light module* of a distribution. Its
hook implementations return the declarations below. The ``target`` of a declaration
(``"package.module:Name"``) is imported when it is first used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, ClassVar, Protocol, get_args, get_type_hints

import pluggy

__all__ = [
    "API_VERSION",
    "IN_PROCESS",
    "BackendSpec",
    "BackendTraits",
    "CommandSpec",
    "CompilerSpec",
    "FlagSpec",
    "FormatSpec",
    "Hooks",
    "ModelSpec",
    "OptionSpec",
    "PartitionerSpec",
    "QuantizerSpec",
    "RemoteBackendSpec",
    "ReportSpec",
    "RuntimeSpec",
    "hookimpl",
]

PROJECT = "delegraph"
"""Name of the pluggy project and of the entry-point group."""
IN_PROCESS = "in-process"
"""The name in place of a distribution, for plugins that were registered in this process.
"""
API_VERSION = 1
"""The version of this contract. ``BackendSpec.api`` is the version for which a plugin
was written.
"""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


def _as_tuple(spec: Any, field: str) -> None:
    """Convert the field of ``spec`` called ``field`` to a tuple. Raises TypeError
    unless it is a tuple or a list.
    """
    value = getattr(spec, field)
    if not isinstance(value, (tuple, list)):
        raise TypeError(f"{type(spec).__name__}: {field} is a tuple, not {value!r}")
    # declarations are frozen, so ``setattr`` would raise an error
    object.__setattr__(spec, field, tuple(value))


@dataclass(frozen=True)
class OptionSpec:
    """One option of a backend: ``options={"<backend>": {"<name>": value}}`` or
    ``--option <backend>.<name>=value``.

    ``type``: str, int, float, bool, or list for a list of texts. Text from the command
    line is converted to this type; commas separate the entries of a list. ``default``:
    None leaves the value to the partitioner. ``choices``: the allowed values; empty
    allows all.
    """

    name: str
    type: type = str
    default: Any = None
    choices: tuple[Any, ...] = ()
    help: str = ""

    def __post_init__(self) -> None:
        """Raise TypeError or ValueError for wrong fields; ``choices`` becomes a tuple."""
        if self.type not in (str, int, float, bool, list):
            raise TypeError(
                f"option {self.name!r}: type is str, int, float, bool or list, not"
                f" {self.type!r}"
            )
        _as_tuple(self, "choices")
        if self.default is not None and not self.accepts(self.default):
            raise ValueError(
                f"option {self.name!r}: its own default {self.default!r} is not"
                f" {self.values}"
            )

    def accepts(self, value: Any) -> bool:
        """Return whether ``value`` has the option's type and, if the option has
        choices, is one of them.

        An int is accepted for float, and a tuple for list. A bool is not accepted for
        int, although Python's bools are ints. Entries of a list must be texts; choices
        do not apply to them.
        """
        if self.type is list:
            return isinstance(value, (list, tuple)) and all(
                isinstance(entry, str) for entry in value
            )
        if isinstance(value, bool) and self.type is not bool:
            return False
        types = (int, float) if self.type is float else (self.type,)
        if not isinstance(value, types):
            return False
        return not self.choices or value in self.choices

    @property
    def values(self) -> str:
        """Return the values that the option accepts, in words."""
        if self.choices:
            return "one of " + ", ".join(map(repr, self.choices))
        return "a list of texts" if self.type is list else self.type.__name__


@dataclass(frozen=True)
class FlagSpec(OptionSpec):
    """An option of a compiler: the flag ``--name`` of ``delegraph lower``.

    ``metavar``: the name of the value in ``--help``. ``bare``: the value if the user
    writes the flag alone; None if the flag needs a value.
    """

    metavar: str = ""
    bare: Any = None


class _WithTarget:
    """Makes the attribute ``target`` known to type checkers.

    A field of ``Declaration`` would have the same position in all kinds of
    declarations. But in each kind, ``target`` comes after the name.
    """

    target: str


@dataclass(frozen=True, kw_only=True)
class Declaration(_WithTarget):
    """Base class of all declarations. A declaration has a name, and an object that is
    imported when it is used.

    Each kind of declaration is a subclass. Its class variables are all that discovery
    knows about the kind. ``noun``: the name of such an object in texts. ``key_field``:
    the field that has the object's name. ``base``: the class of which the object must
    be a subclass; "" for any object. ``rule``: a further rule for the object, which
    errors quote. ``alone``: the object is useful without a backend. ``without``: a
    text for errors about a missing module, with the use that the object still has.

    ``target``: the object, as ``"package.module:Name"``. ``requires``: modules that
    must be importable for the object. ``install_hint``: how to install these modules.
    """

    noun: ClassVar[str]
    key_field: ClassVar[str] = "name"
    base: ClassVar[str] = ""
    rule: ClassVar[str] = ""
    alone: ClassVar[bool] = False
    without: ClassVar[str] = ""

    requires: tuple[str, ...] = ()
    install_hint: str = ""

    def __post_init__(self) -> None:
        """Check the fields, and convert lists to tuples.

        Raises ValueError for a text of a wrong form. Raises TypeError if a field for a
        tuple has neither a tuple nor a list.
        """
        for field in fields(self):
            if field.name in _TEXT_FIELDS:
                pattern, meaning = _TEXT_FIELDS[field.name]
                value = getattr(self, field.name)
                if not isinstance(value, str) or not pattern.fullmatch(value):
                    raise ValueError(
                        f"{type(self).__name__}: {field.name} is {meaning}, not"
                        f" {value!r}"
                    )
            elif field.default == ():
                # this default marks a field for a tuple; authors may pass a list
                _as_tuple(self, field.name)

    @property
    def key(self) -> str:
        """Return the name for look-up. A plugin must not make two declarations of one
        kind with the same key.
        """
        return str(getattr(self, self.key_field))

    @property
    def title(self) -> str:
        """Return the declaration in words, for errors: ``command 'check'``."""
        return f"{self.noun} {self.key!r}"

    @classmethod
    def meant_by(cls, asked: str) -> Iterator[str]:
        """Yield the keys to look up for ``asked``, the name that a user wrote.

        A subclass may yield several keys; the first one that is found counts.
        """
        yield asked

    def why_not(self, found: Any) -> str | None:
        """Return why ``found``, the imported object of ``target``, is not of the
        declared kind; None if it is.

        The caller has checked that ``found`` is a subclass of ``base``.
        """
        return None if callable(found) else "cannot be called"


class OfBackend(Declaration):
    """Base class of declarations for a backend, which may be another distribution's.
    Their key is the name of the backend.
    """

    key_field = "backend"

    @property
    def title(self) -> str:
        return f"{self.noun} of {self.key!r}"


class BySuffix(Declaration):
    """Base class of declarations that a file's name chooses: the declaration of the
    longest suffix of the name. Upper and lower case are equal.
    """

    key_field = "suffix"
    alone = True

    @property
    def key(self) -> str:
        """Return the suffix in lower case."""
        return super().key.lower()

    @property
    def title(self) -> str:
        return f"{self.noun} {self.key}"

    @classmethod
    def meant_by(cls, asked: str) -> Iterator[str]:
        """Return the suffixes of the file name ``asked``, longest first:
        ``.nodes.json``, then ``.json``.
        """
        name = re.split(r"[/\\]", asked.lower())[-1]
        return (name[k:] for k, letter in enumerate(name) if letter == ".")


@dataclass(frozen=True)
class BackendTraits:
    """Properties of a backend that few backends have, for ``BackendSpec.traits``.

    ``isolated=True``: the compiler may end or hang its process, so ``delegraph.lower``
    always runs the compiler in another process. This needs ``delegraph-workers``.

    ``checksum=False``: the runtime may not notice changed bytes of a blob.
    ``known_differences``: operators that differ from eager on NaN, infinity or integers
    at the ends of their range, as ``(("aten.gelu.default", "of infinity is NaN"),)``.
    Spaces separate several operators of one text. ``delegraph check`` reads
    ``checksum`` and ``known_differences``.

    ``composes``: distributions that influence the compiled blob, besides the backend's
    own, delegraph and torch. A cached result is used only with the same versions of
    these. ``independent_of``: ``("torch", "delegraph")`` or one of them, if the blob
    depends only on the program's graph and the backend's own code. A cached result is
    then used with other versions of these, too.
    """

    isolated: bool = False
    checksum: bool = True
    known_differences: tuple[tuple[str, str], ...] = ()
    composes: tuple[str, ...] = ()
    independent_of: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Convert lists to tuples. Raises TypeError for values of other types, for an
        unknown name in ``independent_of``, and for a difference that is no pair.
        """
        for field in ("known_differences", "composes", "independent_of"):
            _as_tuple(self, field)
        if not {*self.independent_of} <= {"torch", "delegraph"}:
            raise TypeError(
                'independent_of has "torch", "delegraph" or both, not'
                f" {self.independent_of!r}"
            )
        for pair in self.known_differences:
            if not isinstance(pair, tuple) or [type(v) for v in pair] != [str, str]:
                raise TypeError(
                    f"a known difference is a pair (operator, text), not {pair!r}"
                )


@dataclass(frozen=True)
class BackendSpec(Declaration):
    """A backend; ``target`` is its class.

    ``name``: short name. ``backend_id``: name of the class, which program files store.
    ``api``: version of the plugin API for which the backend was written.

    ``default=True``: use this backend if several are installed and the user names none.
    If several of these are declared as default, the user has to choose.

    ``traits``: properties that few backends have.
    """

    noun = "backend"
    base = "delegraph.backend:BackendDetails"
    rule = "backend_id is the class's name"

    name: str
    target: str
    backend_id: str
    api: int
    summary: str = ""
    _: KW_ONLY
    options: tuple[OptionSpec, ...] = ()
    default: bool = False
    traits: BackendTraits = BackendTraits()

    def __post_init__(self) -> None:
        """Check the fields as ``Declaration.__post_init__`` does, and the type of
        ``api``. Raises TypeError if ``api`` is not an int.
        """
        super().__post_init__()
        if type(self.api) is not int:
            raise TypeError(
                f"BackendSpec {self.name!r}: api is an int, not {self.api!r}"
            )

    def why_not(self, found: Any) -> str | None:
        """Return why ``found``, the imported class, is not the declared backend; None
        if the name of the class is ``backend_id``.
        """
        name = found.__name__
        return None if name == self.backend_id else self.wrong_id(name)

    def wrong_id(self, class_name: str) -> str:
        """Return the reason why a class of the name ``class_name`` is not the declared
        backend.
        """
        return (
            f"is called {class_name}, and backend_id says {self.backend_id!r}; the"
            " class's name is the backend id"
        )


@dataclass(frozen=True)
class RemoteBackendSpec(BackendSpec):
    """A backend that is installed in another environment.

    ``target`` is a class that forwards calls to that environment. Its method
    ``installed()`` returns a JSON value that describes the installed code, for the keys
    of caches.

    ``origin``: (distribution, version) with the backend, for reports and files.
    ``location``: the environment, and the setting that names the environment, for
    listings and errors. ``unusable``: why the environment cannot be used; "" if it can.
    """

    origin: tuple[str, str] | None = None
    location: str = ""
    unusable: str = ""


@dataclass(frozen=True)
class PartitionerSpec(OfBackend):
    """A partitioner of ``backend`` (a short name). Its class is called with the
    backend's options as keyword arguments.

    ``default``: use this partitioner if the backend has several.
    """

    noun = "partitioner"
    base = "delegraph.partitioner:Partitioner"

    name: str
    backend: str
    target: str
    default: bool = False


@dataclass(frozen=True)
class RuntimeSpec(OfBackend):
    """The runtime of ``backend`` on this host; ``target`` is a subclass of
    ``delegraph.runtime.BackendRuntime``.

    ``native``: the kind of native code that a blob is, such as ``"machine code"``, or
    ``"a program for X's compiler"``. Declare it if a forged blob could run code or read
    memory outside the blob. ``load(allow_native=False)`` refuses files with such blobs,
    and ``delegraph run`` names them. "" means that the runtime checks the whole blob.
    """

    noun = "runtime"
    base = "delegraph.runtime:BackendRuntime"
    without = "it compiles and cannot run here"

    backend: str
    target: str
    native: str = ""


@dataclass(frozen=True)
class QuantizerSpec(OfBackend):
    """The quantizer of ``backend``; ``target`` is a subclass of torchao's
    ``Quantizer``, called without arguments.

    ``requires`` usually names torchao.
    """

    noun = "quantizer"
    rule = "a quantizer is a class, or something else that can be called"
    without = "it compiles models that are quantized already"

    backend: str
    target: str


@dataclass(frozen=True)
class FormatSpec(BySuffix):
    """A file format for a suffix (``".tosa"``); ``target`` is a subclass of
    ``delegraph.formats.ProgramFormat``.

    ``runtimes``: names of the runtimes that the format's ``load_in`` accepts.
    ``folder=True``: files of the format are folders, like packages of macOS. The
    format's ``write`` makes these folders.
    """

    noun = "file format"
    base = "delegraph.formats:ProgramFormat"

    suffix: str
    target: str
    summary: str = ""
    runtimes: tuple[str, ...] = ()
    folder: bool = False


@dataclass(frozen=True)
class ReportSpec(BySuffix):
    """A report format for a suffix (``".html"``); ``target`` is a subclass of
    ``delegraph.report.ReportFormat``.
    """

    noun = "report format"
    base = "delegraph.report:ReportFormat"

    suffix: str
    target: str
    summary: str = ""


@dataclass(frozen=True)
class ModelSpec(Declaration):
    """A source of models: for ``scheme:name`` on the command line, and for objects of
    certain types in ``lower``.

    ``target`` is a function. It is called with the text after the colon, or with an
    instance of one of the classes ``types`` (``"package.module:Class"``). The function
    returns the same as the function of a model file: a module or ExportedProgram with
    its example inputs, or a dictionary of such pairs by method.
    """

    noun = "model scheme"
    key_field = "scheme"
    rule = "it is a function of the text behind the scheme"
    alone = True

    scheme: str
    target: str
    types: tuple[str, ...] = ()
    summary: str = ""


@dataclass(frozen=True)
class CommandSpec(Declaration):
    """A command ``delegraph <name>``; ``target`` is a class with the static methods of
    ``delegraph.command.Command``.

    ``summary``: the command's line in ``delegraph --help``.
    """

    noun = "command"
    rule = "a command has the methods of delegraph.command.Command"
    alone = True

    name: str
    target: str
    summary: str = ""

    def why_not(self, found: Any) -> str | None:
        """Return which methods of a command ``found`` lacks; None if it has all."""
        absent = [
            n for n in ("add_arguments", "run") if not callable(getattr(found, n, None))
        ]
        return f"has no {' and no '.join(absent)}" if absent else None


@dataclass(frozen=True)
class CompilerSpec(Declaration):
    """A compiler for ``delegraph.lower(compiler=...)``; ``target`` is a class with the
    interface of ``delegraph.compiler.Compiler``.

    delegraph calls the class with the ``options`` that the user gave as flags, as
    keyword arguments in which ``_`` replaces ``-``. ``default=True``: if the user
    passes no compiler, ``lower`` uses this one for isolated backends, and if the
    environment variable ``DELEGRAPH_CACHE`` is set.
    """

    noun = "compiler"
    rule = "it is called with its options, and returns a delegraph.compiler.Compiler"
    alone = True

    name: str
    target: str
    options: tuple[FlagSpec, ...] = ()
    default: bool = False


_TEXT_FIELDS = {
    "name": (re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*"), "a short name such as 'tosa'"),
    "backend_id": (re.compile(r"[A-Za-z_]\w*"), "the name of the backend's class"),
    "target": (re.compile(r"[\w.]+:\S+"), "'package.module:Name'"),
    "scheme": (re.compile(r"[a-z][a-z0-9_+-]+"), "a word such as 'timm'"),
    "suffix": (re.compile(r"\.[A-Za-z0-9_.]+"), "a file suffix such as '.tosa'"),
    "native": (re.compile(r"[^\n]{0,100}"), "a short text such as 'machine code'"),
}
"""Field of a declaration -> (pattern that its value must match, description of such
values for errors).
"""


class Hooks(Protocol):
    """The hooks of a plugin. Each returns a list of declarations."""

    @hookspec
    def delegraph_backends(self) -> Iterable[BackendSpec]:
        """Return the backends of this distribution."""

    @hookspec
    def delegraph_partitioners(self) -> Iterable[PartitionerSpec]:
        """Return the partitioners of this distribution."""

    @hookspec
    def delegraph_runtimes(self) -> Iterable[RuntimeSpec]:
        """Return the runtimes of this distribution."""

    @hookspec
    def delegraph_quantizers(self) -> Iterable[QuantizerSpec]:
        """Return the quantizers of this distribution."""

    @hookspec
    def delegraph_formats(self) -> Iterable[FormatSpec]:
        """Return the file formats that this distribution reads or writes."""

    @hookspec
    def delegraph_commands(self) -> Iterable[CommandSpec]:
        """Return the commands that this distribution adds to ``delegraph``."""

    @hookspec
    def delegraph_compilers(self) -> Iterable[CompilerSpec]:
        """Return the compilers of this distribution.

        A compiler replaces the compilation in ``lower``, for example by a cache or by
        processes that compile in parallel.
        """

    @hookspec
    def delegraph_reports(self) -> Iterable[ReportSpec]:
        """Return the report formats that this distribution writes."""

    @hookspec
    def delegraph_models(self) -> Iterable[ModelSpec]:
        """Return the sources of models that this distribution reads."""


DECLARATION_OF: dict[str, type[Declaration]] = {
    # Iterable[BackendSpec] -> BackendSpec
    name: get_args(get_type_hints(hook)["return"])[0]
    for name, hook in vars(Hooks).items()
    if name.startswith("delegraph_")
}
"""Name of a hook -> the class of the declarations that it returns."""
