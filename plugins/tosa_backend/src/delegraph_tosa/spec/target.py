"""The target of a lowering: ``TOSA-1.0+FP+INT`` and its like."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache

from delegraph.errors import OptionError

from ..ir.graph import Operator, Value
from ..ir.types import FLOAT8, DType, Type, why_not_blocks
from .levels import Breach, Level
from .operator_table import FILES, OLDER, Version, load, rows

_FORM = re.compile(
    r"TOSA-([0-9]+)\.([0-9]+)(?:\.[0-9]+)?(\.draft)?((?:\+[\w-]+)*)", re.IGNORECASE
)
_DRAFTS = ((1, 1),)
_ALIASES = {"var": "variable", "cf": "controlflow"}
_LEVELS = {"8k": "8K", "nolevel": "NONE"}
PROFILES = ("FP", "INT")
OLDER_PROFILES = {"BI": frozenset({"INT"}), "MI": frozenset({"FP", "INT"})}
"""Maps profiles of TOSA 0.80 to those of 1.0; MI includes BI."""
_ROUNDINGS = {2: "EXT-INEXACTROUND", 3: "EXT-DOUBLEROUND"}
"""Rounding mode -> extension that RESCALE needs for it (specification: RESCALE)."""


MX_COMMON = "mx-common"
"""The extension that all others of block-scaled types need."""


@lru_cache(maxsize=len(FILES) + len(OLDER))
def extensions(version: Version = (1, 0)) -> dict[str, frozenset[str]]:
    """Extension of a version in lower case -> the profiles one of which it needs."""
    return {
        e["name"][4:].lower(): frozenset(
            profile.removeprefix("PRO-") for profile in e["with"]
        )
        for e in load(version)["extensions"]
    }


WhyNot = Callable[[Operator], str | None]
"""Why a device does not take an operator, or None."""

_DEVICES: dict[str, WhyNot] = {}


def narrow(name: str, why_not: WhyNot) -> None:
    """Register a device, a word of targets such as ``TOSA-1.0+INT+<name>``.

    ``why_not`` returns why the device does not take an operator, or None; the user
    reads the reason. It is called for operators that the target otherwise takes, with
    operands, attributes and ``outputs``. It may look at types, at attributes, at which
    operands are constant, and at the entries of constant SHAPEs (the scale of a
    RESIZE). It may not look at the elements of other constants: operators that are
    equal operators are checked once. Support check, lowering and validation use it, so each
    process that lowers calls this. Raises ValueError unless ``name`` is new and
    consists of lower-case letters and digits.
    """
    taken = {*_ALIASES, *_LEVELS, *(p.lower() for p in (*PROFILES, *OLDER_PROFILES))}
    taken |= {extension for version in FILES for extension in extensions(version)}
    if name in taken or not re.fullmatch("[a-z][a-z0-9]*", name):
        raise ValueError(
            f"{name!r} cannot name a device: it is taken, or not lower-case letters and digits"
        )
    if _DEVICES.setdefault(name, why_not) is not why_not:
        raise ValueError(f"{name!r} already names another device")


@dataclass(frozen=True)
class TosaSpec:
    """A version, profiles (FP, INT), extensions (``bf16``, ...) and a level.

    The level is 8K or NONE. ``devices``: words that narrow it further (``narrow``).

    Level 8K holds unless ``+nolevel`` removes it: it is the only one the
    specification defines, and no product promises to run more. ``str`` is
    canonical and does not name it.
    """

    version: tuple[int, int] = (1, 0)
    profiles: frozenset[str] = frozenset({"FP", "INT"})
    extensions: frozenset[str] = frozenset()
    level: str = "8K"
    devices: frozenset[str] = frozenset()

    @staticmethod
    def parse(text: str) -> TosaSpec:
        """Read ``TOSA-1.0+FP[+INT][+<extension>...][+8k|+nolevel]``.

        ``TOSA-1.1``, a draft; ``TOSA-0.80+BI``, ``+MI``. Order and case do not matter;
        Raises OptionError with the mistake and the valid words.
        """
        form = _FORM.fullmatch(text.strip())
        if form is None:
            raise _wrong(text, "it is not of the form TOSA-1.0+FP+INT")
        version = (int(form[1]), int(form[2]))
        if version not in FILES and version not in OLDER:
            raise _wrong(
                text,
                f"version {form[1]}.{form[2]} is not written; TOSA 1.0, 0.80 and the"
                " 1.1 draft are",
            )
        if form[3] and version not in _DRAFTS:
            raise _wrong(text, f"version {form[1]}.{form[2]} is no draft")
        words = [_word(word) for word in form[4].split("+")[1:]]
        return _from_words(text, version, words)

    def __str__(self) -> str:
        parts = [*self.profile_names, *sorted(self.extensions), *sorted(self.devices)]
        level = ["nolevel"] if self.level == "NONE" else []
        return "+".join([f"TOSA-{self.version[0]}.{self.version[1]}", *parts, *level])

    @cached_property
    def names(self) -> frozenset[str]:
        """Profiles and extensions as TOSA 1.0 writes them: PRO-FP, EXT-BF16.

        Of 0.80 also the extensions that its profiles include.
        """
        named = {f"PRO-{p}" for p in self.profiles} | {
            f"EXT-{e.upper()}" for e in self.extensions
        }
        return frozenset(named) | included(self.version)

    @property
    def profile_names(self) -> tuple[str, ...]:
        """The profiles as the version calls them."""
        if self.version in OLDER:
            return ("MI" if "FP" in self.profiles else "BI",)
        return tuple(p for p in PROFILES if p in self.profiles)

    def with_names(self, names: frozenset[str]) -> TosaSpec:
        """Return the target with more ``names``, and the profiles that they need."""
        added = {_word(name[4:]) for name in names if name.startswith("EXT-")}
        profiles = self.profiles | {
            name[4:] for name in names if name.startswith("PRO-")
        }
        for need in (extensions(self.version)[name] for name in sorted(added)):
            profiles |= set() if need & profiles else {min(need)}
        return replace(self, profiles=profiles, extensions=self.extensions | added)

    @cached_property
    def has_int64(self) -> bool:
        """Whether tensors of int64 are taken as they are (EXT-INT64)."""
        return self.why_not_tensor(Type((1,), DType.INT64)) is None

    @property
    def takes_dynamic(self) -> bool:
        """Whether tensors may have sizes that are known at run time only."""
        return self.version > (1, 0)

    @property
    def max_nesting(self) -> int:
        """How deep control flow may be nested (MAX_NESTING of the level)."""
        return _level(self.level, self.version).limits["max_nesting"]

    def why_not(self, operator: Operator) -> str | None:
        """Return why this target does not take ``operator``, or None.

        Its ``outputs`` must be set.
        """
        return self._why_not_types(operator) or next(
            (limit for _, limit in self._limits(operator)), None
        )

    def why_not_sizes(self) -> str | None:
        """Return why this target does not compute dynamic sizes, or None."""
        if "EXT-SHAPE" in self.names:
            return None
        return (
            "to compute sizes at run time needs EXT-SHAPE of TOSA 1.1; the target is"
            f" {self}"
        )

    def violations(self, operator: Operator) -> list[str]:
        """Return all refusals of ``operator``; ``why_not`` returns the first."""
        return [text for _, text in self.breaches(operator)]

    def breaches(self, operator: Operator) -> Iterator[Breach]:
        """Return the rule and text of each refusal of ``operator``."""
        types = self._why_not_types(operator)
        if types:
            yield self._rule_of_types(operator), types
        yield from self._limits(operator)

    def _rule_of_types(self, operator: Operator) -> str:
        if operator.name not in rows(self.version):
            return "operator-version"
        return (
            "data-types"
            if isinstance(alternatives(operator, self.version), str)
            else "profile"
        )

    def _limits(self, operator: Operator) -> Iterator[Breach]:
        row = rows(self.version).get(operator.name)
        if row is None:
            return
        for position, name in row.constants if "dynamic" not in self.extensions else ():
            if position < len(operator.inputs) and not _is_known(
                operator.inputs[position], operator
            ):
                yield (
                    "constant-operand",
                    f"TOSA {row.name}: {name} must be a compile-time constant",
                )
        yield from _level(self.level, self.version).exceeded(operator, row)
        for name in sorted(self.devices):
            if why := _DEVICES[name](operator):
                yield "profile", f"TOSA {row.name}: {why}; the target is {self}"

    def why_not_tensor(self, type: Type) -> str | None:
        """Return why this target does not take an input or output, or None."""
        return next((text for _, text in self.type_breaches("tensor", type)), None)

    def type_breaches(self, what: str, type: Type) -> Iterator[Breach]:
        """Return the rule and text of each refusal of a type as ``what``.

        ``what`` is "constant" or "tensor".
        """
        if why := why_not_blocks(type):
            yield "blocks", f"{what} {why}"
        if type.dtype is not DType.SHAPE:
            needs = value_alternatives(type.dtype, self.version)
            if text := self._refusal(f"a {what} of {type.dtype}", needs):
                yield "profile" if needs else "data-types", text
        for rule, text in _level(self.level, self.version).type_breaches(type):
            yield rule, f"{what} {text}"

    def _why_not_types(self, operator: Operator) -> str | None:
        needs = alternatives(operator, self.version)
        return (
            needs
            if isinstance(needs, str)
            else self._refusal(f"TOSA {_subject(operator, self.version)}", needs)
        )

    def _refusal(self, subject: str, allowed_by: list[frozenset[str]]) -> str | None:
        if any(names <= self.names for names in allowed_by):
            return None
        if not allowed_by:
            return f"{subject} is not in TOSA {self.version[0]}.{self.version[1]}"
        return (
            f"{subject} needs {ways_of(allowed_by, self.version)}; the target is {self}"
        )


def included(version: Version) -> frozenset[str]:
    """Extensions of 1.0 that profiles of an older version include."""
    return frozenset(load(version)["included"]) if version in OLDER else frozenset()


def ways_of(allowed_by: list[frozenset[str]], version: Version) -> str:
    """Profiles and extensions, any of which would do, as the version calls them."""
    if version in OLDER:
        return "MI" if all("PRO-FP" in names for names in allowed_by) else "BI"
    return " or ".join("+".join(sorted(names)) for names in allowed_by)


DEFAULT = TosaSpec()
"""``TOSA-1.0+FP+INT`` at level 8K."""


def alternatives(
    operator: Operator, version: Version = (1, 0)
) -> list[frozenset[str]] | str:
    """Sets of profiles and extensions, any of which allows the operator's types.

    Or the text if none can.
    """
    key = version, kind_of(operator)
    if key not in _ALTERNATIVES:
        _ALTERNATIVES[key] = _find_alternatives(operator, version)
    return _ALTERNATIVES[key]


def kind_of(operator: Operator) -> Hashable:
    """Return a key of an operator; operators with equal keys need the same."""
    given = operator.__dict__
    inputs = tuple([v.type[1] for v in operator.inputs])
    return (
        type(operator),
        inputs,
        tuple([v.type[1] for v in operator.outputs]),
        given.get("acc_type"),
        given.get("rounding_mode"),
    )


_ALTERNATIVES: dict[Hashable, list[frozenset[str]] | str] = {}
"""Answers about an operator depend on its types, which repeat in networks."""


def _find_alternatives(
    operator: Operator, version: Version
) -> list[frozenset[str]] | str:
    row = rows(version).get(operator.name)
    if row is None:
        return f"TOSA {operator.name} is not in TOSA {version[0]}.{version[1]}"
    outputs = tuple(v.dtype for v in operator.outputs)
    bound = row.bind(tuple(v.dtype for v in operator.inputs), outputs)
    if isinstance(bound, str):
        return bound
    if "acc_t" in row.variables and hasattr(operator, "acc_type"):
        bound["acc_t"] = operator.acc_type
    found = [names for mode in row.matching(bound) for names in mode.allowed_by]
    if not found:
        return (
            f"TOSA {_subject(operator, version)} is not in TOSA"
            f" {version[0]}.{version[1]}"
        )
    rounding = _ROUNDINGS.get(getattr(operator, "rounding_mode", 0))
    return (
        [names | {rounding} for names in found]
        if rounding and rounding not in included(version)
        else found
    )


@cache
def value_alternatives(dtype: DType, version: Version) -> list[frozenset[str]]:
    """Sets of profiles and extensions that allow a type at the border.

    The table has rows for CONST only, and CONST on FP8 requires FP8 arithmetic;
    block-scaled operators take it as well.
    """
    row = rows(version)["CONST"]
    scaled = frozenset({"EXT-MX-COMMON", f"EXT-MX-{dtype.name}"})
    found = [
        names
        for mode in row.matching({next(iter(row.variables)): dtype})
        for names in mode.allowed_by
    ]
    return [*found, scaled] if found and dtype in FLOAT8 and version > (1, 0) else found


def _is_known(value: Value, operator: Operator) -> bool:
    """Return whether the operand is a compile-time constant.

    Shapes that are computed of constants are, and all sizes are.
    """
    computed = value.producer is not None and value.producer.entries is not None
    return value.constant is not None or computed or operator.name == "DIM"


def _word(word: str) -> str:
    """Return a profile, extension or level without underscores."""
    lower = word.lower().replace("_", "-")
    return _ALIASES.get(lower, lower)


def _subject(operator: Operator, version: Version) -> str:
    """Return ``CAST from bool to fp32``, ``CLAMP on bf16`` and the like."""
    row = rows(version)[operator.name]
    elements = row.operands(len(operator.inputs))
    variable = [
        v for v, e in zip(operator.inputs, elements, strict=True) if e in row.variables
    ]
    given = list(
        dict.fromkeys(
            str(v.dtype)
            for v in variable or operator.inputs
            if v.dtype is not DType.SHAPE
        )
    )
    results = list(dict.fromkeys(str(v.dtype) for v in operator.outputs))
    accumulator = (
        f" accumulated in {operator.acc_type}" if hasattr(operator, "acc_type") else ""
    )
    if results == given[:1] or not results or not given:
        return (
            f"{operator.name} on {', '.join(given or results)}{accumulator}"
            if given or results
            else operator.name
        )
    return (
        f"{operator.name} from {', '.join(given)} to {', '.join(results)}{accumulator}"
    )


@lru_cache(maxsize=6)
def _level(name: str, version: Version) -> Level:
    if version in OLDER:
        from .older_limits import OlderLevel

        return OlderLevel(name, version)
    return Level(name, version)


def _from_words(text: str, version: tuple[int, int], words: list[str]) -> TosaSpec:
    if repeated := sorted({w for w in words if words.count(w) > 1}):
        raise _wrong(text, f"{', '.join(repeated)} is there twice")
    if version in OLDER:
        words = _as_profiles_of_1_0(text, words)
    profiles = frozenset(w.upper() for w in words if w.upper() in PROFILES)
    levels = [_LEVELS[w] for w in words if w in _LEVELS]
    devices = frozenset(w for w in words if w in _DEVICES)
    named = (
        frozenset(w for w in words if w.upper() not in PROFILES and w not in _LEVELS)
        - devices
    )
    if not profiles:
        older = [w.upper() for w in words if w.upper() in OLDER_PROFILES]
        why = f"; {older[0]} is a profile of TOSA 0.80" if older else ""
        raise _wrong(text, f"it names no profile: FP, INT or both{why}")
    if len(levels) > 1:
        raise _wrong(text, "it names two levels")
    _check_extensions(text, version, profiles, named)
    return TosaSpec(version, profiles, named, levels[0] if levels else "8K", devices)


def _as_profiles_of_1_0(text: str, words: list[str]) -> list[str]:
    """Return the words of a target of TOSA 0.80, with one profile."""
    named = [word for word in words if word.upper() in OLDER_PROFILES]
    others = [word for word in words if word not in named]
    if len(named) != 1 or any(word.upper() in PROFILES for word in others):
        raise _wrong(
            text,
            "TOSA 0.80 has the profiles BI (integers) and MI (floats as well): name one"
            " of them",
        )
    if unknown := sorted({*others} - {*_LEVELS} - {*_DEVICES}):
        levels = " and ".join(_LEVELS)
        raise _wrong(
            text,
            "TOSA 0.80 has no extensions, and no plugin made a target of"
            f" {', '.join(unknown)}; levels are {levels}",
        )
    return [*others, *(profile.lower() for profile in OLDER_PROFILES[named[0].upper()])]


def _check_extensions(
    text: str, version: Version, profiles: frozenset[str], named: frozenset[str]
) -> None:
    known = extensions(version)
    if unknown := sorted(named - known.keys()):
        if version == (1, 0) and not named - extensions((1, 1)).keys():
            raise _wrong(
                text,
                f"extension {', '.join(unknown)} is of the 1.1 draft: write TOSA-1.1",
            )
        levels = " and ".join(_LEVELS)
        raise _wrong(
            text,
            f"unknown extension {', '.join(unknown)}; known:"
            f" {', '.join(sorted(known))}; levels are {levels}",
        )
    for name in sorted(named):
        if not known[name] & profiles:
            raise _wrong(
                text,
                f"extension {name} needs profile {' or '.join(sorted(known[name]))}",
            )
        if name.startswith("mx") and MX_COMMON not in named:
            raise _wrong(text, f"extension {name} needs extension {MX_COMMON}")


def _wrong(text: str, why: str) -> OptionError:
    return OptionError("option-invalid", f"wrong TOSA specification {text!r}: {why}")
