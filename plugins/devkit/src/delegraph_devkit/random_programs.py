"""Write random modules, which a seed reproduces.

They have shared constants, splits, views, in-place calls and several outputs.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from .programs import Program, from_text

_UNARY = ("relu", "sigmoid", "tanh", "sin", "neg", "abs", "square", "exp")
_IN_PLACE = (
    ".add_(1.5)",
    ".mul_(0.5)",
    ".relu_()",
    ".sub_(0.25)",
    ".tanh_()",
    ".clamp_(-1, 1)",
    ".zero_()",
)


@dataclass
class _Value:
    """A variable of the text."""

    name: str
    shape: tuple[int, ...]
    own: bool
    """Whether its memory belongs to the module, and not to the caller."""


@lru_cache(maxsize=64)
def random_program(seed: int) -> Program:
    """Return the program of a seed; it is the same in every process."""
    writer = _Writer(random.Random(f"delegraph {seed}"))
    return from_text(f"random_{seed}", writer.text(seed))


class _Writer:
    """Writes one module line by line, and tracks shapes."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.init: dict[str, str] = {}
        self.lines: list[str] = []
        shape = rng.choice([(2, 4), (3, 6), (1, 4, 6), (2, 3, 4), (1, 2, 4, 6)])
        self.inputs = [_Value(n, shape, False) for n in ("x", "y")[: rng.randint(1, 2)]]
        self.values = list(self.inputs)
        self.count = 0

    def text(self, seed: int) -> str:
        """Write the module, and return its text."""
        for _ in range(self.rng.randint(4, 14)):
            self._step()
        names = ", ".join(v.name for v in self.inputs)
        given = "".join(
            f"torch.randn({', '.join(map(str, v.shape))}), " for v in self.inputs
        )
        made = [f"        self.{name} = {value}" for name, value in self.init.items()]
        return "\n".join(
            [
                "import torch",
                "import torch.nn.functional as F",
                "",
                f"torch.manual_seed({seed})",
                "",
                "class Model(torch.nn.Module):",
                "    def __init__(self):",
                "        super().__init__()",
                *made,
                "",
                f"    def forward(self, {names}):",
                *(f"        {line}" for line in self.lines),
                f"        return {self._returned()}",
                "",
                "model = Model().eval()",
                f"inputs = ({given.rstrip()})",
            ]
        )

    def _returned(self) -> str:
        """Return names of results: the last value, and any others, even twice."""
        others = self.rng.choices(self.values, k=self.rng.randint(0, 3))
        return ", ".join(v.name for v in [self.values[-1], *others])

    def _step(self) -> None:
        """Write lines for a random step on a recent value."""
        # frequent steps are listed twice
        kinds: list[Callable[[_Value], None]] = [
            self._unary,
            self._unary,
            self._binary,
            self._binary,
            self._constant,
            self._linear,
            self._view,
            self._view,
            self._split,
            self._join,
            self._reduce,
            self._write,
            self._norm,
        ]
        recent = self.values[-4:]
        self.rng.choice(kinds)(self.rng.choice(recent))

    def _new(self, shape: tuple[int, ...], text: str, own: bool = True) -> None:
        """Write a line that sets a new variable to the expression ``text``."""
        self.lines.append(f"v{self.count} = {text}")
        self.values.append(_Value(f"v{self.count}", shape, own))
        self.count += 1

    def _attribute(self, name: str, value: str) -> str:
        """Return the text of a parameter or submodule, which equal names share."""
        self.init.setdefault(name, value)
        return f"self.{name}"

    def _unary(self, v: _Value) -> None:
        name = self.rng.choice(_UNARY)
        # repeated exponentials overflow
        operand = f"torch.tanh({v.name})" if name == "exp" else v.name
        self._new(v.shape, f"torch.{name}({operand})")

    def _binary(self, v: _Value) -> None:
        others = [o.name for o in self.values if o.shape == v.shape] + ["2.0", "0.5"]
        sign = self.rng.choice("+-*")
        other = self.rng.choice(others)
        self._new(v.shape, f"{v.name} {sign} {other}")

    def _constant(self, v: _Value) -> None:
        size = v.shape[-1]
        constant = self._attribute(
            f"c{size}", f"torch.nn.Parameter(torch.randn({size}))"
        )
        self._new(v.shape, f"{v.name} {self.rng.choice('+*')} {constant}")

    def _linear(self, v: _Value) -> None:
        size = v.shape[-1]
        layer = self._attribute(f"linear{size}", f"torch.nn.Linear({size}, {size})")
        self._new(v.shape, f"{layer}({v.name})")

    def _norm(self, v: _Value) -> None:
        forms = [
            f"F.layer_norm({v.name}, [{v.shape[-1]}])",
            f"torch.softmax({v.name}, -1)",
        ]
        self._new(v.shape, self.rng.choice(forms))

    def _view(self, v: _Value) -> None:
        """Add a view of ``v``: writing it writes ``v``."""
        a = b = 0
        if len(v.shape) > 1:
            a, b = self.rng.sample(range(len(v.shape)), 2)
        swapped = list(v.shape)
        swapped[a], swapped[b] = swapped[b], swapped[a]
        kept = max(1, v.shape[a] - 1)
        cut = (*v.shape[:a], kept, *v.shape[a + 1 :])
        forms = [
            (tuple(swapped), f"{v.name}.transpose({a}, {b})"),
            (cut, f"{v.name}.narrow({a}, 0, {kept})"),
        ]
        if len(v.shape) < 4:
            forms.append(((1, *v.shape), f"{v.name}.unsqueeze(0)"))
        self._new(*self.rng.choice(forms), own=v.own)

    def _split(self, v: _Value) -> None:
        axis = self.rng.randrange(len(v.shape))
        if v.shape[axis] < 2:
            return self._unary(v)
        sizes = (1, v.shape[axis] - 1)
        names = [f"v{self.count}", f"v{self.count + 1}"]
        self.lines.append(f"{', '.join(names)} = {v.name}.split({list(sizes)}, {axis})")
        for name, size in zip(names, sizes, strict=True):
            shape = (*v.shape[:axis], size, *v.shape[axis + 1 :])
            self.values.append(_Value(name, shape, v.own))
        self.count += 2
        return None

    def _join(self, v: _Value) -> None:
        other = self.rng.choice([o for o in self.values if o.shape == v.shape])
        axis = self.rng.randrange(len(v.shape))
        if v.shape[axis] > 12:
            return self._unary(v)
        joined = (*v.shape[:axis], 2 * v.shape[axis], *v.shape[axis + 1 :])
        return self._new(joined, f"torch.cat([{v.name}, {other.name}], {axis})")

    def _reduce(self, v: _Value) -> None:
        axis = self.rng.randrange(len(v.shape))
        kept = (*v.shape[:axis], 1, *v.shape[axis + 1 :])
        name = self.rng.choice(["mean", "sum", "amax"])
        self._new(kept, f"{v.name}.{name}({axis}, keepdim=True)")

    def _write(self, v: _Value) -> None:
        """Write ``v`` in place; views of inputs are copied before, to protect the
        caller's tensors.
        """
        if not v.own:
            self._new(v.shape, f"{v.name}.clone()")
            v = self.values[-1]
        self.lines.append(f"{v.name}{self.rng.choice(_IN_PLACE)}")
