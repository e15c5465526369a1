"""How far results of single operators are from float64, through the reference model,
through `evaluate`, and in eager.

    python benchmarks/accuracy.py [NAME ...]

Each function is computed over a dense grid of its domain, half of it evenly and half of
it by size down to 1e-30. The error is |y - exact| / max(|exact|, scale), the largest
one of all finite results that are normal numbers; the scale is that of the values among
which the function is used, 0 where every digit counts. The bound is 2e-6.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import delegraph
import numpy as np
import publishing
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins" / "tosa_backend"))
POINTS = 50_000
COLUMNS = ("function", "domain", "scale", "reference model", "evaluate", "eager")


class Row(NamedTuple):
    """A function of one tensor or two, the interval that its operands are from, and the
    scale of its results.
    """

    function: Callable[..., torch.Tensor]
    low: float
    high: float
    scale: float = 0.0
    operands: int = 1


ANY = (-80.0, 80.0)
POSITIVE = (1e-30, 1e4)
ROWS = {
    **{
        name: Row(getattr(torch, name), *ANY)
        for name in ("exp", "exp2", "sinh", "cosh", "expm1", "atan", "asinh")
    },
    **{
        name: Row(getattr(torch, name), *ANY)
        for name in ("tanh", "sigmoid", "erf", "square", "abs", "reciprocal")
    },
    **{
        name: Row(getattr(torch, name), -100, 100, 1.0)
        for name in ("sin", "cos", "sinc")
    },
    "tan": Row(torch.tan, -1.5, 1.5),
    **{
        name: Row(getattr(torch, name), *POSITIVE)
        for name in ("log", "log2", "log10", "log1p", "sqrt", "rsqrt")
    },
    **{
        name: Row(getattr(torch, name), -1, 1)
        for name in ("asin", "acos", "atanh", "erfinv")
    },
    "acosh": Row(torch.acosh, 1, 1e4),
    "erfc": Row(torch.erfc, -8, 8),
    "erfcx": Row(torch.special.erfcx, -8, 100),
    "logit": Row(torch.logit, 0, 1, 1.0),
    **{name: Row(getattr(torch.special, name), *ANY) for name in ("i0", "i0e")},
    "log_ndtr": Row(torch.special.log_ndtr, -10, 5),
    **{
        name: Row(getattr(F, name), *ANY)
        for name in ("silu", "elu", "selu", "celu", "softplus", "logsigmoid", "mish")
    },
    **{
        name: Row(getattr(F, name), *ANY)
        for name in ("softsign", "hardswish", "hardsigmoid")
    },
    "tanhshrink": Row(F.tanhshrink, *ANY, scale=1.0),
    "gelu": Row(F.gelu, -10, 10, 1.0),
    "gelu by tanh": Row(lambda x: F.gelu(x, approximate="tanh"), -10, 10, 1.0),
    **{
        f"x ** {p}": Row(lambda x, p=p: x**p, *POSITIVE)
        for p in (1.7, -0.3, 1.5, 3, -2)
    },
    "2.5 ** x": Row(lambda x: 2.5**x, -40, 40),
    "pow": Row(torch.pow, 0.1, 20, operands=2),
    "div": Row(torch.div, *ANY, operands=2),
    "atan2": Row(torch.atan2, *ANY, operands=2),
    "hypot": Row(torch.hypot, *ANY, operands=2),
    "logaddexp": Row(torch.logaddexp, *ANY, scale=1.0, operands=2),
    "logaddexp2": Row(torch.logaddexp2, *ANY, scale=1.0, operands=2),
    "xlogy": Row(torch.xlogy, *POSITIVE, operands=2),
    "remainder of up to 80 / 3": Row(
        lambda x: torch.remainder(x, 3.0), *ANY, scale=3.0
    ),
    **{
        name: Row(lambda x, n=name: getattr(x.view(-1, 50), n)(-1), *ANY, scale=1.0)
        for name in ("softmax", "log_softmax", "logsumexp")
    },
    **{
        name: Row(lambda x, n=name: getattr(x.view(-1, 50), n)(-1), *ANY, scale=80.0)
        for name in ("mean", "std", "cumsum")
    },
    "norm": Row(lambda x: x.view(-1, 50).norm(dim=-1), *ANY, scale=80.0),
    "var": Row(lambda x: x.view(-1, 50).var(-1), *ANY, scale=80.0),
    "layer_norm": Row(lambda x: F.layer_norm(x.view(-1, 50), (50,)), *ANY, scale=1.0),
    "rms_norm": Row(lambda x: F.rms_norm(x.view(-1, 50), (50,)), *ANY, scale=1.0),
}


def main() -> None:
    """Print the table, largest errors first."""
    from tests.support.reference_tools import run_reference_model_on_all

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    parser = publishing.parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    given = parser.parse_args()
    chosen = {name: ROWS[name] for name in given.names or ROWS}
    work = {name: _compiled(row) for name, row in chosen.items()}
    judged = run_reference_model_on_all(
        [(blob, [x.numpy() for x in inputs]) for inputs, _, blob in work.values()]
    )
    lines = [
        (name, *_errors(chosen[name], *work[name], reference))
        for name, reference in zip(work, judged, strict=True)
    ]
    lines.sort(key=lambda line: -line[1])
    rows = [
        [name, *_shown(chosen[name]), *map(_figure, errors)] for name, *errors in lines
    ]
    publishing.report(
        given, "accuracy", ["torch", "tosa-tools"], publishing.Table(COLUMNS, rows)
    )


def _compiled(row: Row) -> tuple[list[torch.Tensor], Any, bytes]:
    class Function(torch.nn.Module):
        def forward(self, *args: torch.Tensor) -> torch.Tensor:
            return row.function(*args)

    inputs = [_grid(row, seed) for seed in range(row.operands)]
    lowered = delegraph.lower(
        Function().eval(), tuple(inputs), backends=["tosa"], require_full=True
    )
    return inputs, lowered, bytes(lowered.delegates[0].processed_bytes)


def _grid(row: Row, seed: int) -> torch.Tensor:
    """Points of the domain, in an order of their own for each operand."""
    half = POINTS // 2
    evenly = torch.linspace(row.low, row.high, half, dtype=torch.float64)
    largest = max(abs(row.low), abs(row.high))
    by_size = torch.logspace(-30, math.log10(largest), half, dtype=torch.float64)
    by_size[::2] *= -1 if row.low < 0 else 1
    points = torch.cat([evenly, by_size.clamp(row.low, row.high)]).float()
    return points[torch.randperm(POINTS, generator=torch.Generator().manual_seed(seed))]


def _errors(
    row: Row,
    inputs: list[torch.Tensor],
    lowered: Any,
    blob: bytes,
    reference: list[Any],
) -> Iterator[float]:
    exact = row.function(*[x.double() for x in inputs]).numpy()
    found = reference[0], lowered(*inputs).numpy(), row.function(*inputs).numpy()
    for result in found:
        yield _error(np.asarray(result).reshape(exact.shape), exact, row.scale)


def _error(found: Any, exact: Any, scale: float) -> float:
    normal = np.isfinite(exact) & (np.abs(exact) < 3e38) & (np.abs(exact) > 2e-38)
    with np.errstate(all="ignore"):
        error = np.abs(found - exact) / np.maximum(np.abs(exact), scale)
    return float(np.where(normal, error, 0).max())


def _shown(row: Row) -> tuple[str, str]:
    return f"{row.low:g} .. {row.high:g}", f"{row.scale:g}"


def _figure(error: float) -> str:
    return f"{error:.1e}"


if __name__ == "__main__":
    main()
