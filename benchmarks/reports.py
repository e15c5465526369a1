"""What looking at a lowering costs beside it, of programs of 2,000 nodes: report, diff,
verification of all operators.

    python benchmarks/reports.py

Three programs: one that TOSA takes except for an operator in every thirtieth call, the
same with a dynamic size, so that all is left to the host and the report asks the
backend about static sizes, and one in int64, where it asks about int32. ``operators``
is `verify(per_operator=True)`. All that together is set against the lowering and two
runs in eager: of a model, which is exported first, and of a program that is exported
already. CPU seconds on one thread, of a run after one that is not counted; the rows of
a report are built when it is first read, so their time is the text's.
"""

from __future__ import annotations

import functools
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import delegraph
import publishing
import torch
from delegraph_analysis.commands.diff import compare
from delegraph_analysis.drawing import layout
from torch.export import Dim, export

LAYERS = 650


class Layers(torch.nn.Module):
    """``LAYERS`` times linear, relu, add, and a sort now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(LAYERS))
        for parameter in self.parameters():
            # or values grow from layer to layer until they are infinite
            parameter.data *= 0.01

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for k, layer in enumerate(self.layers):
            x = torch.relu(layer(x)) + x
            x = (
                torch.linalg.inv_ex(x[:, :4, :4] + 100 * torch.eye(4))[0].sum() + x
                if k % 10 == 0
                else x
            )
        return x


class Counts(torch.nn.Module):
    """``3 * LAYERS`` calls on int64."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for k in range(LAYERS):
            x = (x + k) * 2 - x
        return x


def programs() -> Iterator[tuple[str, torch.nn.Module, tuple[torch.Tensor, ...], Any]]:
    """Name, module, example inputs, dynamic shapes."""
    x = torch.randn(2, 8, 8)
    yield "with a refusal in every thirtieth call", Layers().eval(), (x,), None
    yield "with a dynamic size", Layers().eval(), (x,), ({0: Dim("batch")},)
    yield "in int64", Counts().eval(), (torch.arange(8),), None


COLUMNS = ("program", "nodes", "causes", "export s", "lower s", "eager s", "text s", "JSON s", "page s", "diff s",
           "operators s", "all / a model's lowering", "all / a program's lowering")  # fmt: skip


def main() -> None:
    """Print the table."""
    given = publishing.parser(__doc__).parse_args()
    table = publishing.Table(COLUMNS, [_row(*program) for program in programs()])
    publishing.report(given, "reports", ["torch", "delegraph-tosa"], table)


def _row(
    name: str, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], shapes: Any
) -> list[str]:
    exported, program = timed(
        functools.partial(export, module, inputs, dynamic_shapes=shapes)
    )
    delegraph.lower(program, backends=["tosa"]).report.to_html()
    # a page places boxes that were not placed before, but for those of its own pictures
    layout._lay_out.cache_clear()
    lower, lowered = timed(
        functools.partial(delegraph.lower, program, backends=["tosa"])
    )
    report = lowered.report
    parts = [
        timed(read)[0] for read in (report.to_text, report.to_json, report.to_html)
    ]
    data = report.to_json()
    parts.append(timed(lambda: list(compare(data, data)))[0])
    module(*inputs)
    eager, _ = timed(lambda: module(*inputs))
    lowered.verify(*inputs, per_operator=True)
    parts.append(timed(lambda: lowered.verify(*inputs, per_operator=True))[0])
    nodes = sum(n.op == "call_function" for n in program.graph.nodes)
    shares = [
        sum(parts) / (seconds + 2 * eager) for seconds in (exported + lower, lower)
    ]
    figures = [f"{p:.3f}" for p in (exported, lower, eager, *parts)]
    return [
        name,
        f"{nodes:,}",
        str(len(report.causes)),
        *figures,
        *(f"{share:.0%}" for share in shares),
    ]


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of a call, and its result. What those before left to collect is not
    its.
    """
    gc.collect()
    start = time.process_time()
    result = run()
    return time.process_time() - start, result


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
