"""What kernels of ExecuTorch's runtime compute of values that float32 does not hold,
beside eager.

    python benchmarks/kernel_numbers.py [--limits off] [WORD ...]

Run it with an interpreter that has delegraph's plugins and `executorch==1.5.1`. Each
call of ``CALLS`` is emitted for float64 (random numbers, to eleven digits; and the same
times 1e200), int64 (beyond 2**53) and int32 (beyond 2**24), run and compared with
eager; integers bit by bit. ``--limits off`` emits the kernels that ``kernels.limits``
refuses: what is wrong then is what the limits are for. Only calls with a word in their
names, if there are any.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import publishing
import torch
from torch import Tensor
from torch.nn import functional as f

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins" / "executorch_backend"))
aten = torch.ops.aten
Made = tuple[Callable[..., Any], tuple[Tensor, ...]]


def unary(x: Tensor) -> dict[str, Made]:
    """Calls of one tensor [4, 6] of numbers of any size."""
    functions: dict[str, Callable[..., Any]] = {
        **{
            name: getattr(torch, name)
            for name in (
                "abs neg sign ceil floor round trunc reciprocal isnan isinf".split()
            )
        },
        **{
            name: getattr(torch, name)
            for name in "sqrt rsqrt log log2 log10 log1p".split()
        },
        **{
            name: getattr(torch, name)
            for name in "asinh atan bitwise_not logical_not relu clone".split()
        },
        "sum": torch.sum,
        "sum of rows": lambda v: v.sum(1),
        "sum of all dims": lambda v: v.sum((0, 1)),
        "sum to float64": lambda v: v.sum(1, dtype=torch.float64),
        "mean": lambda v: v.mean(),
        "mean of rows": lambda v: v.mean(1),
        "var": lambda v: v.var(1),
        "std": lambda v: v.std(1),
        "var_mean": lambda v: torch.var_mean(v, 1),
        "prod": lambda v: v.prod(1),
        "nansum": torch.nansum,
        "nanmean": torch.nanmean,
        "prod of all": lambda v: v.prod(),
        "norm": lambda v: v.norm(),
        "cumsum": lambda v: v.cumsum(1),
        "logsumexp": lambda v: v.logsumexp(1),
        "count_nonzero": torch.count_nonzero,
        "softmax": lambda v: v.softmax(1),
        "log_softmax": lambda v: v.log_softmax(1),
        "layer_norm": lambda v: f.layer_norm(v, (6,)),
        "group_norm": lambda v: f.group_norm(v, 2),
        "instance_norm": lambda v: f.instance_norm(v[None]),
        "rms_norm": lambda v: f.rms_norm(v, (6,)),
        "batch_norm": lambda v: f.batch_norm(v, v[0].abs(), v[1].abs()),
        "batch_norm of its own": lambda v: f.batch_norm(v, None, None, training=True),
        "amax": lambda v: v.amax(1),
        "amin": lambda v: v.amin(1),
        "max": lambda v: v.max(1),
        "min": lambda v: v.min(1),
        "max of all": lambda v: v.max(),
        "min of all": lambda v: v.min(),
        "argmax": lambda v: v.argmax(1),
        "argmin": lambda v: v.argmin(1),
        "topk": lambda v: v.topk(2, 1),
        "sort": lambda v: v.sort(1),
        "avg_pool2d": lambda v: f.avg_pool2d(v[None], 2),
        "max_pool2d": lambda v: f.max_pool2d(v[None], 2),
        "adaptive_avg_pool2d": lambda v: f.adaptive_avg_pool2d(v[None], 3),
        "avg_pool1d": lambda v: f.avg_pool1d(v, 2),
        "bilinear": lambda v: f.interpolate(
            v[None, None], scale_factor=2, mode="bilinear"
        ),
        "bilinear, antialias": lambda v: f.interpolate(
            v[None, None], (3, 3), mode="bilinear", antialias=True
        ),
        "nearest": lambda v: f.interpolate(v[None, None], scale_factor=2),
        "grid_sample": lambda v: f.grid_sample(
            v[None, None], torch.linspace(-1, 1, 18, dtype=v.dtype).view(1, 3, 3, 2)
        ),
        "glu": lambda v: f.glu(v, 1),
        "leaky_relu": lambda v: f.leaky_relu(v, 0.3),
        "elu": lambda v: f.elu(v, 0.7),
        "hardtanh": lambda v: f.hardtanh(v, -0.3, 1e100),
        "clamp": lambda v: torch.clamp(v, -(2**40) - 1, 2**60 + 1),
        "gelu": f.gelu,
        "gelu by tanh": lambda v: f.gelu(v, approximate="tanh"),
        "silu": f.silu,
        "softplus": f.softplus,
        "cdist": lambda v: torch.cdist(v, v.flip(0)),
        "pdist": lambda v: f.pdist(v),
        "flip": lambda v: v.flip(1),
        "to int64": lambda v: v.long(),
        "to int32": lambda v: v.int(),
        "to float64": lambda v: v.double(),
        "to float32": lambda v: v.float(),
        "pad": lambda v: f.pad(v, (1, 1), value=2**53 + 1),
        "reflection_pad": lambda v: f.pad(v[None], (1, 1), mode="reflect"),
        "tril": torch.tril,
        "roll": lambda v: v.roll(1),
        "masked_fill": lambda v: v.masked_fill(v > 0, 2**30 + 1),
        "full_like": lambda v: torch.full_like(v, 2**30 + 1) + v,
        "add number": lambda v: v + (2**30 + 1),
        "mul number": lambda v: v * (2**20 + 1),
        "sub number": lambda v: v - (2**30 + 1),
        "rsub number": lambda v: (2**30 + 1) - v,
        "add float": lambda v: v + 0.1,
        "mul float": lambda v: v * 0.1,
        "div number": lambda v: v / 3,
        "div floor number": lambda v: torch.div(v, 3, rounding_mode="floor"),
        "div trunc number": lambda v: torch.div(v, 3, rounding_mode="trunc"),
        "floor_divide number": lambda v: v // 7,
        "remainder number": lambda v: v % 7,
        "fmod number": lambda v: torch.fmod(v, 7),
        "pow 2": lambda v: v**2,
        "pow 3": lambda v: v**3,
        "pow 0.5": lambda v: v.abs() ** 0.5,
        "round to 2": lambda v: torch.round(v, decimals=2),
        "eq number": lambda v: v == 2**53 + 1,
        "lt number": lambda v: v < 2**53 + 1,
        "ge number": lambda v: v >= 2**53 + 1,
        "ne number": lambda v: v != 2**53 + 1,
        "where number": lambda v: torch.where(v > 0, v, 2**30 + 1),
        "and number": lambda v: v & (2**30 + 1),
        "shift": lambda v: v << 3,
        "shift right": lambda v: v >> 3,
        "alpha": lambda v: torch.add(v, v, alpha=3),
        "dropout": lambda v: aten.native_dropout(v, 0.5, False)[0],
        "scatter number": lambda v: v.scatter(1, torch.zeros(4, 1).long(), 2**30 + 1),
        "diagonal": lambda v: v.diagonal(),
        "repeat_interleave": lambda v: v.repeat_interleave(2, 0),
        "any": lambda v: v.any(1),
        "nonzero": lambda v: v.nonzero(),
        "item": lambda v: v * v[0, 0].item(),
        "fft": lambda v: torch.view_as_real(torch.fft.rfft(v)),
    }
    return {name: (function, (x,)) for name, function in functions.items()}


def bounded(x: Tensor) -> dict[str, Made]:
    """Calls of numbers in [0.1, 0.9], for functions of floats that take no others."""
    names = (
        "acos asin acosh atanh cos cosh erf exp expm1 sin sinh tan tanh sigmoid exp2"
        " logit special_erfcx lgamma"
    )
    functions = {
        name: getattr(torch, name, None) or getattr(torch.special, name[8:])
        for name in names.split()
    }
    functions["acosh"] = lambda v: torch.acosh(v + 1)
    return {
        name: (function, (x.sigmoid() * 0.8 + 0.1,))
        for name, function in functions.items()
    }


def binary(x: Tensor, y: Tensor) -> dict[str, Made]:
    """Calls of two tensors [4, 6]."""
    names = (
        "add sub mul div maximum minimum fmax fmin atan2 hypot fmod remainder"
        " floor_divide pow eq ne lt le gt ge"
    )
    functions: dict[str, Callable[..., Any]] = {
        name: getattr(torch, name) for name in names.split()
    }
    functions |= {
        name: getattr(torch, name)
        for name in "logical_and logical_xor bitwise_and bitwise_or".split()
    }
    row = torch.tensor([0, 2, 2, 1])
    functions |= {
        "mm": lambda a, b: a @ b.t(),
        "bmm": lambda a, b: a[None] @ b.t()[None],
        "linear": f.linear,
        "dot": lambda a, b: a[0] @ b[0],
        "addmm": lambda a, b: torch.addmm(a[:, :4], a, b.t(), beta=2, alpha=3),
        "matvec": lambda a, b: a @ b[0],
        "conv1d": lambda a, b: f.conv1d(a[None], b[:, :, None][:, :4]),
        "conv2d": lambda a, b: f.conv2d(a[None, None], b[None, None, :2, :2]),
        "conv_transpose": lambda a, b: f.conv_transpose2d(
            a[None, None], b[None, None, :2, :2]
        ),
        "div floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
        "div trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
        "where": lambda a, b: torch.where(a > b, a, b),
        "clamp by tensors": lambda a, b: torch.clamp(a, b, b + 1),
        "scatter_add": lambda a, b: a.scatter_add(0, row[:, None].expand(4, 6) % 4, b),
        "index_add": lambda a, b: a.index_add(0, row, b),
        "index_put": lambda a, b: a.index_put((row,), b),
        "index_put, accumulated": lambda a, b: a.index_put((row,), b, accumulate=True),
        "addcmul": lambda a, b: torch.addcmul(a, a, b, value=3),
        "lerp": lambda a, b: torch.lerp(a, b, 0.3),
        "cat": lambda a, b: torch.cat([a, b]),
        "stack": lambda a, b: torch.stack([a, b]),
        "mse_loss": f.mse_loss,
        "cosine_similarity": f.cosine_similarity,
        "masked_scatter": lambda a, b: a.masked_scatter(a > 0, b),
        "searchsorted": lambda a, b: torch.searchsorted(a.sort(1)[0], b),
        "embedding": lambda a, b: f.embedding(row, a) + b,
        "attention": lambda a, b: f.scaled_dot_product_attention(
            a[None], b[None], a[None]
        ),
        "cross": lambda a, b: torch.linalg.cross(a[:, :3], b[:, :3]),
    }
    return {name: (function, (x, y)) for name, function in functions.items()}


def halves() -> dict[str, Made]:
    """Sums of many numbers, in which an accumulator of 16 bits stands still."""
    functions = {
        "sum": lambda v: v.sum(1),
        "mean": lambda v: v.mean(1),
        "cumsum": lambda v: v.cumsum(1),
        "var": lambda v: v.var(1),
        "softmax": lambda v: v.softmax(1),
        "log_softmax": lambda v: v.log_softmax(1),
        "mm": lambda v: v @ v.t(),
        "layer_norm": lambda v: f.layer_norm(v, (4096,)),
        "group_norm": lambda v: f.group_norm(v.view(1, 2, 4096), 1),
        "linear": lambda v: f.linear(v, v),
        "conv1d": lambda v: f.conv1d(v[None], v[None, :, :2048]),
        "avg_pool2d": lambda v: f.avg_pool2d(v.view(1, 1, 64, 128), 64),
        "bmm": lambda v: v[None] @ v.t()[None],
        "adaptive_avg_pool2d": lambda v: f.adaptive_avg_pool2d(
            v.view(1, 1, 64, 128), 1
        ),
        "norm": lambda v: v.norm(),
        "scatter_add": (
            lambda v: torch.zeros_like(v[:, :1]).scatter_add(
                1, torch.zeros(2, 4096).long(), v
            )
        ),
        "index_put": (
            lambda v: torch.zeros_like(v[0, :1]).index_put(
                (torch.zeros(4096).long(),), v[0], accumulate=True
            )
        ),
        "batch_norm": lambda v: f.batch_norm(
            v.view(1, 2, 4096), None, None, training=True
        ),
        "cdist": lambda v: torch.cdist(v, v * 2),
    }
    torch.manual_seed(0)
    made = {}
    for dtype in (torch.float16, torch.bfloat16):
        x = (1 + torch.rand(2, 4096) / 4).to(dtype)
        made |= {
            f"{str(dtype)[6:]}: {name}": (function, (x,))
            for name, function in functions.items()
        }
    return made


def calls() -> dict[str, Made]:
    """All calls, by element type and name."""
    torch.manual_seed(0)
    x = torch.randn(4, 6, dtype=torch.float64)
    y = torch.randn(4, 6, dtype=torch.float64)
    whole = torch.randint(1, 900, (4, 6)) * torch.tensor([1, -1, 1]).repeat(2)
    other = torch.randint(1, 90, (4, 6))
    sets: dict[str, dict[str, Made]] = {
        "float64": unary(x) | bounded(x) | binary(x, y),
        "float64 * 1e200": unary(x * 1e200) | binary(x * 1e200, y * 1e100),
        "int64": (
            unary(whole + whole.sign() * (2**53 + 1))
            | binary(whole + whole.sign() * (2**53 + 1), other)
        ),
        "int32": (
            unary((whole + whole.sign() * (2**24 + 1)).int())
            | binary((whole + 2**24 + 1).int(), other.int())
        ),
    }
    return {
        f"{kind}: {name}": made
        for kind, of in sets.items()
        for name, made in of.items()
    } | halves()


def outcome(
    function: Callable[..., Any], inputs: tuple[Tensor, ...]
) -> tuple[str, str]:
    """(kind, reason), with the kernels of the file where it is wrong."""
    import delegraph
    from delegraph.errors import DelegraphError
    from delegraph_executorch.emit import emit_program
    from executorch.runtime import Runtime
    from tests.support.programs import Function
    from torch.utils import _pytree as pytree

    try:
        with torch.no_grad():
            wanted = pytree.tree_leaves(function(*(t.clone() for t in inputs)))
            wide = pytree.tree_leaves(
                function(*(t.double() if t.itemsize == 2 else t for t in inputs))
            )
        emitted = emit_program(
            delegraph.lower(
                torch.export.export(Function(function), inputs), backends=[]
            )
        )
    except DelegraphError as e:
        return "refused", e.message
    except Exception as e:  # eager's and torch.export's own, of many kinds
        return "not in eager", str(e)[:80]
    kernels = " ".join(
        sorted({str(o) for plan in emitted.program.plans for o in plan.operators})
    )
    try:
        content = emitted.file.join()
        program = Runtime.get().load_program(content)
        got = program.load_method("forward").execute([t.contiguous() for t in inputs])
    except RuntimeError as e:
        return "failed", f"{kernels}: {e}"
    for ours, theirs, exact in zip(got, wanted, wide, strict=True):
        if not _is_right(ours, theirs, exact):
            where = ~torch.isclose(ours, theirs, rtol=0, atol=0, equal_nan=True)
            first = (
                [t[where].flatten()[:1].tolist() for t in (ours, theirs)]
                if ours.shape == theirs.shape
                else [ours.shape]
            )
            return "wrong", f"{kernels}: {first}"
    return "right", ""


def _is_right(ours: Any, theirs: Any, exact: Any) -> bool:
    if not isinstance(theirs, Tensor) or (ours.dtype, ours.shape) != (
        theirs.dtype,
        theirs.shape,
    ):
        return bool(ours == theirs) if not isinstance(theirs, Tensor) else False
    if not theirs.is_floating_point():
        return torch.equal(ours, theirs)
    tolerance = {
        torch.float64: 1e-11,
        torch.float32: 1e-5,
        torch.float16: 2e-3,
        torch.bfloat16: 1.6e-2,
    }[theirs.dtype]
    scale = theirs.double().nan_to_num(0, 0, 0).abs().max() if theirs.numel() else 0.0
    near = torch.isclose(
        ours.double(),
        theirs.double(),
        rtol=tolerance,
        atol=tolerance * float(scale),
        equal_nan=True,
    )
    errors = [(t.double() - exact.double()).abs() for t in (ours, theirs)]
    return bool(
        (near | (errors[0] <= errors[1]) if theirs.itemsize == 2 else near).all()
    )


def main() -> None:
    """Run all calls and print what is not right, by kind."""
    parser = publishing.parser(__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--limits", choices=["on", "off"], default="on")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    if arguments.limits == "off":
        from delegraph_executorch.emit import kernel_calls

        kernel_calls.why_not = lambda *_: None  # type: ignore[assignment]
    counts: dict[str, int] = {}
    for name, (function, inputs) in calls().items():
        if not arguments.words or any(word in name for word in arguments.words):
            kind, why = outcome(function, inputs)
            counts[kind] = counts.get(kind, 0) + 1
            if kind in ("wrong", "failed", "refused"):
                print(f"{kind}: {name}: {' '.join(why.split())[:230]}", flush=True)
    row = [
        arguments.limits,
        *(str(counts.get(kind, 0)) for kind in ("right", "refused", "wrong", "failed")),
    ]
    table = publishing.Table(("limits", "right", "refused", "wrong", "failed"), [row])
    publishing.report(arguments, "kernel_numbers", ["torch", "executorch"], table)


if __name__ == "__main__":
    main()
