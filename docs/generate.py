"""Writes the pages here that are read off the code: python docs/generate.py. A test says if they are stale."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from delegraph import errors
from delegraph_tosa.lowering import RULES
from delegraph_tosa.lowering.rules import Rule
from torch._ops import OpOverload

FOLDER = Path(__file__).parent

ERRORS = """# Errors

Generated from `delegraph.errors` by docs/generate.py.

Everything that delegraph raises on purpose is a `delegraph.errors.DelegraphError` with a stable `code`, and, where they
are known, the `node`, the `source` line of your program and a `hint`. The command line prints code, message, source and
hint on stderr (with `--json` also as an object on stdout) and exits with 1, or with 2 for wrong usage; `--debug` adds
the traceback.
"""

OPERATORS = """# Operators that delegraph-tosa lowers

Generated from the rules by docs/generate.py: {count} overloads.

A rule is the support check as well, so this page cannot promise more than the compiler does. Whether an operator is
taken in your program depends on its types and arguments and on the target; the report of a lowering gives the reason
for every operator that was not. Letters of the shapes: N batch, C and O channels, D H W sizes, KD KH KW kernel, L and S
lengths, `*S` any shape.
"""

SHAPES = re.compile(r"([^;:]*?-> *\[[^\]]*\](?:, \[[^\]]*\])*)(.*)")
"""The shapes with which a rule's docstring begins, and the rest of its first paragraph."""


def main() -> None:
    """Write every generated page."""
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page())


def errors_page() -> str:
    """Codes and classes of delegraph.errors."""
    codes = [f"| `{code}` | {meaning} |" for code, meaning in errors.CODES.items()]
    lines = [ERRORS, "## Codes", "", "| code | meaning |", "|---|---|", *codes, ""]
    lines += ["Codes of plugins carry the plugin's name as prefix, as in `tosa/...`.", ""]
    lines += ["## Classes", "", "| class | is also | when |", "|---|---|---|", *map(_class_row, _classes()), ""]
    return "\n".join(lines)


def _classes() -> Iterator[type[Exception]]:
    for cls in vars(errors).values():
        if inspect.isclass(cls) and issubclass(cls, errors.DelegraphError):
            yield cls


def _class_row(cls: type[Exception]) -> str:
    bases = ", ".join(f"`{base.__name__}`" for base in cls.__bases__)
    return f"| `{cls.__name__}` | {bases} | {_first_paragraph(cls)} |"


def operators_page() -> str:
    """The ATen operators that delegraph-tosa lowers, by family."""
    families: dict[str, list[tuple[OpOverload, Rule]]] = {}
    for overload, rule in sorted(RULES.items(), key=lambda item: str(item[0])):
        families.setdefault(rule.function.__module__.rpartition(".")[2], []).append((overload, rule))
    lines = [OPERATORS.format(count=len(RULES))]
    for family in sorted(families):
        lines += [f"## {family}", "", "| operator | shapes | to know |", "|---|---|---|"]
        lines += [_operator_row(overload, rule) for overload, rule in families[family]] + [""]
    return "\n".join(lines)


def _operator_row(overload: OpOverload, rule: Rule) -> str:
    text = _first_paragraph(rule.function)
    found = SHAPES.match(text)
    shapes, rest = (f"`{found[1]}`", found[2].lstrip(";,. ")) if found else ("", text)
    return f"| `{overload}` | {shapes} | {rest} |"


def _first_paragraph(documented: object) -> str:
    text = inspect.getdoc(documented) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("``", "`").replace("|", "\\|")


PAGES: dict[str, Callable[[], str]] = {"errors.md": errors_page, "tosa-operators.md": operators_page}

if __name__ == "__main__":
    main()
