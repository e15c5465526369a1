"""The compile specs of ``TOSABackend``, and how they are read and written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from delegraph.backend import CompileSpec
from delegraph.errors import OptionError

from .spec import TosaSpec

SWITCHES = {"locations": False, "metadata": True, "named_constants": False}
"""Maps each on/off option to its default."""
KEYS = (
    "output_format",
    "tosa_spec",
    "debug_artifact_path",
    "compile_flags",
    "input_order",
    *SWITCHES,
)


@dataclass(frozen=True)
class Options:
    """Options of ``TOSABackend``, as read from compile specs.

    ``debug_artifact_path``: a folder that gets a .tosa file of every partition, also if
    lowering fails. ``input_order``: the file's input i is input ``input_order[i]`` of
    the delegate. ``locations``: whether the file names the source of each operator,
    with local paths. ``metadata``: whether the file ends with the scales of
    quantized inputs and outputs. ``named_constants``: whether large constants become
    named data, stored once for all delegates. Such a blob is no .tosa file
    (``serialize/named_constants.py``).
    """

    spec: TosaSpec
    debug_artifact_path: Path | None = None
    input_order: tuple[int, ...] | None = None
    locations: bool = False
    metadata: bool = True
    named_constants: bool = False

    @staticmethod
    def of(
        spec: str,
        debug_artifact_path: str | None = None,
        input_order: str | None = None,
        locations: bool = False,
        metadata: bool = True,
        named_constants: bool = False,
    ) -> Options:
        """Make options from text. Raises OptionError for wrong values."""
        folder = Path(debug_artifact_path) if debug_artifact_path else None
        order = _permutation(input_order) if input_order else None
        return Options(
            TosaSpec.parse(spec), folder, order, locations, metadata, named_constants
        )

    @staticmethod
    def parse(compile_specs: Iterable[CompileSpec]) -> Options:
        """Make options from compile specs. Each key may occur once."""
        given = _unique(compile_specs)
        if given.pop("output_format", None) != "tosa":
            raise _wrong(
                "output_format must be 'tosa'; Options(...).compile_specs() makes the"
                " whole list"
            )
        if "tosa_spec" not in given:
            raise _wrong("tosa_spec is missing: the target, like TOSA-1.0+FP+INT")
        flags = given.pop("compile_flags", "")
        if flags:
            raise _wrong(f"compile_flags {flags!r}: TOSA has no compile flags")
        switches = {key: _switch(given, key) for key in SWITCHES}
        path = given.get("debug_artifact_path")
        order = given.get("input_order")
        return Options.of(given["tosa_spec"], path, order, **switches)

    def compile_specs(self) -> list[CompileSpec]:
        """Return compile specs that ``parse`` reads back."""
        texts = {"output_format": "tosa", "tosa_spec": str(self.spec)}
        if self.debug_artifact_path is not None:
            texts["debug_artifact_path"] = str(self.debug_artifact_path)
        if self.input_order is not None:
            texts["input_order"] = ",".join(map(str, self.input_order))
        for key, default in SWITCHES.items():
            value = getattr(self, key)
            if value != default:
                texts[key] = _TEXTS[value]
        return [CompileSpec(key, text.encode()) for key, text in texts.items()]

    def ordered(self, inputs: Sequence[object]) -> list[int]:
        """Return the delegate's input positions in the file's order.

        Raises OptionError if ``input_order`` has a different number of entries.
        """
        order = self.input_order
        if order is None:
            return list(range(len(inputs)))
        if len(order) != len(inputs):
            text = ",".join(map(str, order))
            raise _wrong(
                f"input_order {text!r} has {len(order)} entries, the delegate has"
                f" {len(inputs)} inputs"
            )
        return list(order)


def filter_tosa_compile_specs(
    compile_specs: Iterable[CompileSpec],
) -> list[CompileSpec]:
    """Return the compile specs that a backend on top of TOSA passes on.

    These are the target and the folder for debug files.
    """
    kept = [s for s in compile_specs if s.key in ("tosa_spec", "debug_artifact_path")]
    return [CompileSpec("output_format", b"tosa"), *kept]


def _unique(compile_specs: Iterable[CompileSpec]) -> dict[str, str]:
    """Return the texts of compile specs by key. Each key must be known and unique."""
    given: dict[str, str] = {}
    for spec in compile_specs:
        if spec.key not in KEYS:
            raise _wrong(f"unknown key {spec.key!r}; known: {', '.join(KEYS)}")
        if spec.key in given:
            raise _wrong(f"{spec.key} is given twice")
        given[spec.key] = _text(spec)
    return given


def _text(spec: CompileSpec) -> str:
    """Return the value of a compile spec as text."""
    try:
        return spec.value.decode()
    except UnicodeDecodeError as error:
        raise _wrong(f"{spec.key} is not utf-8: {error}") from error


_TEXTS = {True: "true", False: "false"}
"""The texts of on/off options."""


def _switch(given: Mapping[str, str], key: str) -> bool:
    """Return the value of an on/off option."""
    text = given.get(key, _TEXTS[SWITCHES[key]])
    if text not in _TEXTS.values():
        raise _wrong(f"{key} {text!r} must be 'true' or 'false'")
    return text == _TEXTS[True]


def _permutation(text: str) -> tuple[int, ...]:
    """Return the permutation of a text such as ``1,0,2``."""
    try:
        order = tuple(int(entry) for entry in text.split(","))
    except ValueError:
        order = ()
    if not order or sorted(order) != list(range(len(order))):
        raise _wrong(
            f"input_order {text!r} must be a permutation of input positions, like '1,0,2'"
        )
    return order


def _wrong(why: str) -> OptionError:
    return OptionError("option-invalid", f"compile spec: {why}")
