"""Files of whole programs have the inputs and outputs of ``forward``, in its order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import delegraph
import pytest
import torch
from delegraph.errors import DelegraphError, InputError
from delegraph.host import FileFormat
from torch import nn
from torch.utils import _pytree as pytree

ONES = torch.ones(3)
FIVES = torch.full((3,), 5.0)
ROWS = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
INDEXES = torch.tensor([2, 0], dtype=torch.int64)


class Model(nn.Module):
    """The base class of the models below."""

    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Buffer(torch.tensor([1.0, 2.0, 3.0]))
        self.w = nn.Parameter(torch.tensor([2.0, 4.0, 8.0]))
        self.count = nn.Buffer(torch.zeros(3))


class Subtract(Model):
    def forward(self, a: Any, b: Any) -> Any:
        return b - a


class SubtractFive(Model):
    def forward(self, a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
        return (e - b) * d - c / a


class Everything(Model):
    def forward(self, x: Any) -> Any:
        y = x * 2
        return y, y, x, self.c, y + 1


class ConstantFirst(Model):
    def forward(self, x: Any) -> Any:
        return self.w, x + self.w, self.w, x, x


class Unused(Model):
    def forward(self, a: Any, b: Any, c: Any) -> Any:
        return c - a


class LastUnused(Model):
    def forward(self, a: Any, b: Any) -> Any:
        return a * 3


class Keywords(Model):
    def forward(self, a: Any, *, scale: Any, shift: Any) -> Any:
        return shift - a * scale


class Containers(Model):
    def forward(self, pair: Any, table: Any) -> Any:
        both = [pair[1] - pair[0], {"u": table["v"] / table["u"], "v": table["v"]}]
        return {"list": both, "first": pair[0] * 2}


class Indexes(Model):
    def forward(self, a: Any, index: Any) -> Any:
        return a[index], index


class UnusedIndex(Model):
    def forward(self, index: Any, a: Any) -> Any:
        return a + 1, index


class Booleans(Model):
    def forward(self, mask: Any, a: Any) -> Any:
        return torch.where(mask, a, 0.0), mask


class Bytes(Model):
    def forward(self, a: Any, bytes_: Any) -> Any:
        return a + 1, bytes_


class Reordered(Model):
    def forward(self, a: Any, b: Any) -> Any:
        first = a + 1
        second = b * 2
        return second, first, second - first


class Builtins(Model):
    def forward(self, input: Any, max: Any) -> Any:
        return max - input


class Views(Model):
    def forward(self, a: Any) -> Any:
        return a.view(-1), a.mT, a[0], a


@dataclass
class Case:
    """A model, its inputs, and their names in the file."""

    model: Callable[[], nn.Module]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    """The names of its inputs in the file; () if they are not compared."""

    @property
    def name(self) -> str:
        return self.model.__name__  # type: ignore[attr-defined,no-any-return]


CASES = [
    Case(Subtract, (ONES, FIVES), names=("a", "b")),
    Case(
        SubtractFive,
        (ONES, FIVES, ONES * 3, ONES * 7, ONES * 4),
        names=("a", "b", "c", "d", "e"),
    ),
    Case(Everything, (ONES,), names=("x",)),
    Case(ConstantFirst, (ONES,), names=("x",)),
    Case(Unused, (ONES, ROWS, FIVES), names=("a", "b", "c")),
    Case(LastUnused, (ONES, ROWS), names=("a", "b")),
    Case(
        Keywords,
        (ONES,),
        {"shift": FIVES, "scale": ONES * 3},
        names=("a", "scale", "shift"),
    ),
    Case(Containers, ((ONES, FIVES), {"v": ROWS, "u": ROWS * 4})),
    Case(Indexes, (FIVES, INDEXES), names=("a", "index")),
    Case(UnusedIndex, (INDEXES, ONES), names=("index", "a")),
    Case(Booleans, (torch.tensor([True, False, True]), FIVES), names=("mask", "a")),
    Case(
        Bytes,
        (FIVES, torch.tensor([0, 7, 255], dtype=torch.uint8)),
        names=("a", "bytes_"),
    ),
    Case(Reordered, (ONES, FIVES), names=("a", "b")),
    Case(Builtins, (ONES, FIVES), names=("input", "max")),
    Case(Views, (ROWS,), names=("a",)),
]
EACH = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
FEW = pytest.mark.parametrize(
    "case",
    [
        (
            case
            if case.model in (Subtract, Everything)
            else pytest.param(case, marks=pytest.mark.slow)
        )
        for case in CASES
    ],
    ids=lambda case: case.name,
)
"""Two of the cases; with ``-m slow`` all others."""


def tensors(value: Any) -> list[torch.Tensor]:
    """Return the tensors of a structure in order, with int64 as int32 as in files."""
    leaves = pytree.tree_leaves(value)
    return [leaf.int() if leaf.dtype is torch.int64 else leaf for leaf in leaves]


def flat_inputs(case: Case) -> list[torch.Tensor]:
    """Return the inputs in the order of the parameters of ``forward``."""
    return tensors(
        (case.args, [case.kwargs[key] for key in case.names if key in case.kwargs])
    )


def check_file(lowered: Any, case: Case, path: Any) -> None:
    """Save the program, call the file with all inputs in order, and compare with eager
    PyTorch.
    """
    lowered.save(path)
    expected = tensors(case.model()(*case.args, **case.kwargs))
    results = delegraph.load(path)(*flat_inputs(case))
    assert len(results) == len(expected)
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(result, wanted)


def assert_other_tools_accept(path: Any) -> None:
    """Check that the other tools that are installed take a file.

    The reference model runs it on random inputs, which may be indices out of range.
    """
    for verdict in FileFormat(path, delegraph.default_registry()).verify(path):
        assert verdict.accepted is not False or "OpGather" in verdict.detail, (
            f"{verdict.judge}: {verdict.detail}"
        )


@EACH
def test_tosa_file_has_the_signature_of_forward(case: Case, tmp_path: Any) -> None:
    lowered = delegraph.lower(
        case.model(), case.args, example_kwargs=case.kwargs, backends=["tosa"]
    )
    path = tmp_path / "model.tosa"
    check_file(lowered, case, path)
    assert_other_tools_accept(path)

    (method,) = delegraph.load(path).summary.methods
    if case.names:
        assert tuple(tensor.name for tensor in method.inputs) == case.names
    assert len({tensor.name for tensor in method.outputs}) == len(method.outputs)


@FEW
def test_tosa_0_80_file_has_the_signature_of_forward(case: Case, tmp_path: Any) -> None:
    options = {"tosa": {"spec": "TOSA-0.80+MI"}}
    lowered = delegraph.lower(
        case.model(),
        case.args,
        example_kwargs=case.kwargs,
        backends=["tosa"],
        options=options,
    )
    check_file(lowered, case, tmp_path / "model.tosa")


@FEW
def test_vmfb_file_has_the_signature_of_forward(case: Case, tmp_path: Any) -> None:
    pytest.importorskip("iree.compiler")
    lowered = delegraph.lower(
        case.model(), case.args, example_kwargs=case.kwargs, backends=["iree"]
    )
    check_file(lowered, case, tmp_path / "model.vmfb")


@pytest.mark.parametrize(
    "case", [CASES[0], CASES[2], CASES[4]], ids=lambda case: case.name
)
def test_mlir_text_has_the_signature_of_forward(case: Case, tmp_path: Any) -> None:
    pytest.importorskip("delegraph_iree")
    lowered = delegraph.lower(
        case.model(), case.args, example_kwargs=case.kwargs, backends=["tosa"]
    )
    lowered.save(tmp_path / "model.mlir")
    text = (tmp_path / "model.mlir").read_text()
    expected = tensors(case.model()(*case.args, **case.kwargs))
    sides = (
        text.partition("function_type = (")[2]
        .partition(", sym_name")[0]
        .split(") -> (")
    )

    assert [side.count("tensor<") for side in sides] == [len(case.args), len(expected)]


@pytest.mark.parametrize(
    "case", [CASES[0], CASES[2], CASES[4]], ids=lambda case: case.name
)
def test_vgf_file_has_the_signature_of_forward(case: Case, tmp_path: Any) -> None:
    pytest.importorskip("model_converter")
    from delegraph_vgf.format import VgfFormat

    lowered = delegraph.lower(
        case.model(), case.args, example_kwargs=case.kwargs, backends=["vgf"]
    )
    lowered.save(tmp_path / "model.vgf")
    (method,) = VgfFormat.summarize(tmp_path / "model.vgf").methods
    assert len(method.inputs) == len(case.args)

    expected = tensors(case.model()(*case.args, **case.kwargs))
    assert [tuple(tensor.shape) for tensor in method.outputs] == [
        tuple(wanted.shape) for wanted in expected
    ]


def test_inputs_of_a_tosa_file_are_given_by_name(tmp_path: Any) -> None:
    delegraph.lower(Subtract(), (ONES, FIVES), backends=["tosa"]).save(
        tmp_path / "model.tosa"
    )
    (result,) = delegraph.load(tmp_path / "model.tosa")(b=FIVES, a=ONES)
    assert torch.equal(result, FIVES - ONES)


@pytest.mark.parametrize("size", [2, 3, 7])
def test_dynamic_file_has_the_signature_of_forward(size: int, tmp_path: Any) -> None:
    class Dynamic(nn.Module):
        def forward(self, a: Any, b: Any, c: Any) -> Any:
            y = c - a
            return y, a, y, y + 1

    n = torch.export.Dim("n", min=2, max=8)
    lowered = delegraph.lower(
        Dynamic(),
        (torch.ones(4, 3), torch.ones(4), torch.ones(4, 3)),
        dynamic_shapes=({0: n}, {0: n}, {0: n}),
        backends=["tosa"],
        options={"tosa": {"spec": "TOSA-1.1+FP+INT+shape"}},
    )
    lowered.save(tmp_path / "model.tosa")
    args = (torch.randn(size, 3), torch.randn(size), torch.randn(size, 3))
    results = delegraph.load(tmp_path / "model.tosa")(*args)
    for result, expected in zip(results, Dynamic()(*args), strict=True):
        torch.testing.assert_close(result, expected)


class Counts(Model):
    def forward(self, x: Any) -> Any:
        self.count.add_(x)
        return self.count * 2, x


class WritesInput(Model):
    def forward(self, x: Any) -> Any:
        x.add_(1)
        return x * 2


class ReturnsNone(Model):
    def forward(self, x: Any) -> Any:
        return x * 2, None


class ReturnsNumber(Model):
    def forward(self, x: Any) -> Any:
        return x * 2, 3


REFUSED = [
    (Counts, "it writes count, which the host keeps"),
    (WritesInput, "it writes to its input x"),
    (ReturnsNone, "result 1 is None, and a file of one delegate returns tensors only"),
    (ReturnsNumber, "result 1 is 3, and a file of one delegate returns tensors only"),
]


@pytest.mark.parametrize(("model", "reason"), REFUSED)
def test_refuses_a_signature_that_no_file_can_have(
    model: Any, reason: str, tmp_path: Any
) -> None:
    lowered = delegraph.lower(model(), (ONES.clone(),), backends=["tosa"])
    with pytest.raises(InputError, match=reason):
        lowered.save(tmp_path / "model.tosa")
    assert not (tmp_path / "model.tosa").exists()


def test_a_file_keeps_a_buffer_as_a_variable(tmp_path: Any) -> None:
    options = {"tosa": {"spec": "TOSA-1.0+FP+variable"}}
    delegraph.lower(Counts(), (ONES,), backends=["tosa"], options=options).save(
        tmp_path / "model.tosa"
    )
    loaded = delegraph.load(tmp_path / "model.tosa")
    for call in (1.0, 2.0):
        count, x = loaded(ONES)
        assert torch.equal(count, ONES * 2 * call)
        assert torch.equal(x, ONES)


def test_refuses_a_program_of_several_methods(tmp_path: Any) -> None:
    class Same(nn.Module):
        def forward(self, x: Any) -> Any:
            return x

    lowered = delegraph.lower(
        {"forward": Subtract(), "same": Same()},
        {"forward": (ONES, FIVES), "same": (ONES,)},
        backends=["tosa"],
    )

    with pytest.raises(
        DelegraphError,
        match="a file of one delegate holds only one method; this program has forward, same",
    ):
        lowered.save(tmp_path / "model.tosa")


def test_inputs_that_the_export_fixed_are_left_out(tmp_path: Any) -> None:
    class Scaled(nn.Module):
        def forward(self, a: Any, by: Any, b: Any = None, mask: Any = None) -> Any:
            return b - a * by

    delegraph.lower(Scaled(), (ONES, 3, FIVES, None), backends=["tosa"]).save(
        tmp_path / "model.tosa"
    )
    (result,) = delegraph.load(tmp_path / "model.tosa")(ONES, FIVES)

    assert torch.equal(result, FIVES - ONES * 3)


def test_edge_programs_have_the_signature_of_forward(tmp_path: Any) -> None:
    edge = pytest.importorskip("delegraph_executorch.edge")
    program = torch.export.export(Unused(), (ONES, ROWS, FIVES))
    partitioner = delegraph.get_partitioner("tosa")
    edge.to_edge(program).to_backend(partitioner).save(tmp_path / "model.tosa")
    (result,) = delegraph.load(tmp_path / "model.tosa")(ONES, ROWS, FIVES)
    assert torch.equal(result, FIVES - ONES)
