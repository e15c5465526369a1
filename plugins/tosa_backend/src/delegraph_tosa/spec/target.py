"""The target of a lowering, such as ``TOSA-1.0+FP+INT``."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache

from delegraph.errors import OptionError

from ..ir.graph import Operator, Value
from ..ir.types import FLOAT8, DType, Type, why_not_blocks
from .levels import Breach, Level
from .operator_table import FILES, OLDER, Row, Version, load, rows

_FORM = re.compile(
    r"TOSA-([0-9]+)\.([0-9]+)(?:\.[0-9]+)?(\.draft)?((?:\+[\w-]+)*)", re.IGNORECASE
)
_DRAFTS = ((1, 1),)
_ALIASES = {"var": "variable", "cf": "controlflow"}
_LEVELS = {"8k": "8K", "nolevel": "NONE"}
_ALL_LEVELS = " and ".join(_LEVELS)
PROFILES = ("FP", "INT")
OLDER_PROFILES = {"BI": frozenset({"INT"}), "MI": frozenset({"FP", "INT"})}
"""Maps profiles of TOSA 0.80 to those of 1.0; MI includes BI."""
_ROUNDINGS = {2: "EXT-INEXACTROUND", 3: "EXT-DOUBLEROUND"}
"""Rounding mode -> extension that RESCALE needs for it (specification: RESCALE)."""


MX_COMMON = "mx-common"
"""The extension that all others of block-scaled types need."""


@lru_cache(maxsize=len(FILES) + len(OLDER))
def extensions(version: Version = (1, 0)) -> dict[str, frozenset[str]]:
    """Map each extension of a version, in lower case, to its profiles.

    It needs one of them.
    """
    found: dict[str, frozenset[str]] = {}
    for entry in load(version)["extensions"]:
        name = entry["name"].removeprefix("EXT-").lower()
        found[name] = frozenset([p.removeprefix("PRO-") for p in entry["with"]])
    return found


WhyNot = Callable[[Operator], str | None]
"""A function that returns why a device does not support an operator, or None."""

_DEVICES: dict[str, WhyNot] = {}


def narrow(name: str, why_not: WhyNot) -> None:
    """Register a device, a word of targets such as ``TOSA-1.0+INT+<name>``.

    ``why_not`` returns why the device does not support an operator, or None; reports
    show the reason. It is called for operators that the target supports without the
    device. They have operands, attributes and ``outputs``.

    ``why_not`` may look at types, at attributes, at which operands are constant, and at
    the entries of constant SHAPEs (the scale of a RESIZE). It may not look at the
    elements of other constants, because operators that are equal otherwise are checked
    once.

    Support check, lowering and validation call ``why_not``, so each process that lowers
    must register the device. Raises ValueError unless ``name`` is new and consists of
    lower-case letters and digits.
    """
    taken = {*_ALIASES, *_LEVELS}
    taken.update([profile.lower() for profile in (*PROFILES, *OLDER_PROFILES)])
    for version in FILES:
        taken.update(extensions(version))
    if name in taken or not re.fullmatch("[a-z][a-z0-9]*", name):
        raise ValueError(
            f"{name!r} cannot be the name of a device: it has characters other"
            " than lower-case letters and digits, or is taken"
        )
    if _DEVICES.setdefault(name, why_not) is not why_not:
        raise ValueError(f"{name!r} already names another device")


@dataclass(frozen=True)
class TosaSpec:
    """A version, profiles (FP, INT), extensions (``bf16``, ...) and a level.

    ``devices`` are words that narrow the target further (``narrow``). The level is 8K,
    the only one that the specification defines, or NONE with ``+nolevel``. ``str``
    returns the canonical text, which leaves out 8K.
    """

    version: tuple[int, int] = (1, 0)
    profiles: frozenset[str] = frozenset({"FP", "INT"})
    extensions: frozenset[str] = frozenset()
    level: str = "8K"
    devices: frozenset[str] = frozenset()

    @staticmethod
    def parse(text: str) -> TosaSpec:
        """Read ``TOSA-1.0+FP[+INT][+<extension>...][+8k|+nolevel]``.

        Other versions are ``TOSA-1.1``, a draft, and ``TOSA-0.80`` with ``+BI`` or
        ``+MI``. Order and case do not matter. Raises OptionError with the mistake and
        the valid words.
        """
        form = _FORM.fullmatch(text.strip())
        if form is None:
            raise _wrong(text, "it is not of the form TOSA-1.0+FP+INT")
        major, minor, draft, names = form.groups()
        version = (int(major), int(minor))
        if version not in FILES and version not in OLDER:
            why = (
                f"files of version {major}.{minor} cannot be written; supported are TOSA"
                " 1.0, 0.80 and the 1.1 draft"
            )
            raise _wrong(text, why)
        if draft and version not in _DRAFTS:
            raise _wrong(text, f"version {major}.{minor} is not a draft of TOSA")
        words = [_word(word) for word in names.split("+")[1:]]
        return _from_words(text, version, words)

    def __str__(self) -> str:
        major, minor = self.version
        parts = [f"TOSA-{major}.{minor}", *self.profile_names]
        parts += sorted(self.extensions)
        parts += sorted(self.devices)
        if self.level == "NONE":
            parts.append("nolevel")
        return "+".join(parts)

    @cached_property
    def names(self) -> frozenset[str]:
        """Return profiles and extensions as TOSA 1.0 writes them: PRO-FP, EXT-BF16.

        For 0.80, they include the extensions that its profiles imply.
        """
        profiles = [f"PRO-{profile}" for profile in self.profiles]
        extensions = [f"EXT-{extension.upper()}" for extension in self.extensions]
        return frozenset([*profiles, *extensions, *included(self.version)])

    @property
    def profile_names(self) -> tuple[str, ...]:
        """Return the profiles by their names in the version."""
        if self.version in OLDER:
            return ("MI" if "FP" in self.profiles else "BI",)
        return tuple(p for p in PROFILES if p in self.profiles)

    def with_names(self, names: frozenset[str]) -> TosaSpec:
        """Return the target with more ``names``, and the profiles that they need."""
        profiles = set(self.profiles)
        added: list[str] = []
        for name in sorted(names):
            if name.startswith("EXT-"):
                added.append(_word(name.removeprefix("EXT-")))
            elif name.startswith("PRO-"):
                profiles.add(name.removeprefix("PRO-"))
        profiles_of = extensions(self.version)
        for extension in sorted(added):
            needed = profiles_of[extension]
            if not needed & profiles:
                profiles.add(min(needed))
        return replace(
            self,
            profiles=frozenset(profiles),
            extensions=self.extensions | frozenset(added),
        )

    @cached_property
    def has_int64(self) -> bool:
        """Return whether the target supports tensors of int64 (EXT-INT64)."""
        return self.why_not_tensor(Type((1,), DType.INT64)) is None

    @property
    def takes_dynamic(self) -> bool:
        """Return whether tensors may have sizes that are known at run time only."""
        return self.version > (1, 0)

    @property
    def max_nesting(self) -> int:
        """Return how deep control flow may be nested (MAX_NESTING of the level)."""
        return _level(self.level, self.version).limits["max_nesting"]

    def why_not(self, operator: Operator) -> str | None:
        """Return why this target does not support ``operator``, or None.

        Its ``outputs`` must be set.
        """
        why = self._why_not_types(operator)
        if why is not None:
            return why
        for _, limit in self._limits(operator):
            return limit
        return None

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
        """Yield the rule and text of each refusal of ``operator``."""
        types = self._why_not_types(operator)
        if types:
            yield self._rule_of_types(operator), types
        yield from self._limits(operator)

    def _rule_of_types(self, operator: Operator) -> str:
        """Return the rule that the types of ``operator`` break."""
        if operator.name not in rows(self.version):
            return "operator-version"
        if isinstance(alternatives(operator, self.version), str):
            return "data-types"
        return "profile"

    def _limits(self, operator: Operator) -> Iterator[Breach]:
        """Yield the refusals of ``operator`` for other reasons than its types."""
        row = rows(self.version).get(operator.name)
        if row is None:
            return
        if "dynamic" not in self.extensions:
            yield from _computed_operands(operator, row)
        yield from _level(self.level, self.version).exceeded(operator, row)
        for name in sorted(self.devices):
            why = _DEVICES[name](operator)
            if why:
                yield "profile", f"TOSA {row.name}: {why}; the target is {self}"

    def why_not_tensor(self, type: Type) -> str | None:
        """Return why this target does not support an input or output, or None."""
        for _, text in self.type_breaches("tensor", type):
            return text
        return None

    def type_breaches(self, what: str, type: Type) -> Iterator[Breach]:
        """Yield the rule and text of each refusal of a type.

        ``what`` is the word in the text: "constant" or "tensor".
        """
        why = why_not_blocks(type)
        if why:
            yield "blocks", f"{what} {why}"
        if type.dtype is not DType.SHAPE:
            needs = value_alternatives(type.dtype, self.version)
            refusal = self._refusal(f"a {what} of {type.dtype}", needs)
            if refusal:
                # without alternatives, no profile of the version has the type
                rule = "profile" if needs else "data-types"
                yield rule, refusal
        for rule, text in _level(self.level, self.version).type_breaches(type):
            yield rule, f"{what} {text}"

    def _why_not_types(self, operator: Operator) -> str | None:
        """Return why the target does not support the operator's types, or None."""
        needs = alternatives(operator, self.version)
        if isinstance(needs, str):
            return needs
        # most operators are supported, and the text of the subject is slow
        if any(names <= self.names for names in needs):
            return None
        return self._refusal(f"TOSA {_subject(operator, self.version)}", needs)

    def _refusal(self, subject: str, allowed_by: list[frozenset[str]]) -> str | None:
        """Return why the target does not support ``subject``, or None.

        ``allowed_by`` are the alternatives for it.
        """
        if any(names <= self.names for names in allowed_by):
            return None
        if not allowed_by:
            return _not_in(subject, self.version)
        ways = ways_of(allowed_by, self.version)
        return f"{subject} needs {ways}; the target is {self}"


def _not_in(subject: str, version: Version) -> str:
    """Return the refusal of something that a version does not have at all."""
    major, minor = version
    return f"{subject} is not in TOSA {major}.{minor}"


def _computed_operands(operator: Operator, row: Row) -> Iterator[Breach]:
    """Yield a breach for each operand that must be constant and is computed."""
    for position, name in row.constants:
        if position >= len(operator.inputs):
            continue
        if not _is_known(operator.inputs[position], operator):
            text = f"TOSA {row.name}: {name} must be a compile-time constant"
            yield "constant-operand", text


def included(version: Version) -> frozenset[str]:
    """Return the extensions of 1.0 that profiles of an older version include."""
    if version not in OLDER:
        return frozenset()
    return frozenset(load(version)["included"])


def ways_of(allowed_by: list[frozenset[str]], version: Version) -> str:
    """Return alternatives as text, by the names of the version.

    For example, ``EXT-FFT+PRO-FP or PRO-INT``.
    """
    if version in OLDER:
        need_floats = all("PRO-FP" in names for names in allowed_by)
        return "MI" if need_floats else "BI"
    return " or ".join("+".join(sorted(names)) for names in allowed_by)


DEFAULT = TosaSpec()
"""``TOSA-1.0+FP+INT`` at level 8K."""


def alternatives(
    operator: Operator, version: Version = (1, 0)
) -> list[frozenset[str]] | str:
    """Return the alternatives that allow the operator's types.

    Each is a set of profiles and extensions, all of which are needed. If there is none,
    returns a text with the reason.
    """
    key = version, kind_of(operator)
    if key not in _ALTERNATIVES:
        _ALTERNATIVES[key] = _find_alternatives(operator, version)
    return _ALTERNATIVES[key]


def kind_of(operator: Operator) -> Hashable:
    """Return a key that is equal for operators with equal alternatives."""
    attributes = operator.__dict__
    inputs = tuple([value.type.dtype for value in operator.inputs])
    outputs = tuple([value.type.dtype for value in operator.outputs])
    acc_type = attributes.get("acc_type")
    return type(operator), inputs, outputs, acc_type, attributes.get("rounding_mode")


_ALTERNATIVES: dict[Hashable, list[frozenset[str]] | str] = {}
"""Cache of ``alternatives``, by version and ``kind_of``: kinds repeat in networks."""


def _find_alternatives(
    operator: Operator, version: Version
) -> list[frozenset[str]] | str:
    """As ``alternatives``, read from the table."""
    row = rows(version).get(operator.name)
    if row is None:
        return _not_in(f"TOSA {operator.name}", version)
    inputs = tuple([value.dtype for value in operator.inputs])
    outputs = tuple([value.dtype for value in operator.outputs])
    bound = row.bind(inputs, outputs)
    if isinstance(bound, str):
        return bound
    if "acc_t" in row.variables and hasattr(operator, "acc_type"):
        bound["acc_t"] = operator.acc_type
    found = _allowed_by(row, bound)
    if not found:
        return _not_in(f"TOSA {_subject(operator, version)}", version)
    rounding = _ROUNDINGS.get(getattr(operator, "rounding_mode", 0))
    if rounding is None or rounding in included(version):
        return found
    return [names | {rounding} for names in found]


def _allowed_by(row: Row, bound: Mapping[str, DType | None]) -> list[frozenset[str]]:
    """Return the alternatives of all modes with these element types."""
    found: list[frozenset[str]] = []
    for mode in row.matching(bound):
        found += mode.allowed_by
    return found


@cache
def value_alternatives(dtype: DType, version: Version) -> list[frozenset[str]]:
    """Return the alternatives that allow an element type of inputs and outputs.

    They are those of CONST, because the table has no row for inputs. CONST of FP8
    requires FP8 arithmetic, but block-scaled operators read FP8 without it.
    """
    row = rows(version)["CONST"]
    (variable,) = row.variables
    found = _allowed_by(row, {variable: dtype})
    if found and dtype in FLOAT8 and version > (1, 0):
        found.append(frozenset({"EXT-MX-COMMON", f"EXT-MX-{dtype.name}"}))
    return found


def _is_known(value: Value, operator: Operator) -> bool:
    """Return whether the operand is a compile-time constant.

    A shape with known entries is one, even if an operator computes it. So is the
    operand of DIM.
    """
    if value.constant is not None or operator.name == "DIM":
        return True
    return value.producer is not None and value.producer.entries is not None


def _word(word: str) -> str:
    """Return a profile, extension or level without underscores."""
    lower = word.lower().replace("_", "-")
    return _ALIASES.get(lower, lower)


def _subject(operator: Operator, version: Version) -> str:
    """Return the operator and its types: ``CAST from bool to fp32``, ``CLAMP on bf16``."""
    row = rows(version)[operator.name]
    elements = row.operands(len(operator.inputs))
    operands = zip(operator.inputs, elements, strict=True)
    # operands of a fixed type, such as shapes, are named only if there are no others
    varying = [value for value, element in operands if element in row.variables]
    named = [v for v in varying or operator.inputs if v.dtype is not DType.SHAPE]
    types = _distinct_types(named)
    results = _distinct_types(operator.outputs)
    accumulator = ""
    if hasattr(operator, "acc_type"):
        accumulator = f" accumulated in {operator.acc_type}"
    if not types and not results:
        return operator.name
    if not types or not results or results == types[:1]:
        return f"{operator.name} on {', '.join(types or results)}{accumulator}"
    before = ", ".join(types)
    after = ", ".join(results)
    return f"{operator.name} from {before} to {after}{accumulator}"


def _distinct_types(values: Sequence[Value]) -> list[str]:
    """Return the element types of ``values``, each once."""
    return list(dict.fromkeys([str(value.dtype) for value in values]))


@lru_cache(maxsize=6)
def _level(name: str, version: Version) -> Level:
    """Return the level ``name`` of a version."""
    if version in OLDER:
        from .older_limits import OlderLevel

        return OlderLevel(name, version)
    return Level(name, version)


def _from_words(text: str, version: tuple[int, int], words: list[str]) -> TosaSpec:
    """Return the target of the words after the version.

    Raises OptionError, which shows ``text``, the whole specification.
    """
    repeated = sorted({word for word in words if words.count(word) > 1})
    if repeated:
        raise _wrong(text, f"{', '.join(repeated)} is there twice")
    if version in OLDER:
        words = _as_profiles_of_1_0(text, words)
    profiles: set[str] = set()
    levels: list[str] = []
    devices: set[str] = set()
    named: set[str] = set()
    for word in words:
        if word.upper() in PROFILES:
            profiles.add(word.upper())
        elif word in _LEVELS:
            levels.append(_LEVELS[word])
        elif word in _DEVICES:
            devices.add(word)
        else:
            named.add(word)
    if not profiles:
        older = [word.upper() for word in words if word.upper() in OLDER_PROFILES]
        why = f"; {older[0]} is a profile of TOSA 0.80" if older else ""
        raise _wrong(text, f"it names no profile: FP, INT or both{why}")
    if len(levels) > 1:
        raise _wrong(text, f"it names several levels: {', '.join(sorted(levels))}")
    _check_extensions(text, version, profiles, named)
    return TosaSpec(
        version,
        frozenset(profiles),
        frozenset(named),
        level=levels[0] if levels else "8K",
        devices=frozenset(devices),
    )


def _as_profiles_of_1_0(text: str, words: list[str]) -> list[str]:
    """Return the words of a target of TOSA 0.80, with the profiles of 1.0."""
    older = [word for word in words if word.upper() in OLDER_PROFILES]
    others = [word for word in words if word not in older]
    if len(older) != 1 or any(word.upper() in PROFILES for word in others):
        why = (
            "TOSA 0.80 has the profiles BI (integers) and MI (floats as well): name one"
            " of them"
        )
        raise _wrong(text, why)
    unknown = sorted({*others} - {*_LEVELS, *_DEVICES})
    if unknown:
        why = (
            f"{', '.join(unknown)} is neither a level ({_ALL_LEVELS}) nor a target of an"
            " installed plugin, and TOSA 0.80 has no extensions"
        )
        raise _wrong(text, why)
    profiles = OLDER_PROFILES[older[0].upper()]
    return [*others, *[profile.lower() for profile in profiles]]


def _check_extensions(
    text: str, version: Version, profiles: Set[str], named: Set[str]
) -> None:
    """Raise OptionError for an unknown extension, or one without its profile."""
    known = extensions(version)
    unknown = sorted(named - known.keys())
    if unknown:
        listed = ", ".join(unknown)
        if version == (1, 0) and extensions((1, 1)).keys() >= named:
            why = f"extension {listed} is of the 1.1 draft: write TOSA-1.1"
            raise _wrong(text, why)
        why = (
            f"unknown extension {listed}; known: {', '.join(sorted(known))}; levels"
            f" are {_ALL_LEVELS}"
        )
        raise _wrong(text, why)
    for name in sorted(named):
        if not known[name] & profiles:
            needed = " or ".join(sorted(known[name]))
            raise _wrong(text, f"extension {name} needs profile {needed}")
        if name.startswith("mx") and MX_COMMON not in named:
            raise _wrong(text, f"extension {name} needs extension {MX_COMMON}")


def _wrong(text: str, why: str) -> OptionError:
    return OptionError("option-invalid", f"wrong TOSA specification {text!r}: {why}")
