"""Partitions inside the bodies of cond, while_loop, map and scan: found, compiled, run, reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch._higher_order_ops import scan
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.while_loop import while_loop
from torch.fx import GraphModule, Node

import delegraph
from delegraph import Registry
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.lowering.bodies import all_nodes
from delegraph.partitioner import CapabilityPartitioner
from delegraph.runtime import BackendRuntime
from delegraph.signature import placeholders

pytestmark = [  # torch's own, about its own code, when it traces map and scan
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"),
]
aten = torch.ops.aten
CALL_DELEGATE = torch.ops.higher_order.executorch_call_delegate


class BodyBackend(BackendDetails):
    """Keeps its programs in a table; its blob is the key. Its constants are those that the program owns."""

    programs: dict[bytes, torch.export.ExportedProgram] = {}
    calls: list[dict[str, int]] = []

    @classmethod
    def preprocess_multimethod(cls, edge_programs, compile_specs):
        cls.calls.append({m: len(p) for m, p in edge_programs.items()})
        return super().preprocess_multimethod(edge_programs, compile_specs)

    @staticmethod
    def preprocess(edge_program, compile_specs):
        key = str(len(BodyBackend.programs)).encode()
        BodyBackend.programs[key] = edge_program
        return PreprocessResult(key)


class BodyRuntime(BackendRuntime):
    """Runs the recorded program."""

    runs: list[bytes] = []

    @staticmethod
    def load(processed_bytes, compile_specs, named_data):
        module = BodyBackend.programs[processed_bytes].module(check_guards=False)

        def run(*args):
            BodyRuntime.runs.append(processed_bytes)
            return module(*args)

        return run


def takes(*operators) -> CapabilityPartitioner:
    """A partitioner for the operators named."""
    return CapabilityPartitioner(lambda n: None if n.target in operators else "not mine", "BodyBackend")


@pytest.fixture
def registry() -> Iterator[Registry]:
    BodyBackend.programs, BodyBackend.calls, BodyRuntime.runs = {}, [], []
    made = Registry(discover=False)
    made.register(BodyBackend, runtime=BodyRuntime)
    yield made


class Cond(torch.nn.Module):
    """A branch with weights, one without, and work around them."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.register_buffer("shift", torch.randn(4))

    def forward(self, x):
        y = torch.cond(x.sum() > 0, lambda x: self.one(x) + self.shift, lambda x: (self.two(x) * 2).sin(), (x + 1,))
        return y + 2


class Loop(torch.nn.Module):
    """A counted loop whose body has weights; the first value it carries is a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("start", torch.zeros(4))

    def forward(self, x):
        count, value, total = while_loop(
            lambda i, a, t: i < 3,
            lambda i, a, t: (i + 1, self.linear(a).sin(), t + a.sum(0)),
            (torch.tensor(0), x, self.start.clone()),
        )
        return value, total, count


class Map(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 4))

    def forward(self, xs, y):
        return torch_map(lambda x, y: (x @ self.weight + y).relu(), xs @ self.weight, y)


class Scan(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 4))

    def forward(self, xs):
        def step(carry, x):
            after = torch.mm(carry, self.weight).tanh() + x
            return after, after * 2

        last, ys = scan(step, torch.ones(2, 4), xs, dim=0)
        return last, ys + 1


class Nested(torch.nn.Module):
    """map > cond > cond, as ExecuTorch's own test of nested control flow has it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 4))

    def forward(self, xs, y):
        def deep(x):
            return torch.cond(x.sum() > 1, lambda x: x @ self.weight, lambda x: x.cos() + 1, (x,))

        def body(x, y):
            return torch.cond(x.sum() > 0, lambda x, y: deep(x + y), lambda x, y: x - y, (x, y)) + y

        return torch_map(body, xs + 1, y)


MODELS: dict[str, tuple[Callable[[], torch.nn.Module], list[tuple[torch.Tensor, ...]]]] = {
    "cond": (Cond, [(torch.ones(3, 4),), (-torch.ones(3, 4),)]),
    "while_loop": (Loop, [(torch.randn(3, 4),)]),
    "map": (Map, [(torch.randn(5, 3, 4), torch.randn(4))]),
    "scan": (Scan, [(torch.randn(5, 2, 4),)]),
    "nested": (Nested, [(torch.ones(2, 4, 4), torch.ones(4, 4)), (-torch.ones(2, 4, 4), torch.ones(4, 4))]),
}
MINE = (
    aten.linear.default,
    aten.mm.default,
    aten.matmul.default,
    aten.addmm.default,
    aten.add.Tensor,
    aten.mul.Tensor,
    aten.sin.default,
    aten.relu.default,
    aten.tanh.default,
)


def delegates_at(module: GraphModule) -> dict[str, int]:
    """Path of a body ("" the whole) -> calls of delegates in its own graph."""
    found = {"": module.graph}
    found.update({k: m.graph for k, m in module.named_modules() if k and isinstance(m, GraphModule)})
    return {k: sum(n.target is CALL_DELEGATE for n in g.nodes) for k, g in found.items()}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "mine", [MINE, (aten.linear.default, aten.matmul.default, aten.mm.default), ()], ids=["most", "products", "none"]
)
def test_equal_to_eager(name, mine, registry):
    make, cases = MODELS[name]
    model = make().eval()
    lowered = delegraph.lower(model, cases[0], backends=[takes(*mine)], registry=registry)
    for inputs in cases:
        wanted, got = model(*inputs), lowered(*inputs)
        torch.testing.assert_close(got, wanted)
    assert not mine or BodyRuntime.runs
