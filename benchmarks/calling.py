"""What a call of a lowered program costs beyond its runtime: arguments checked,
strides, results copied and returned.

    python benchmarks/calling.py [--calls 200] [--repeats 50]

A linear layer that is one delegate, and the same with operators around it that stay on
the host. CPU microseconds a call on one thread, the least of runs in turns in one
process. The runtime is called with prepared inputs; host operators in eager.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import delegraph
import measuring
import publishing
import torch
from delegraph.discovery.registry import default_registry


class Layer(torch.nn.Module):
    """A linear layer, with ``around`` operators before and after it that no backend
    here takes.
    """

    def __init__(self, around: int = 0) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.around = around

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.linear(self.before(x)))  # type: ignore[no-any-return]

    def before(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.around):
            x = torch.special.bessel_j0(x)
        return x

    after = before


def main() -> None:
    """Measure each backend and print a table."""
    parser = publishing.parser(__doc__)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=50)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    header = (
        "backend",
        "host operators",
        "runtime and operators alone, us",
        "lowered program, us",
        "difference, us",
    )
    rows = [_row(b, n, arguments) for b in ("tosa", "compiler-demo") for n in (0, 5)]
    packages = ["torch", "delegraph", "delegraph-tosa", "delegraph-demo"]
    publishing.report(
        arguments, "calling", packages, publishing.Table(header, rows, keys=2)
    )


def _row(backend: str, around: int, arguments: argparse.Namespace) -> list[str]:
    layer = Layer(around).eval()
    x = torch.randn(4, 8)
    lowered = delegraph.lower(layer, (x,), backends=[backend])
    (delegate,) = lowered.delegates
    if lowered.report.host_operators != 2 * around:
        raise SystemExit(
            f"{backend} takes an operator that is to stay on the"
            f" host:\n{lowered.report}"
        )
    module = delegate.module
    runtime = default_registry().runtime_for(module.backend_id)
    loaded = runtime.load(
        module.processed_bytes, module.compile_specs, module.named_data()
    )

    def alone() -> Any:
        return layer.after(loaded(layer.before(x))[0])

    with torch.no_grad():
        runs = [
            [
                _microseconds(call, arguments.calls)
                for call in (alone, lambda: lowered(x))
            ]
            for _ in range(arguments.repeats)
        ]
    bare, ours = (min(run[k] for run in runs) for k in range(2))
    return [
        backend,
        str(lowered.report.host_operators),
        f"{bare:.1f}",
        f"{ours:.1f}",
        f"{ours - bare:.1f}",
    ]


def _microseconds(call: Callable[[], Any], count: int) -> float:
    def run() -> None:
        for _ in range(count):
            call()

    return 1e6 * measuring.cpu_seconds(run)[1] / count


if __name__ == "__main__":
    main()
