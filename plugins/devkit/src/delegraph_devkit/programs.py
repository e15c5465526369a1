"""Define the programs for checks, as text that failure messages show."""

from __future__ import annotations

import inspect
import linecache
import logging
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from delegraph.errors import DelegraphError, InputError
from delegraph_programs.separate_inputs import distinct_inputs
from torch.export import Dim, ExportedProgram

Example = tuple[torch.nn.Module | ExportedProgram, tuple[Any, ...]]
"""A module in eval mode, or an exported program, and example inputs."""
Exported = tuple[ExportedProgram, tuple[Any, ...]]
"""A program and example inputs."""


LEAST = 1
MOST = 8
BATCH = Dim("n", min=LEAST, max=MOST)
"""The dynamic size of a batch.

Engines that broadcast at run time differ for a batch of one.
"""
AUTO_SIZES = (3, 2, 5)
"""The sizes of calls if torch.export chooses the range, which may begin at 2."""


@dataclass(frozen=True)
class Program:
    """A module with inputs, which ``make(n)`` builds for batches of ``n``.

    ``source`` is Python that sets ``model`` and ``inputs``, for failure messages. By
    default, they show the exported program. ``members`` are the programs of which this
    one consists. They are tried one by one if it fails.
    """

    name: str
    source: str
    make: Callable[[int], Example]
    batched: bool = False
    """Whether ``n`` matters: the first dimension of every input may then be dynamic."""
    special: bool = False
    """Whether inputs have values for which a backend may declare ``known_differences``.
    """
    members: tuple[Program, ...] = ()
    own: bool = False
    """Whether it is the backend's own example: a failing export is then an error."""

    @cached_property
    def exported(self) -> Exported | None:
        """Return the exported program and its inputs; None if torch cannot export it.

        A failing export is not the backend's fault. The program is exported once:
        checks verify that lowering does not change it. Raises the DelegraphError of the
        example, and InputError for an example that torch cannot export.
        """
        return self._export(dynamic=False)

    @cached_property
    def exported_dynamic(self) -> Exported | None:
        """Return the program with a dynamic first dimension of every input.

        The range of the size is LEAST to MOST, if torch can export that.
        """
        return self._export(dynamic=True, size=BATCH) or self._export(dynamic=True)

    @property
    def dynamic_sizes(self) -> tuple[int, ...]:
        """Return sizes with which ``exported_dynamic`` is called.

        They are the least of its range, the next, a middle one and the largest.
        """
        if self.exported_dynamic is None:
            return AUTO_SIZES
        program, _ = self.exported_dynamic
        if any(range.upper == MOST for range in program.range_constraints.values()):
            return (LEAST, LEAST + 1, (LEAST + MOST) // 2, MOST)
        return AUTO_SIZES

    def _export(self, dynamic: bool, size: Any = Dim.AUTO) -> Exported | None:
        """Export the program; with ``dynamic``, ``size`` is the size of a batch."""
        with undisturbed():
            try:
                module, inputs = self.make(3)
                if isinstance(module, ExportedProgram):
                    return None if dynamic else (module, inputs)
                shapes = _dynamic_shapes(module, inputs, size) if dynamic else None
                exported = torch.export.export(
                    module, distinct_inputs(inputs, module), dynamic_shapes=shapes
                )
                return exported, inputs
            except DelegraphError:
                raise
            except Exception as e:  # limits of torch.export, of many types
                if self.own and not dynamic:
                    text = f"torch cannot export the example: {type(e).__name__}: {e}"
                    raise InputError("input-invalid", text) from e
                return None


def _dynamic_shapes(module: torch.nn.Module, inputs: Sequence[Any], size: Any) -> Any:
    """Return ``dynamic_shapes`` of torch.export with ``size`` for first dimensions."""
    shapes = tuple(
        {0: size} if isinstance(value, torch.Tensor) and value.dim() else None
        for value in inputs
    )
    parameters = inspect.signature(module.forward).parameters.values()
    # torch.export takes the shapes of *args as one nested tuple
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return (shapes,)
    return shapes


@contextmanager
def undisturbed() -> Iterator[None]:
    """Keep torch's random state, and drop its warnings and logs."""
    logged = logging.root.manager.disable
    logging.disable()
    try:
        with torch.random.fork_rng(devices=()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logged)


def from_text(name: str, source: str, batched: bool = False, **fields: Any) -> Program:
    """Return a program from text that sets ``model`` and ``inputs``.

    ``N`` is the size of a batch in the text.
    """
    text = textwrap.dedent(source).strip() + "\n"
    file = f"<delegraph_devkit {name}>"

    def make(n: int) -> Example:
        linecache.cache[file] = (len(text), None, text.splitlines(True), file)
        scope: dict[str, Any] = {"N": n, "__name__": "delegraph_devkit_program"}
        with undisturbed():
            exec(compile(text, file, "exec"), scope)
        return scope["model"].eval(), scope["inputs"]

    return Program(name, f"N = 3\n{text}" if batched else text, make, batched, **fields)


def own_example(example: Callable[[], Example]) -> Program:
    """Return the backend's own example, made with the same random numbers every time."""

    def make(n: int) -> Example:
        with undisturbed():
            torch.manual_seed(0)
            return example()

    return Program("example", _source_text(example), make, own=True)


def _source_text(example: Callable[[], Example]) -> str:
    """Return lines that make the example; "" if no file can be imported."""
    # "<locals>" and "<lambda>" in a qualified name cannot be imported
    if inspect.isfunction(example) and "<" not in example.__qualname__:
        return f"import runpy\n\nmodel, inputs = {place_text(example)}()\n"
    source: str = getattr(example, "source", "")
    return source


def place_text(function: Callable[..., Any]) -> str:
    """Return an expression that loads a function from its file.

    The file's folder need not be on the path.
    """
    file = inspect.getfile(function)
    name, *attributes = function.__qualname__.split(".")
    read = f"runpy.run_path({file!r}, run_name={Path(file).stem!r})[{name!r}]"
    return ".".join([read, *attributes])


def in_other_layout(program: Program) -> Program:
    """Return the same program with inputs whose first dimension is contiguous."""

    def make(n: int) -> Example:
        module, inputs = program.make(n)
        return module, tuple(
            x.transpose(0, -1).contiguous().transpose(0, -1) for x in inputs
        )

    line = (
        "inputs = tuple(x.transpose(0, -1).contiguous().transpose(0, -1) for x in"
        " inputs)\n"
    )
    return Program(f"{program.name} in another layout", program.source + line, make)


def _small_module(
    name: str,
    inputs: str,
    *forward: str,
    init: Sequence[str] = (),
    parameters: str = "x",
) -> Program:
    """Return the program of a module with the lines ``forward`` and ``init``.

    ``inputs`` is the text of its inputs. If it has ``N``, that is the size of a batch.
    """
    lines = [
        "import torch",
        "import torch.nn.functional as F",
        "",
        "torch.manual_seed(0)",
        "",
        "class Model(torch.nn.Module):",
    ]
    if init:
        lines += ["    def __init__(self):", "        super().__init__()"]
        lines += [f"        {line}" for line in init]
        lines.append("")
    lines.append(f"    def forward(self, {parameters}):")
    lines += [f"        {line}" for line in forward]
    lines += ["", "model = Model().eval()", f"inputs = ({inputs},)"]
    return from_text(name, "\n".join(lines), batched="N" in inputs)


PROGRAMS: tuple[Program, ...] = (
    _small_module(
        "mlp",
        "torch.randn(N, 8)",
        "return self.b(torch.relu(self.a(x)))",
        init=("self.a, self.b = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)",),
    ),
    _small_module(
        "convolutions",
        "torch.randn(N, 3, 8, 8)",
        "x = torch.relu(self.n(self.a(x)))",
        "return torch.relu(self.b(x))",
        init=(
            "self.a = torch.nn.Conv2d(3, 4, 3, padding=1)",
            "self.n = torch.nn.BatchNorm2d(4)",
            "self.b = torch.nn.Conv2d(4, 2, 3)",
        ),
    ),
    _small_module(
        "convolution",
        "torch.randn(N, 3, 8, 8)",
        "x = F.max_pool2d(torch.relu(self.a(x)), 2)",
        "return x.flatten(1)",
        init=("self.a = torch.nn.Conv2d(3, 4, 3)",),
    ),
    _small_module(
        "arithmetic",
        "torch.randn(N, 4), torch.randn(N, 4)",
        "return (x + y) * 2 - x * y",
        parameters="x, y",
    ),
    _small_module(
        "functions",
        "torch.rand(N, 5) + 0.5",
        "return torch.sin(x) + torch.exp(-x), torch.tan(x * 0.5)",
    ),
    _small_module(
        "integers",
        "torch.randint(-9, 9, (N, 4), dtype=torch.int32)",
        "y = x + x * 2",
        "return y - x, torch.maximum(y, x)",
    ),
    _small_module("sine", "torch.randn(N, 3)", "return torch.sin(x)"),
    _small_module(
        "product",
        "torch.randn(3, 4), torch.randn(4, 2)",
        "return torch.mm(x, y) + 1",
        parameters="x, y",
    ),
    _small_module(
        "attention",
        "torch.randn(N, 4, 8)",
        "q, k, v = self.a(x).chunk(3, -1)",
        "s = torch.softmax(q @ k.transpose(-1, -2) * 0.35, -1)",
        "return self.n(x + s @ v)",
        init=("self.a, self.n = torch.nn.Linear(8, 24), torch.nn.LayerNorm(8)",),
    ),
    _small_module(
        "tokens",
        "torch.randint(0, 10, (N, 6))",
        "return self.e(x).mean(1)",
        init=("self.e = torch.nn.Embedding(10, 4)",),
    ),
    _small_module(
        "shared",
        "torch.randn(N, 4)",
        "y = F.linear(x, self.w)",
        "z = torch.sort(y)[0]",
        "return F.linear(z, self.w), y * self.w[0]",
        init=("self.w = torch.nn.Parameter(torch.randn(4, 4))",),
    ),
    _small_module(
        "state",
        "torch.randn(N, 4)",
        "self.total.add_(x.sum())",
        "y = x.clone()",
        "y.relu_()",
        "return y + self.total, x.view(-1)",
        init=("self.register_buffer('total', torch.zeros(1))",),
    ),
)
"""Small programs of common kinds, for every backend."""

SIZED = (
    _small_module(
        "selection",
        "torch.randn(N, 3, 8, 8)",
        "x = self.a(x)",
        "return torch.where(x > 0, x, x * 0.1)",
        init=("self.a = torch.nn.Conv2d(3, 4, 3)",),
    ),
    _small_module(
        "slopes",
        "torch.randn(N, 3, 8, 8)",
        "return self.p(self.a(x))",
        init=("self.a, self.p = torch.nn.Conv2d(3, 4, 3), torch.nn.PReLU(4)",),
    ),
    _small_module(
        "two_results",
        "torch.randn(N, 8)",
        "y = self.a(x)",
        "return y, self.b(torch.relu(y))",
        init=("self.a, self.b = torch.nn.Linear(8, 6), torch.nn.Linear(6, 4)",),
    ),
    _small_module("stack", "torch.randn(N, 3, 6)", "return torch.stack([x, x * 2], 3)"),
    _small_module(
        "column",
        "torch.randn(N, 3, 6)",
        "return self.a(x)[..., :1].reshape(-1)",
        init=("self.a = torch.nn.Linear(6, 4)",),
    ),
)
"""Programs that are tried with dynamic sizes only."""

NOTHING = (
    _small_module("returns_its_input", "torch.randn(N, 3)", "return x"),
    _small_module(
        "ignores_an_input",
        "torch.randn(N, 3), torch.randn(N)",
        "return y",
        parameters="x, y",
    ),
    _small_module(
        "returns_a_constant",
        "torch.randn(N, 3)",
        "return x, self.c",
        init=("self.register_buffer('c', torch.arange(4.0))",),
    ),
    _small_module(
        "unusual", "torch.rand(N, 3) + 1", "return torch.special.modified_bessel_k0(x)"
    ),
    _small_module(
        "one_of_them_twice",
        "torch.randn(N, 3)",
        "y = torch.special.bessel_j1(x)",
        "return y, x, y",
    ),
)
"""Programs with little or nothing to delegate."""

RELAID = tuple(
    in_other_layout(p)
    for p in PROGRAMS
    if p.name in ("mlp", "convolution", "arithmetic", "integers", "product")
)
"""Some of PROGRAMS with inputs in another layout."""
