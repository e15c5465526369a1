"""Writes the pages here that are read off the code: python docs/generate.py. A test says if they are stale."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, Set
from pathlib import Path

from delegraph import errors
from delegraph_tosa.ir.rulebook import OF_OPERATORS
from delegraph_tosa.ir.rulebook import RULES as RULEBOOK
from delegraph_tosa.ir.rulebook import Rule as TosaRule
from delegraph_tosa.ir.types import BLOCK_SCALED, DType
from delegraph_tosa.lowering import RULES
from delegraph_tosa.lowering.registry import Rule
from delegraph_tosa.spec.table import Mode, rows
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

LEGALITY = """# Element types that TOSA operators take

Generated from the specification's table by docs/generate.py. For each operator and each combination of element types:
the profiles and extensions that allow it, `+` where several are needed together. The builder, the validator and this
page read the same table. `bs32_fp8ue8m0_*` is each of the six types of tensors that hold their block scales, with the
`EXT-MX-*` of its values.

plugins/tosa_backend/tests/support/legality.py asks tosa-opt's strict validator about files of TOSA 1.0: every row of
every operator, and custom operators, variables and control flow up to the deepest nesting and the longest lists of
level 8K, for each choice of profiles, alone, with each extension and with all of them, and operators on element types
that no row has. Of {judged} verdicts, {count} differ from ours.
"""

TOSA_RULES = """# Rules that the validator of delegraph-tosa tells

Generated from delegraph_tosa.ir.rulebook by docs/generate.py: {count} rules.

Every violation names one of these rules, the section of the specification that has it, the operator and the line of
your program. Sections are named, not numbered: their numbers change from draft to draft. These headings stand below the
operator's own section: {headings}.

plugins/tosa_backend/tests/support/breaking has illegal graphs for each rule and each operator that can break it,
{graphs} in all, made by small changes of legal ones: each breaks its rule and no other. It writes {files} of them as
files (what is left out, no file can say), asks the reference tools and counts who refuses them: tosa-opt, and the
reference model those of TOSA 1.0 that it could run.
"""

ALONE = """
## Refused by us only

What neither judge refuses, and the words of the specification.

| rule | operators | words |
|---|---|---|
"""

VERDICTS = FOLDER.parent / "plugins/tosa_backend/tests/support/verdicts"
SWEEP, BROKEN, UNOPPOSED = VERDICTS / "legality.json", VERDICTS / "breaking.json", VERDICTS / "unopposed.json"
"""What the sweeps found when they last ran, and why we refuse more."""

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


def legality_page() -> str:
    """Every operator and its element types: who allows them, in TOSA 1.0 and in the 1.1 draft."""
    swept = json.loads(SWEEP.read_text())
    found = [f"- {d['label']} for {d['target']}: {d['ours'] or d['tosa-opt']}" for d in swept["differences"]]
    lines = [LEGALITY.format(judged=swept["judged"], count=len(found)), *found]
    for name, row in sorted(rows((1, 1)).items()):
        lines += ["", f"## {name}", "", "| element types | TOSA 1.0 | 1.1 draft |", "|---|---|---|"]
        of_1_0 = rows()[name].modes if name in rows() else ()
        lines += dict.fromkeys(_legality_row(mode, of_1_0) for mode in row.modes)
    return "\n".join([*lines, ""])


def rules_page() -> str:
    """The rules of TOSA that the validator knows, and what the reference tools say of graphs that break them."""
    judged, alone = json.loads(BROKEN.read_text()), json.loads(UNOPPOSED.read_text())
    headings = ", ".join(sorted(OF_OPERATORS))
    counts = {name: sum(entry[name] for entry in judged.values()) for name in ("graphs", "files")}
    lines = [TOSA_RULES.format(count=len(RULEBOOK), headings=headings, **counts)]
    lines += ["| rule | section | what it asks for | files | tosa-opt | reference model |", "|---|---|---|---|---|---|"]
    lines += [_rule_row(name, rule, judged[name]) for name, rule in RULEBOOK.items()]
    rows = [f"| `{e['rule']}` | {', '.join(e['operators'])} | {e['words']} |" for e in alone]
    return "\n".join([*lines, ALONE.rstrip("\n"), *rows, ""])


def _rule_row(name: str, rule: TosaRule, judged: dict[str, int]) -> str:
    figures = " | ".join(str(judged[who]) for who in ("files", "tosa-opt", "reference model"))
    return f"| `{name}` | {rule.section} | {rule.meaning} | {figures} |"


def _legality_row(mode: Mode, of_1_0: tuple[Mode, ...]) -> str:
    types = ", ".join(f"{variable} {_type(dtype)}" for variable, dtype in mode.types.items())
    before = [way for other in of_1_0 if other.types == mode.types for way in other.allowed_by]
    ways = [{_all_values(name) for name in way} if "*" in types else way for way in mode.allowed_by]
    return f"| {types or 'any'} | {_ways(before)} | {_ways(ways)} |"


def _type(dtype: DType | None) -> str:
    blocks = BLOCK_SCALED.get(dtype) if dtype else None
    return f"`bs{blocks.size}_{blocks.scale}_*`" if blocks else str(dtype or "none")


def _all_values(name: str) -> str:
    """The rows of block-scaled types differ in their values, each of which has an extension."""
    return name if name == "EXT-MX-COMMON" or not name.startswith("EXT-MX-") else "`EXT-MX-*`"


def _ways(ways: Iterable[Set[str]]) -> str:
    return " or ".join("+".join(sorted(names)) for names in ways) or "-"


def _first_paragraph(documented: object) -> str:
    text = inspect.getdoc(documented) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("``", "`").replace("|", "\\|")


PAGES: dict[str, Callable[[], str]] = {
    "errors.md": errors_page,
    "tosa-operators.md": operators_page,
    "tosa-legality.md": legality_page,
    "tosa-rules.md": rules_page,
}

if __name__ == "__main__":
    main()
