"""Options that set the properties of an engine by its own names."""

from __future__ import annotations

import re
from collections.abc import Collection

from delegraph.errors import OptionError


def read_properties(option: str, text: str, known: Collection[str]) -> dict[str, str]:
    """Read an engine's properties from ``text``: ``NAME=VALUE,NAME=VALUE``.

    ``option``: the name of the option, for errors. ``known``: the names that a program
    may set. Properties of most engines name files as well, and a program can be a file
    of somebody else. So values are words and numbers. Raises OptionError for other
    text.
    """
    properties = {}
    for pair in filter(None, text.split(",")):
        name, equals, value = map(str.strip, pair.partition("="))
        if not equals:
            text = (
                f"option {option!r} is NAME=VALUE,NAME=VALUE with the engine's names;"
                f" {pair!r:.80} has no '='"
            )
            raise OptionError("option-invalid", text)
        if name not in known or not re.fullmatch(r"[\w.-]{1,40}", value):
            text = (
                f"option {option!r} cannot set {name!r:.40} to {value!r:.40}: the"
                " setting could read or write files"
            )
            hint = f"it takes words and numbers for {', '.join(sorted(known))}"
            raise OptionError("option-invalid", text, hint=hint)
        properties[name] = value
    return properties
