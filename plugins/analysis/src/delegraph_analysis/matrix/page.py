"""Write a page of a matrix that opens without network.

Its tables can be sorted and filtered, and each cell links to its report.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from ..drawing import head, text
from .refusals import refusals_of
from .rows import key_of, status
from .tables import COLUMNS, REFUSED, by_model, in_short, summary, text_of

# The script contains no text of a model, and makes no markup of the texts of the page.
# "<" and "&" do not occur, so that a page is XML.
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

    ``store`` is the path of the store from the folder of the page, "" or with "/" at
    its end.
    """
    parts = [
        head(title, script=SCRIPT, style=_STYLE),
        f"<body>\n<header><h1>{text(title)}</h1>\n",
    ]
    parts.append(
        f"<p>{text(summary(rows, len(rows)))}; {text(_machines(rows))}</p></header>\n"
    )
    parts += [
        "<h2>By model</h2>\n",
        *_by_model(rows, store),
        "<h2>Cells</h2>\n",
        *_cells(rows, store),
    ]
    refused = refusals_of(rows)
    if refused:
        body = [
            [
                _td(str(refusal.count), refusal.count),
                _td(refusal.backend),
                _td(refusal.operator),
                _td(_reason(refusal)),
                _td(", ".join(refusal.models)),
            ]
            for refusal in refused
        ]
        parts += [
            "<h2>Refused operators</h2>\n",
            *_table([(h, "") for h in REFUSED], body),
        ]
    return "".join([*parts, "</body></html>\n"])


def _reason(refusal: Any) -> str:
    if refusal.hint:
        return f"{refusal.reason} (hint: {refusal.hint})"
    return str(refusal.reason)


def _machines(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the processors and versions of the figures."""
    machines = [row["measured"].get("machine") or {} for row in rows]
    parts = list(
        dict.fromkeys(f"{m.get('cpus')} x {m.get('cpu')}" for m in machines if m)
    )
    for name in ("delegraph", "torch"):
        known = [row["versions"][name] for row in rows if name in row["versions"]]
        if known:
            parts.append(f"{name} {known[-1]}")
    return ", ".join(parts)


def _by_model(rows: Sequence[Mapping[str, Any]], store: str) -> Iterator[str]:
    heads, body = by_model(rows)
    found = {key_of(row): row for row in rows}

    def cells(line: Sequence[str]) -> Iterator[str]:
        yield from (_td(cell) for cell in line[:2])
        for target in heads[2:]:
            row = found.get((line[0], target, line[1]))
            yield _td("") if row is None else _linked(in_short(row), row, store)

    yield from _table([(name, "") for name in heads], (cells(line) for line in body))


def _cells(rows: Sequence[Mapping[str, Any]], store: str) -> Iterator[str]:
    def cells(row: Mapping[str, Any]) -> Iterator[str]:
        for column in COLUMNS:
            value = column.value(row)
            shown = text_of(column, row)
            if column.head == "model":
                yield _linked(shown, row, store)
            elif column.head == "why":
                yield f'<td class="text">{_why(row)}</td>'
            else:
                yield _td(
                    shown,
                    value if isinstance(value, (int, float)) else None,
                    _kind(column.head, shown),
                )

    yield from _table(
        [(column.head, column.title) for column in COLUMNS],
        (cells(row) for row in rows),
    )


def _kind(name: str, shown: str) -> str:
    return shown if name == "status" and shown in ("failed", "differs") else ""


def _why(row: Mapping[str, Any]) -> str:
    """Return the error with its source, its hint and the last printed lines."""
    error = row["error"]
    if error is None:
        return text(row["not_run"] or "")
    lines = [
        error["source"] and f"at {error['source']}",
        error["hint"] and f"hint: {error['hint']}",
    ]
    printed = row["measured"].get("printed") or []
    more = "<br/>".join(
        text(line)
        for line in [*filter(None, lines), *(f"printed: {p}" for p in printed)]
    )
    stage = f" in {row['stage']}" if row["stage"] else ""
    shown = text(f"{error['code']}{stage}: {error['message']}")
    return f"<details><summary>{shown}</summary>{more}</details>" if more else shown


def _linked(shown: str, row: Mapping[str, Any], store: str) -> str:
    """A cell of a table that leads to the cell's report, if it has one."""
    target = row["measured"].get("page")
    kind = f' class="{status(row)}"' if status(row) in ("failed", "differs") else ""
    if not target:
        return f"<td{kind}>{text(shown)}</td>"
    return f'<td{kind}><a href="{text(quote(store + target))}">{text(shown)}</a></td>'


def _td(shown: str, value: float | None = None, kind: str = "") -> str:
    number = "" if value is None else f' data-value="{value!r}"'
    names = " ".join(filter(None, ["number" if value is not None else "", kind]))
    return f"<td{number}{f' class={chr(34)}{names}{chr(34)}' if names else ''}>{text(shown)}</td>"


def _table(heads: Sequence[tuple[str, str]], rows: Any) -> Iterator[str]:
    top = "".join(
        f'<th scope="col"{f" title={chr(34)}{text(w)}{chr(34)}" if w else ""}>{text(h)}</th>'
        for h, w in heads
    )
    yield f'<div class="wide"><table>\n<thead><tr>{top}</tr></thead>\n<tbody>\n'
    for cells in rows:
        yield f"<tr>{''.join(cells)}</tr>\n"
    yield "</tbody></table></div>\n"
