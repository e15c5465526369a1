"""Write a page of a matrix that opens without network.

Its tables can be sorted and filtered, and each cell links to its report.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from ..drawing import head, text
from .refusals import Refusal, refusals_of
from .rows import key_of, status
from .tables import COLUMNS, REFUSED, by_model, in_short, summary, text_of

# The script contains no text of a model, and inserts no markup into the page. It has no
# "<" and "&", so that the page is also valid XML.
SCRIPT = """
"use strict";
function valueOf(row, column) {
  const cell = row.cells[column], number = cell.dataset.value;
  return number === undefined ? cell.textContent.toLowerCase() : Number(number);
}

function compare(a, b) {
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;  // cells without a figure come last
  return a === b ? 0 : b > a ? -1 : 1;
}

function sort(table, column, down) {
  const body = table.tBodies[0], rows = [...body.rows].map((row, place) => [row, place]);
  rows.sort(([a, i], [b, j]) => {
    const x = valueOf(a, column), y = valueOf(b, column);
    return (typeof x !== typeof y ? compare(x, y) : (down ? -1 : 1) * compare(x, y)) || i - j;
  });
  body.append(...rows.map(([row]) => row));
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  table.tHead.rows[0].cells[column].setAttribute("aria-sort", down ? "descending" : "ascending");
}

function sortable(table) {
  for (const [column, cell] of [...table.tHead.rows[0].cells].entries()) {
    const button = document.createElement("button");
    button.type = "button";
    button.title = cell.title;
    button.append(...cell.childNodes);
    button.addEventListener("click", () => sort(table, column, cell.getAttribute("aria-sort") === "ascending"));
    cell.append(button);
  }
}

function filterable(tables) {
  const label = document.createElement("label"), input = document.createElement("input");
  const shown = document.createElement("span");
  label.className = "filter";
  input.type = "search";
  label.append("Only rows with ", input, " ", shown);
  shown.setAttribute("role", "status");
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\\s+/).filter((word) => word.length > 0);
    let count = 0;
    for (const table of tables) for (const row of table.tBodies[0].rows) {
      const content = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => content.includes(word));
      if (!row.hidden) count += 1;
    }
    shown.textContent = words.length > 0 ? count + " rows" : "";
  });
  document.querySelector("header").append(label);
}

addEventListener("DOMContentLoaded", () => {
  const tables = [...document.querySelectorAll("table")];
  tables.forEach(sortable);
  filterable(tables);
});
"""
_STYLE = """
th button { font: inherit; color: inherit; background: none; border: 0; padding: 0; cursor: pointer; }
th[aria-sort=ascending] button::after { content: " \\2191"; }
th[aria-sort=descending] button::after { content: " \\2193"; }
.filter { display: block; margin: .6rem 0; } .filter input { font: inherit; width: min(24rem, 60vw); }
td.failed, td.differs { color: var(--mark); font-weight: 600; } table { width: max-content; }
"""


def page(rows: Sequence[Mapping[str, Any]], title: str, store: str) -> str:
    """Return the page.

    ``store`` is the relative path from the page to its store: "", or with "/" at its
    end.
    """
    parts = [
        head(title, script=SCRIPT, style=_STYLE),
        f"<body>\n<header><h1>{text(title)}</h1>\n",
        f"<p>{text(summary(rows, len(rows)))}; {text(_machines(rows))}</p></header>\n",
        "<h2>By model</h2>\n",
        *_by_model(rows, store),
        "<h2>Cells</h2>\n",
        *_cells(rows, store),
    ]
    refused = refusals_of(rows)
    if refused:
        body = []
        for refusal in refused:
            body.append(
                [
                    _td(str(refusal.count), refusal.count),
                    _td(refusal.backend),
                    _td(refusal.operator),
                    _td(_reason(refusal)),
                    _td(", ".join(refusal.models)),
                ]
            )
        heads = [_Head(name) for name in REFUSED]
        parts += ["<h2>Refused operators</h2>\n", *_table(heads, body)]
    return "".join([*parts, "</body></html>\n"])


class _Head(NamedTuple):
    """The head of a column, with an explanation of it."""

    name: str
    title: str = ""


def _reason(refusal: Refusal) -> str:
    if refusal.hint:
        return f"{refusal.reason} (hint: {refusal.hint})"
    return refusal.reason


def _machines(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the processors and versions with which the rows were measured."""
    processors: dict[str, None] = {}
    for row in rows:
        machine = row["measured"].get("machine")
        if machine:
            processors[f"{machine.get('cpus')} x {machine.get('cpu')}"] = None
    parts = list(processors)
    for name in ("delegraph", "torch"):
        known = [row["versions"][name] for row in rows if name in row["versions"]]
        if known:
            parts.append(f"{name} {known[-1]}")
    return ", ".join(parts)


def _by_model(rows: Sequence[Mapping[str, Any]], store: str) -> Iterator[str]:
    """Yield a table with a row for each model and quantization."""
    heads, lines = by_model(rows)
    targets = heads[2:]
    found = {key_of(row): row for row in rows}
    body = []
    for model, quantization, *_ in lines:
        cells = [_td(model), _td(quantization)]
        for target in targets:
            row = found.get((model, target, quantization))
            linked = _td("") if row is None else _linked(in_short(row), row, store)
            cells.append(linked)
        body.append(cells)
    yield from _table([_Head(name) for name in heads], body)


def _cells(rows: Sequence[Mapping[str, Any]], store: str) -> Iterator[str]:
    """Yield a table with a row for each cell."""

    def cells(row: Mapping[str, Any]) -> Iterator[str]:
        for column in COLUMNS:
            value = column.value(row)
            shown = text_of(column, row)
            if column.head == "model":
                yield _linked(shown, row, store)
            elif column.head == "why":
                yield f'<td class="text">{_why(row)}</td>'
            elif column.head == "status" and shown in _BAD:
                yield _td(shown, kind=shown)
            else:
                yield _td(shown, value if isinstance(value, (int, float)) else None)

    heads = [_Head(column.head, column.title) for column in COLUMNS]
    yield from _table(heads, map(cells, rows))


_BAD = ("failed", "differs")
"""Values of ``status`` that the page highlights."""


def _why(row: Mapping[str, Any]) -> str:
    """Return the error with its source, its hint and the last printed lines."""
    error = row["error"]
    if error is None:
        return text(row["not_run"] or "")
    lines = []
    if error["source"]:
        lines.append(f"at {error['source']}")
    if error["hint"]:
        lines.append(f"hint: {error['hint']}")
    for printed in row["measured"].get("printed") or []:
        lines.append(f"printed: {printed}")
    more = "<br/>".join(map(text, lines))
    stage = f" in {row['stage']}" if row["stage"] else ""
    shown = text(f"{error['code']}{stage}: {error['message']}")
    return f"<details><summary>{shown}</summary>{more}</details>" if more else shown


def _linked(shown: str, row: Mapping[str, Any], store: str) -> str:
    """Return a ``td`` element that links to the report of a row, if it has one."""
    kind = status(row) if status(row) in _BAD else ""
    target = row["measured"].get("page")
    if not target:
        return _td(shown, kind=kind)
    link = f'<a href="{text(quote(store + target))}">{text(shown)}</a>'
    return f"<td{_attribute('class', kind)}>{link}</td>"


def _td(shown: str, value: float | None = None, kind: str = "") -> str:
    """Return a ``td`` element. ``value``: the number by which it is sorted."""
    if value is None:
        return f"<td{_attribute('class', kind)}>{text(shown)}</td>"
    return f'<td data-value="{value!r}" class="number">{text(shown)}</td>'


def _attribute(name: str, value: str) -> str:
    """Return an attribute of an element; "" for an empty value."""
    return f' {name}="{text(value)}"' if value else ""


def _table(heads: Sequence[_Head], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Yield a table. ``rows``: ``td`` elements."""
    top = "".join(
        f'<th scope="col"{_attribute("title", title)}>{text(name)}</th>'
        for name, title in heads
    )
    yield f'<div class="wide"><table>\n<thead><tr>{top}</tr></thead>\n<tbody>\n'
    for cells in rows:
        yield f"<tr>{''.join(cells)}</tr>\n"
    yield "</tbody></table></div>\n"
