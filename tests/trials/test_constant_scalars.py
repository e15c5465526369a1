"""Numbers read from constant buffers become literals, and results equal eager."""

from __future__ import annotations

from typing import Any

import delegraph
import pytest
import torch
from torch import Tensor, nn

X = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))


class Model(nn.Module):
    """A function of an input and of a buffer."""

    def __init__(self, function: Any, value: Any) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("number", torch.as_tensor(value))

    def forward(self, x: Tensor) -> Any:
        return self.function(x, self.number)


def size(number: Tensor, most: int = 4) -> int:
    """Read a number, and check that it is a size from 0 to ``most``."""
    n = number.item()
    torch._check(n >= 0)
    torch._check(n <= most)
    return n  # type: ignore[return-value]


def sum_of_products(x: Tensor, number: Tensor) -> Tensor:
    first = number[0].item()
    second = number[1].item()
    return x * first + second / 2


def in_a_branch(x: Tensor, number: Tensor) -> Tensor:
    def double(y: Tensor, n: Tensor) -> Tensor:
        return y * n.item()

    def half(y: Tensor, n: Tensor) -> Tensor:
        return y / n.item()

    return torch.cond(x.sum() > 0, double, half, (x, number))


def in_nested_branches(x: Tensor, number: Tensor) -> Tensor:
    def inner(y: Tensor) -> Tensor:
        return torch.cond(
            y.sum() > 0, lambda z: z + torch.ones(4), lambda z: z - 1, (y,)
        )

    return torch.cond(number > 1, inner, lambda y: y * 2, (x,))


PROGRAMS: dict[str, tuple[Any, Any]] = {
    "factor, int": (lambda x, n: x * n.item(), 3),
    "factor, float": (lambda x, n: x * n.item(), 0.1),
    "factor, float16": (
        lambda x, n: x * n.item(),
        torch.tensor(0.1, dtype=torch.float16),
    ),
    "factor, float64": (
        lambda x, n: x + n.item(),
        torch.tensor(1 / 3, dtype=torch.float64),
    ),
    "factor, uint8": (lambda x, n: x * n.item(), torch.tensor(200, dtype=torch.uint8)),
    "factor, one element of rank 2": (lambda x, n: x * n.item(), [[2.5]]),
    "factor, bool": (lambda x, n: x * n.item(), True),
    "NaN": (lambda x, n: x * n.item(), float("nan")),
    "infinity": (lambda x, n: x.clamp(max=n.item()), float("inf")),
    "alpha of add": (lambda x, n: torch.add(x, x, alpha=n.item()), 2),
    "exponent": (lambda x, n: x.abs() ** n.item(), 2.0),
    "bounds of clamp": (lambda x, n: x.clamp(-n.item(), n.item()), 0.5),
    "arithmetic": (sum_of_products, [3, 5]),
    "of a computed constant": (lambda x, n: x * (n * 2 + 1).sum().item(), [1.0, 2.0]),
    "size": (lambda x, n: x.new_zeros(size(n), 4) + x[:1], 3),
    "size of full": (lambda x, n: torch.full((size(n), 4), 2.0) + x[:1], 3),
    "size of expand": (lambda x, n: x[:1].expand(size(n), 4) * 2, 3),
    "size of arange": (lambda x, n: torch.arange(size(n)) + x.sum(), 3),
    "end of slice": (lambda x, n: x[: size(n)] * 2, 3),
    "start of slice": (lambda x, n: x[size(n) :] * 2, 1),
    "narrow": (lambda x, n: x.narrow(0, 1, size(n, 3)) * 2, 2),
    "size of zero": (lambda x, n: torch.cat([x, x[: size(n)]]), 0),
    "sum of sizes": (
        lambda x, n: x.new_zeros(size(n[0]) + size(n[1]), 4) + x[:1],
        [2, 1],
    ),
    "condition": (
        lambda x, n: torch.cond(n > 2, lambda y: y + 1, lambda y: y - 1, (x,)),
        3,
    ),
    "condition of a number": (
        lambda x, n: torch.cond(n.item() > 2, lambda y: y + 1, lambda y: y - 1, (x,)),
        1,
    ),
    "condition of a bool": (
        lambda x, n: torch.cond(n, lambda y: y + 1, lambda y: y - 1, (x,)),
        False,
    ),
    "nested conditions": (in_nested_branches, 3),
}
TAKEN = [
    "factor, int",
    "factor, float",
    "bounds of clamp",
    "size",
    "end of slice",
    "condition",
]
INSIDE = {
    "in a branch": (in_a_branch, 2.0),
}


def export_model(name: str) -> tuple[nn.Module, torch.export.ExportedProgram]:
    model = Model(*(PROGRAMS | INSIDE)[name])
    return model, torch.export.export(model, (X,))


def check_no_symbols(program: torch.export.ExportedProgram) -> None:
    """Fail if the program reads a number, or has a symbolic size or range."""
    text = str(program.graph_module.code)
    for name in ("aten.item", "_local_scalar_dense", "_assert_scalar"):
        assert name not in text
    assert not program.range_constraints
    for node in program.graph.nodes:
        val = node.meta.get("val")
        assert not isinstance(val, (torch.SymInt, torch.SymFloat, torch.SymBool))
        assert not (isinstance(val, Tensor) and val._has_symbolic_sizes_strides)


@pytest.mark.parametrize("name", PROGRAMS)
def test_lowered_programs_have_no_symbols(name: str) -> None:
    model, program = export_model(name)
    lowered = delegraph.lower(program, backends=[])
    check_no_symbols(lowered.exported_program())
    torch.testing.assert_close(lowered(X), model(X), equal_nan=True)


@pytest.mark.parametrize(
    "name", ["factor, float", "factor, bool", "size", "condition of a number"]
)
def test_core_aten_programs_have_no_symbols(name: str, tmp_path: Any) -> None:
    model, program = export_model(name)
    torch.export.save(program.run_decompositions(), tmp_path / "a.pt2")
    lowered = delegraph.lower(torch.export.load(tmp_path / "a.pt2"), backends=["tosa"])
    check_no_symbols(lowered.exported_program())
    torch.testing.assert_close(lowered(X), model(X))


@pytest.mark.parametrize("backend", ["tosa", "openvino", "xnnpack", "iree"])
@pytest.mark.parametrize(
    "name",
    [
        "factor, int",
        "factor, float",
        "bounds of clamp",
        "size",
        "end of slice",
        "condition",
    ],
)
def test_each_backend_delegates_programs_with_read_numbers(
    name: str, backend: str, tmp_path: Any
) -> None:
    model, program = export_model(name)
    lowered = delegraph.lower(program, backends=[backend])
    assert lowered.delegates
    if backend in ("tosa", "iree"):
        assert lowered.host_operators == 0
    torch.testing.assert_close(lowered(X), model(X))


@pytest.mark.parametrize("runtime", [None, "executorch"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_pte_files_of_the_host_equal_eager(
    name: str, runtime: str | None, tmp_path: Any
) -> None:
    model, program = export_model(name)
    delegraph.lower(program, backends=[]).save(tmp_path / "a.pte")
    actual = delegraph.load(tmp_path / "a.pte", runtime=runtime)(X)
    torch.testing.assert_close(actual, model(X), equal_nan=True)


@pytest.mark.parametrize("name", INSIDE)
@pytest.mark.parametrize("sign", [1, -1])
def test_numbers_read_in_branches_equal_eager(name: str, sign: int) -> None:
    model, program = export_model(name)
    lowered = delegraph.lower(program, backends=[])
    x = X.abs() * sign
    torch.testing.assert_close(lowered(x), model(x))

    code = "".join(
        m.code
        for m in lowered.exported_program().graph_module.modules()
        if hasattr(m, "code")
    )
    assert "aten.item" not in code


def test_dynamic_sizes_stay_dynamic() -> None:
    model = Model(lambda x, n: x.new_zeros(size(n), 1, 4) + x * n.item(), 3)
    shapes = {"x": {0: torch.export.Dim("batch", min=2, max=8)}}
    program = torch.export.export(model, (X,), dynamic_shapes=shapes)
    lowered = delegraph.lower(program, backends=["tosa"])
    for rows in (2, 5, 8):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(lowered(x), model(x))

    assert len(lowered.exported_program().range_constraints) == 1


class Counter(nn.Module):
    """Multiplies by a factor, which the model then writes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("number", torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.number.item()
        self.number.add_(1)
        return y


def test_written_buffers_are_read_at_each_call() -> None:
    lowered = delegraph.lower(torch.export.export(Counter(), (X,)), backends=[])
    for factor in (1, 2, 3):
        torch.testing.assert_close(lowered(X), X * factor)


class Advance(nn.Module):
    """A method that writes the number of a counter."""

    def __init__(self, counter: nn.Module) -> None:
        super().__init__()
        self.counter = counter

    def forward(self, x: Tensor) -> Tensor:
        self.counter.number.add_(x.sum())
        return self.counter.number.clone()


class Read(Advance):
    """A method that only reads the number of a counter."""

    def forward(self, x: Tensor) -> Tensor:
        return x * self.counter.number.item()


def test_buffers_that_another_method_writes_are_read() -> None:
    counter = Counter()
    methods = {"forward": Read(counter), "advance": Advance(counter)}
    lowered = delegraph.lower(methods, {"forward": (X,), "advance": (X,)}, backends=[])
    code = lowered.exported_program("forward").graph_module.code
    assert "aten.item" in code or "_local_scalar_dense" in code
    alone = delegraph.lower(Read(counter), (X,), backends=[])
    check_no_symbols(alone.exported_program())


def test_lowering_does_not_change_the_given_program() -> None:
    _, program = export_model("size")
    code = program.graph_module.code
    ranges = dict(program.range_constraints)
    shapes = [str(node.meta.get("val")) for node in program.graph.nodes]
    delegraph.lower(program, backends=["tosa"])

    assert program.graph_module.code == code
    assert program.range_constraints == ranges
    assert [str(node.meta.get("val")) for node in program.graph.nodes] == shapes


def test_a_failing_assertion_stays_in_the_program() -> None:
    model = Model(lambda x, n: x.new_zeros(size(n), 4) + x[:1], 3)
    program = torch.export.export(model, (X,))
    program.state_dict["number"].fill_(7)
    lowered = delegraph.lower(program, backends=[])
    with pytest.raises(Exception, match="<= 4"):
        lowered(X)
