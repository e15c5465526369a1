"""Settings of a backend that are text, and their compile specs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from delegraph.backend import CompileSpec
from delegraph.errors import OptionError


def to_specs(prefix: str, settings: Mapping[str, str]) -> list[CompileSpec]:
    """Return a compile spec for each setting; its key is ``prefix`` and the name.

    Raises OptionError for text that no command line can contain: with a NUL, or with
    bytes that are not UTF-8.
    """
    for name, text in settings.items():
        if any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in text):
            raise OptionError(
                "option-invalid",
                f"option {name!r} has a character that is not text: {text!r:.80}",
            )
    return [
        CompileSpec(prefix + name, text.encode()) for name, text in settings.items()
    ]


def from_specs(
    compile_specs: Sequence[CompileSpec],
    prefix: str,
    defaults: Mapping[str, str],
    *,
    only: bool = False,
) -> tuple[dict[str, str], list[CompileSpec]]:
    """Return the settings that ``to_specs`` wrote, and the other compile specs.

    ``defaults``: name -> default text of each known setting. ``only``: refuse compile
    specs without the prefix. Compile specs may come from a file. So this raises
    OptionError for an unknown setting, for a duplicate, and for bytes that are not
    text.
    """
    own = [spec for spec in compile_specs if spec.key.startswith(prefix)]
    others = [spec for spec in compile_specs if not spec.key.startswith(prefix)]
    given = {
        spec.key.removeprefix(prefix): spec.value.decode(errors="surrogateescape")
        for spec in own
    }
    unknown = given.keys() - defaults.keys()
    if unknown:
        text = f"there is no compile spec {prefix}{min(unknown):.40}"
        raise OptionError("option-invalid", text)
    if len(given) < len(own):
        keys = ", ".join(spec.key for spec in own)
        raise OptionError("option-invalid", f"a compile spec is given twice: {keys}")
    if only and others:
        text = f"there is no compile spec {others[0].key:.40}"
        raise OptionError("option-invalid", text)
    to_specs(prefix, given)  # refuses bytes that are not text
    return {**defaults, **given}, others
