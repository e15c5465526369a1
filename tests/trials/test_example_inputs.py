"""One tensor may be the example of several inputs, and the inputs stay separate."""

from __future__ import annotations

import subprocess
import sys
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import delegraph
import pytest
import torch
from delegraph.errors import InputError
from torch import nn
from torch.utils import _pytree as pytree

X = torch.ones(3)
Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Named:
    """A container that is registered with ``torch.export``."""

    a: Any
    b: Any


torch.export.register_dataclass(Named)


class Siamese(nn.Module):
    def forward(self, a: Any, b: Any) -> Any:
        return a - b * 2


class OfTuple(nn.Module):
    def forward(self, pair: Any) -> Any:
        return pair[0] - pair[1] * 2


class OfDict(nn.Module):
    def forward(self, table: Any) -> Any:
        return table["a"] - table["b"] * 2


class OfDataclass(nn.Module):
    def forward(self, both: Any) -> Any:
        return both.a - both.b * 2


class Variadic(nn.Module):
    def forward(self, *tensors: Any) -> Any:
        return tensors[0] - tensors[1] * 2 + tensors[2] * 4


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        return self.attention(q, k, v)[0]


class Writes(nn.Module):
    def forward(self, a: Any, b: Any) -> Any:
        a.add_(1)
        return a - b * 2


class OfState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.b = nn.Buffer(torch.tensor([4.0, 5.0, 6.0]))
        self.k = torch.tensor([7.0, 8.0, 9.0])
        self.more = [torch.tensor([0.5, 0.25, 0.125])]

    def forward(self, x: Any) -> Any:
        return x - self.w * 2 + self.b * self.k * x + self.more[0]


QKV = torch.randn(1, 2, 4)
WHOLE = torch.ones(4)
STATE = OfState()


@dataclass
class Case:
    """A model, with example inputs that use a tensor more than once."""

    name: str
    model: Callable[[], nn.Module]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


CASES = [
    Case("twice", Siamese, (X, X)),
    Case("keywords", Siamese, (), {"b": X, "a": X}),
    Case("mixed", Siamese, (X,), {"b": X}),
    Case("tuple", OfTuple, ((X, X),)),
    Case("list", OfTuple, ([X, X],)),
    Case("named_tuple", OfTuple, (Pair(X, X),)),
    Case("dict", OfDict, ({"b": X, "a": X},)),
    Case("ordered_dict", OfDict, (OrderedDict(b=X, a=X),)),
    Case("dataclass", OfDataclass, (Named(X, X),)),
    Case("variadic", Variadic, (X, X, X)),
    Case("attention", Attention, (QKV, QKV, QKV)),
    Case("written", Writes, (X, X)),
    Case("views", Siamese, (WHOLE[:3], WHOLE[1:])),
    Case("written_views", Writes, (WHOLE[:3], WHOLE[1:])),
    Case("expanded", Siamese, (torch.ones(1).expand(3),) * 2),
    Case("parameter", lambda: STATE, (STATE.w,)),
    Case("buffer", lambda: STATE, (STATE.b,)),
    Case("attribute", lambda: STATE, (STATE.k,)),
    Case("listed_attribute", lambda: STATE, (STATE.more[0],)),
]
EACH = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def fresh(inputs: Any) -> Any:
    """Return new and different tensors in the same containers."""
    torch.manual_seed(1)
    return pytree.tree_map_only(torch.Tensor, lambda t: torch.randn(t.shape), inputs)


@EACH
@pytest.mark.parametrize(
    "backend", [None, pytest.param("tosa", marks=pytest.mark.slow)]
)
def test_later_calls_take_different_tensors(case: Case, backend: str | None) -> None:
    model = case.model().eval()
    before = pytree.tree_map_only(torch.Tensor, torch.clone, (case.args, case.kwargs))
    backends = [] if backend is None else [backend]
    lowered = delegraph.lower(
        model, case.args, example_kwargs=case.kwargs, backends=backends
    )
    args, kwargs = fresh((case.args, case.kwargs))
    with torch.no_grad():
        expected = model(
            *pytree.tree_map(torch.clone, args), **pytree.tree_map(torch.clone, kwargs)
        )

    torch.testing.assert_close(lowered(*args, **kwargs), expected)
    for value, old in zip(
        pytree.tree_leaves((case.args, case.kwargs)),
        pytree.tree_leaves(before),
        strict=True,
    ):
        assert torch.equal(value, old)


@EACH
def test_export_keeps_inputs_apart(case: Case) -> None:
    model = case.model().eval()
    program = delegraph.export(model, case.args, example_kwargs=case.kwargs)["forward"]
    args, kwargs = fresh((case.args, case.kwargs))
    with torch.no_grad():
        expected = model(
            *pytree.tree_map(torch.clone, args), **pytree.tree_map(torch.clone, kwargs)
        )

    torch.testing.assert_close(
        program.module(check_guards=False)(*args, **kwargs), expected
    )


def test_dynamic_sizes_of_a_pair() -> None:
    n = torch.export.Dim("n", min=2, max=8)
    lowered = delegraph.lower(
        Siamese(), (X, X), dynamic_shapes=({0: n}, {0: n}), backends=["tosa"]
    )
    a = torch.randn(5)
    b = torch.randn(5)
    torch.testing.assert_close(lowered(a, b), a - b * 2)


def test_dynamic_sizes_by_tensor() -> None:
    shapes = torch.export.ShapesCollection()
    shapes[X] = {0: torch.export.Dim("n", min=2, max=8)}
    lowered = delegraph.lower(Siamese(), (X, X), dynamic_shapes=shapes, backends=[])
    a = torch.randn(5)
    b = torch.randn(5)
    torch.testing.assert_close(lowered(a, b), a - b * 2)


@pytest.mark.parametrize(
    "case",
    [c for c in CASES if c.name in ("twice", "dict", "variadic")],
    ids=lambda c: c.name,
)
@pytest.mark.parametrize("face", ["lower", "export"])
def test_refuses_programs_exported_with_one_tensor_for_two_inputs(
    case: Case, face: str
) -> None:
    program = torch.export.export(case.model(), case.args)
    with pytest.raises(
        InputError, match="were the same tensor when the program was exported"
    ):
        if face == "lower":
            delegraph.lower(program, backends=[])
        else:
            delegraph.export(program)


def test_refuses_programs_exported_with_a_parameter_as_input() -> None:
    program = torch.export.export(STATE, (STATE.w,))
    with pytest.raises(
        InputError,
        match="input x was w of the module itself when the program was exported",
    ):
        delegraph.lower(program, backends=[])


def test_refuses_files_exported_with_one_tensor_for_two_inputs(tmp_path: Any) -> None:
    torch.export.save(torch.export.export(Siamese(), (X, X)), tmp_path / "model.pt2")
    with pytest.raises(InputError, match="inputs a and b were the same tensor"):
        delegraph.lower(torch.export.load(tmp_path / "model.pt2"), backends=[])


def test_notes_an_unused_input_whose_example_equals_another() -> None:
    program = torch.export.export(Siamese(), (X, X))
    program.example_inputs = ((X, X.clone()), {})
    report = delegraph.lower(program, backends=[]).report
    assert any(
        "input a is not used, and its example equals that of b" in note
        for note in report.notes
    )


def test_expanded_example_inputs_do_not_restrict_later_inputs() -> None:
    program = torch.export.export(Siamese(), (torch.ones(1).expand(3), X))
    a = torch.randn(3)
    b = torch.randn(3)
    torch.testing.assert_close(
        delegraph.lower(program, backends=["tosa"])(a, b), a - b * 2
    )


def test_takes_a_program_with_equal_examples() -> None:
    program = torch.export.export(Siamese(), (X, X.clone()))
    lowered = delegraph.lower(program, backends=[])
    assert torch.equal(lowered(X, X * 5), X - X * 10)
    assert not any("is not used" in note for note in lowered.report.notes)


def test_quantizing_keeps_inputs_apart() -> None:
    quantize = pytest.importorskip("delegraph_quantize").quantize
    pytest.importorskip("torchao")
    torch.manual_seed(0)
    x = torch.randn(2, 8)
    y = torch.randn(2, 8)

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 4)

        def forward(self, a: Any, b: Any) -> Any:
            return self.layer(a) - self.layer(b * 2)

    model = Two().eval()
    lowered = delegraph.lower(
        quantize(model, [(x, x), (y, y), (x, y)], backend="tosa"), backends=["tosa"]
    )

    torch.testing.assert_close(lowered(x, y), model(x, y), atol=0.1, rtol=0.1)


@pytest.mark.slow
def test_model_files_of_the_command_line_keep_inputs_apart(tmp_path: Any) -> None:
    (tmp_path / "model.py").write_text(
        "import torch\n"
        "class Siamese(torch.nn.Module):\n"
        "    def forward(self, a, b):\n"
        "        return a - b * 2\n"
        "def model():\n"
        "    x = torch.ones(3)\n"
        "    return Siamese(), (x, x)\n"
    )
    command = [
        sys.executable,
        "-m",
        "delegraph",
        "lower",
        "model.py",
        "--backend",
        "tosa",
        "-o",
        "m.tosa",
    ]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    a = torch.randn(3)
    b = torch.randn(3)

    torch.testing.assert_close(delegraph.load(tmp_path / "m.tosa")(a, b)[0], a - b * 2)


def test_compiled_modules_keep_inputs_apart() -> None:
    pytest.importorskip("delegraph_dynamo")
    compiled = torch.compile(Siamese(), backend="delegraph")
    assert torch.equal(compiled(X, X), X - X * 2)
    a = torch.randn(3)
    b = torch.randn(3)
    torch.testing.assert_close(compiled(a, b), a - b * 2)
