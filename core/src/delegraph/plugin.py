"""What a plugin imports to declare itself. It imports the standard library and pluggy, and nothing else.

A distribution names a *light module* in its entry-point group ``delegraph``; hook implementations in it return the
declarations below. The ``target`` of a declaration (``"package.module:Name"``) is imported when it is first used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol, get_args, get_type_hints

import pluggy

__all__ = [
    "API_VERSION",
    "DECLARATION_OF",
    "EVENTS",
    "IN_PROCESS",
    "OPTION_TYPES",
    "PROJECT",
    "BackendSpec",
    "CommandSpec",
    "Declaration",
    "Declarations",
    "FormatSpec",
    "Hooks",
    "ModelSpec",
    "OptionSpec",
    "PartitionerSpec",
    "QuantizerSpec",
    "ReportSpec",
    "RuntimeSpec",
    "accepts",
    "expected",
    "hookimpl",
    "hookspec",
]

PROJECT = "delegraph"
"""Name of the pluggy project and of the entry-point group."""
IN_PROCESS = "in-process"
"""The distribution to which backends that are registered in this process belong."""
API_VERSION = 2
"""The version of this contract. ``BackendSpec.api`` says for which one a plugin was written."""

OPTION_TYPES = (str, int, float, bool)

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@dataclass(frozen=True)
class OptionSpec:
    """One option of a backend: ``options={"<backend>": {"<name>": value}}`` or ``--option <backend>.<name>=value``.

    ``type`` is one of str, int, float, bool; text from the command line is converted to it.
    """

    name: str
    type: type = str
    default: Any = None
    choices: tuple[Any, ...] = ()
    help: str = ""

    def __post_init__(self) -> None:
        if self.type not in OPTION_TYPES:
            raise TypeError(f"option {self.name!r}: type is str, int, float or bool, not {self.type!r}")
        _as_tuple(self, "choices")
        if self.default is not None and not accepts(self, self.default):
            raise ValueError(f"option {self.name!r}: its own default {self.default!r} is not {expected(self)}")


class Declaration:
    """Something that a plugin declares by name.

    Discovery gets everything that it needs to know about a kind from its class. The class says what such objects are
    called (``noun``), which class they are subclasses of (``base``), what else their authors are told if one is wrong
    (``rule``), whether they are of use without a backend (``alone``), and what a user cannot do if a requirement is
    missing (``without``).

    ``target`` says where the object is; ``requires`` names modules that must be importable, ``install_hint`` says how
    to get them.
    """

    noun: ClassVar[str]
    base: ClassVar[str] = ""
    rule: ClassVar[str] = ""
    alone: ClassVar[bool] = False
    without: ClassVar[str] = ""

    target: str
    requires: tuple[str, ...] = ()
    install_hint: str = ""

    became: ClassVar[Mapping[str, str]] = {}
    """Fields that declarations of an earlier round had -> what they have become, for authors who still give them."""

    def __new__(cls, *args: Any, **given: Any) -> Any:
        for name in cls.became.keys() & given.keys():
            told = "docs/compatibility.md, Renamed since 0.1.0"
            raise TypeError(f"{cls.__name__} has no {name!r} any more: {cls.became[name]} ({told})")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Check the fields where they are written, so that the traceback shows their author the line."""
        for field in fields(self):  # type: ignore[arg-type]  # each kind of declaration is a dataclass
            if field.name in _FORMS:
                pattern, meaning = _FORMS[field.name]
                value = getattr(self, field.name)
                if not isinstance(value, str) or not pattern.fullmatch(value):
                    raise ValueError(f"{type(self).__name__}: {field.name} is {meaning}, not {value!r}")
            elif field.default == ():
                _as_tuple(self, field.name)

    @property
    def key(self) -> str:
        """The name by which it is looked up; a plugin must not declare the same one twice."""
        raise NotImplementedError

    @property
    def title(self) -> str:
        """What errors call it: ``command 'check'``."""
        return f"{self.noun} {self.key!r}"

    @classmethod
    def meant_by(cls, asked: str) -> Iterator[str]:
        """The keys that a user who asks for ``asked`` may mean, the likeliest first."""
        yield asked

    def why_not(self, found: Any) -> str | None:
        """Why the object of ``target`` is not what this declares; None if it is.

        That it is a ``base`` was checked before.
        """
        return None if callable(found) else "cannot be called"


class OfBackend(Declaration):
    """A declaration that serves a backend (maybe another distribution's), found by the backend's name."""

    backend: str

    @property
    def key(self) -> str:
        return self.backend

    @property
    def title(self) -> str:
        return f"{self.noun} of {self.backend!r}"


class BySuffix(Declaration):
    """A declaration that a file's name chooses: the longest declared suffix counts, in upper or lower case."""

    suffix: str
    alone = True

    @property
    def key(self) -> str:
        return self.suffix.lower()

    @property
    def title(self) -> str:
        return f"{self.noun} {self.key}"

    @classmethod
    def meant_by(cls, asked: str) -> Iterator[str]:
        name = re.split(r"[/\\]", asked.lower())[-1]
        return (name[k:] for k, letter in enumerate(name) if letter == ".")


@dataclass(frozen=True)
class BackendSpec(Declaration):
    """A backend: its short ``name``, its ``backend_id`` (the class's name, stored in a ``.pte``), its class.

    ``requires`` names modules that must be importable. ``api`` is the plugin API version for which it was written.

    ``checksum=False`` says that changed bytes of a blob may go unnoticed. ``known_differences`` says where numbers are
    not eager's, on NaN, infinity or integers at the ends of their range: ``(("aten.gelu.default", "of infinity is
    NaN"),)``. ``delegraph check`` reads both.

    ``composes`` names the distributions whose code has a say in what the backend compiles, apart from its own,
    delegraph and torch; a cached result is found only with the same versions of them. ``isolated=True`` asks for a
    compiler that runs in a process of its own, where something is installed that can do that.

    ``default=True``: if several backends are installed and a user names none, this one is taken. If two that suit
    declare it, the user has to choose.
    """

    noun = "backend"
    base = "delegraph.backend:BackendDetails"
    became: ClassVar = {"formats": "declare FormatSpec(suffix, target) in the hook delegraph_formats"}
    rule = "backend_id is the class's name"

    name: str
    target: str
    backend_id: str
    api: int
    summary: str = ""
    requires: tuple[str, ...] = ()
    install_hint: str = ""
    options: tuple[OptionSpec, ...] = ()
    checksum: bool = True
    known_differences: tuple[tuple[str, str], ...] = ()
    default: bool = False
    composes: tuple[str, ...] = ()
    isolated: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.api) is not int:
            raise TypeError(f"BackendSpec {self.name!r}: api is an int, not {self.api!r}")
        if not all(isinstance(name, str) for name in self.composes):
            raise TypeError(f"BackendSpec {self.name!r}: composes is a tuple of distributions, not {self.composes!r}")
        if type(self.isolated) is not bool:
            raise TypeError(f"BackendSpec {self.name!r}: isolated is True or False, not {self.isolated!r}")
        for pair in self.known_differences:
            if not isinstance(pair, tuple) or [type(v) for v in pair] != [str, str]:
                raise TypeError(f"BackendSpec {self.name!r}: a known difference is (operator, text), not {pair!r}")

    @property
    def key(self) -> str:
        return self.name

    def why_not(self, found: Any) -> str | None:
        name = found.__name__
        if name == self.backend_id:
            return None
        return f"is called {name}, and backend_id says {self.backend_id!r}; the class's name is the backend id"


@dataclass(frozen=True)
class PartitionerSpec(OfBackend):
    """A partitioner of ``backend`` (its short name), called with the backend's options as keyword arguments."""

    noun = "partitioner"
    base = "delegraph.partitioner:Partitioner"

    name: str
    backend: str
    target: str
    default: bool = False


@dataclass(frozen=True)
class RuntimeSpec(OfBackend):
    """The class that executes the blobs of ``backend`` on this host: a ``delegraph.runtime.BackendRuntime``."""

    noun = "runtime"
    base = "delegraph.runtime:BackendRuntime"
    without = "it compiles and cannot run here"

    backend: str
    target: str
    requires: tuple[str, ...] = ()


@dataclass(frozen=True)
class QuantizerSpec(OfBackend):
    """The quantizer of ``backend``: a subclass of torchao's ``Quantizer`` that can be made without arguments.

    ``requires`` names modules that must be importable (usually torchao), ``install_hint`` says how to get them.
    """

    noun = "quantizer"
    rule = "a quantizer is a class, or something else that can be called"
    without = "it compiles what is quantized already"

    backend: str
    target: str
    requires: tuple[str, ...] = ()
    install_hint: str = ""


@dataclass(frozen=True)
class FormatSpec(BySuffix):
    """A file format, chosen by its suffix (``".tosa"``): a ``delegraph.formats.ProgramFormat``.

    ``requires`` names modules that must be importable, ``install_hint`` says how to get them. ``runtimes`` names
    runtimes that execute such files on this host, by the format's ``load_in``.
    """

    noun = "file format"
    became: ClassVar = {"backend": "its DelegateFormat names it as backend_id"}
    base = "delegraph.formats:ProgramFormat"

    suffix: str
    target: str
    summary: str = ""
    requires: tuple[str, ...] = ()
    install_hint: str = ""
    runtimes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReportSpec(BySuffix):
    """The class that writes reports to files with a suffix (``".html"``): a ``delegraph.reports.ReportFormat``."""

    noun = "report format"
    base = "delegraph.reports:ReportFormat"

    suffix: str
    target: str
    summary: str = ""
    requires: tuple[str, ...] = ()
    install_hint: str = ""


@dataclass(frozen=True)
class ModelSpec(Declaration):
    """Models from elsewhere: what ``scheme:name`` means as a MODEL, and which objects ``lower`` takes besides modules.

    ``target`` names a function. It is called with the text behind the colon, or with an object of one of ``types``
    (``"package.module:Class"``, or of a subclass). It returns what the function of a model file returns: a module or
    ExportedProgram with its example inputs, or a dictionary of such pairs by method.
    """

    noun = "model scheme"
    rule = "it is a function of the text behind the scheme"
    alone = True

    scheme: str
    target: str
    types: tuple[str, ...] = ()
    summary: str = ""
    requires: tuple[str, ...] = ()
    install_hint: str = ""

    @property
    def key(self) -> str:
        return self.scheme


@dataclass(frozen=True)
class CommandSpec(Declaration):
    """A command ``delegraph <name>``. The target is imported when the command is given.

    ``target`` names a class with the two static methods of ``delegraph.command.Command``. ``summary`` is its line
    in ``delegraph --help``. ``requires`` names modules that must be importable, ``install_hint`` says how to get them.
    """

    noun = "command"
    rule = "a command has what delegraph.command.Command has"
    alone = True

    name: str
    target: str
    summary: str = ""
    requires: tuple[str, ...] = ()
    install_hint: str = ""

    @property
    def key(self) -> str:
        return self.name

    def why_not(self, found: Any) -> str | None:
        absent = [n for n in ("add_arguments", "run") if not callable(getattr(found, n, None))]
        return f"has no {' and no '.join(absent)}" if absent else None


_FORMS = {
    "name": (re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*"), "a short name such as 'tosa'"),
    "backend_id": (re.compile(r"[A-Za-z_]\w*"), "the name of the backend's class"),
    "target": (re.compile(r"[\w.]+:\S+"), "'package.module:Name'"),
    "scheme": (re.compile(r"[a-z][a-z0-9_+-]+"), "a word such as 'timm'"),
    "suffix": (re.compile(r"\.[A-Za-z0-9_.]+"), "a file suffix such as '.tosa'"),
}
"""Field of a declaration -> how it is written, and what that is called."""


def _as_tuple(spec: Any, field: str) -> None:
    """Make the field of that name a tuple; TypeError if it is neither a tuple nor a list."""
    value = getattr(spec, field)
    if not isinstance(value, (tuple, list)):
        raise TypeError(f"{type(spec).__name__}: {field} is a tuple, not {value!r}")
    object.__setattr__(spec, field, tuple(value))


def accepts(option: OptionSpec, value: Any) -> bool:
    """Whether ``value`` has the option's type (an int is a float, a bool no number) and is one of its choices."""
    types = (int, float) if option.type is float else (option.type,)
    typed = isinstance(value, types) and (option.type is bool) == isinstance(value, bool)
    return typed and (not option.choices or value in option.choices)


def expected(option: OptionSpec) -> str:
    """The values that ``option`` takes, in words."""
    return "one of " + ", ".join(map(repr, option.choices)) if option.choices else option.type.__name__


class Hooks(Protocol):
    """The hooks of a plugin. Those without arguments return declarations; the last two are told of events."""

    @hookspec
    def delegraph_backends(self) -> Iterable[BackendSpec]:
        """The backends that this distribution offers."""

    @hookspec
    def delegraph_partitioners(self) -> Iterable[PartitionerSpec]:
        """The partitioners that this distribution offers."""

    @hookspec
    def delegraph_runtimes(self) -> Iterable[RuntimeSpec]:
        """The runtimes that this distribution offers."""

    @hookspec
    def delegraph_quantizers(self) -> Iterable[QuantizerSpec]:
        """The quantizers that this distribution offers."""

    @hookspec
    def delegraph_formats(self) -> Iterable[FormatSpec]:
        """The file formats that this distribution reads or writes."""

    @hookspec
    def delegraph_commands(self) -> Iterable[CommandSpec]:
        """The commands that this distribution adds to ``delegraph``."""

    @hookspec
    def delegraph_reports(self) -> Iterable[ReportSpec]:
        """The kinds of files that this distribution writes reports to."""

    @hookspec
    def delegraph_models(self) -> Iterable[ModelSpec]:
        """The models from elsewhere that this distribution reads."""

    @hookspec
    def delegraph_after_partition(self, report: Any) -> None:
        """A program was partitioned. An error that is raised here becomes a line in the report."""

    @hookspec
    def delegraph_after_lower(self, result: Any) -> None:
        """A program was lowered. An error that is raised here becomes a line in the report."""


EVENTS = ("delegraph_after_partition", "delegraph_after_lower")
DECLARATION_OF: dict[str, type[Declaration]] = {
    name: get_args(get_type_hints(hook)["return"])[0]
    for name, hook in vars(Hooks).items()
    if name.startswith("delegraph_") and name not in EVENTS
}
"""Hook -> the class of the declarations that it returns, in a list or tuple."""
Declarations = Sequence[Declaration]
