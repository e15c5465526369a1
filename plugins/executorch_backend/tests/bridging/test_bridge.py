"""ExecuTorch's backends through the bridge: what they take, what they compute, and what
their blobs are called with.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import delegraph
import pytest
import torch
from delegraph.errors import ContractViolation, FormatError, InputError, NoRuntime
from torch import nn
from torch.export import Dim

from ..support.judge import assert_equal, lower, stock_runtime
from ..support.models import MODELS

# whatever ExecuTorch warns of at import and at compile time
pytestmark = [pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def _needs_executorch() -> None:
    stock_runtime()


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def conv_net() -> nn.Module:
    first = [
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU6(),
        nn.MaxPool2d(2),
    ]
    second = [
        nn.Conv2d(8, 8, 3, groups=8, padding=1),
        nn.Hardswish(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    ]
    return nn.Sequential(*first, *second, nn.Linear(8, 5), nn.Softmax(-1))


class Split(nn.Module):
    """A sum over everything before it, which XNNPACK has not, between two parts that it
    takes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        return self.second(y.cumsum(1)) + y * 2


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        z = torch.cond(
            y.sum() > 0, lambda v: self.second(v) * 2, lambda v: torch.relu(v), (y,)
        )
        return self.second(z) + y


def check_both_runtimes(
    lowered: Any, module: nn.Module, calls: list[tuple[torch.Tensor, ...]], path: Any
) -> None:
    """Delegates alone in the stock runtime, and the whole program, saved, in it."""
    lowered.save(path)
    program = stock_runtime().load_program(path.read_bytes())
    method = program.load_method("forward")
    for call in calls:
        with torch.no_grad():
            expected = [module(*call)]
        assert_equal([lowered(*call)], expected)
        assert_equal(method.execute(list(call)), expected)


@pytest.mark.parametrize(("make", "shape"), [(mlp, (2, 8)), (conv_net, (1, 3, 16, 16))])
def test_a_net_that_xnnpack_takes_whole(
    make: Any, shape: tuple[int, ...], tmp_path: Any
) -> None:
    torch.manual_seed(0)
    module = make().eval()
    x = torch.randn(shape)
    lowered = lower(module, (x,), backends=["xnnpack"])
    assert len(lowered.delegates) == 1
    assert lowered.host_operators == 0
    assert lowered.delegates[0].backend_id == "XnnpackBackend"
    check_both_runtimes(
        lowered, module, [(x,), (torch.randn(shape),)], tmp_path / "m.pte"
    )
    lowered.verify(x)


def test_refused_operators_stay_with_their_source_line(tmp_path: Any) -> None:
    torch.manual_seed(0)
    module = Split().eval()
    x = torch.randn(2, 8)
    lowered = lower(module, (x,), backends=["xnnpack"])
    assert lowered.host_operators == 1
    assert len(lowered.delegates) == 2
    assert "relu" in {node.name for node in lowered.delegates[0].nodes}, (
        "delegates are counted from the program's begin"
    )
    text = str(lowered.report)
    assert "aten.cumsum.default  xnnpack: XnnpackPartitioner does not take it" in text
    assert "test_bridge.py:" in text
    check_both_runtimes(lowered, module, [(x,)], tmp_path / "m.pte")


def test_xnnpack_delegates_need_bounded_sizes(tmp_path: Any) -> None:
    torch.manual_seed(0)
    module = Split().eval()
    calls = [(torch.randn(n, 8),) for n in (3, 1, 16)]
    lowered = lower(
        module, calls[0], ({0: Dim("n", min=1, max=16)},), backends=["xnnpack"]
    )
    check_both_runtimes(lowered, module, calls, tmp_path / "m.pte")
    unbounded = lower(module, calls[0], ({0: Dim("n", min=1)},), backends=["xnnpack"])
    assert_equal([unbounded(*calls[0])], [module(*calls[0])])
    assert (
        "has no upper bound, so its memory cannot be planned; give it a bound"
        in str(unbounded.report)
    )


class Kept(nn.Module):
    """Two parts that XNNPACK takes, and then as many rows as the data say."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(self.first(x).cumsum(1)) * 2
        return y[torch.nonzero(y.sum(1) > 0)[:, 0]]


def test_data_dependent_sizes_elsewhere_are_accepted(tmp_path: Any) -> None:
    torch.manual_seed(0)
    module = Kept().eval()
    x = torch.randn(6, 8)
    lowered = lower(module, (x,), backends=["xnnpack"])
    assert len(lowered.delegates) == 2
    check_both_runtimes(lowered, module, [(x,)], tmp_path / "m.pte")


def test_each_branch_has_an_xnnpack_delegate(tmp_path: Any) -> None:
    torch.manual_seed(0)
    module = Branch().eval()
    calls = [(torch.randn(2, 8),) for _ in range(4)]
    lowered = lower(module, calls[0], backends=["xnnpack"])
    assert sum("graph" in delegate.name for delegate in lowered.delegates) == 2, (
        "one delegate in each branch"
    )
    check_both_runtimes(lowered, module, calls, tmp_path / "m.pte")


@pytest.mark.parametrize(
    "backends", [["tosa", "xnnpack"], ["xnnpack", "tosa"]], ids="+".join
)
def test_bridged_and_other_backends_work_together(backends: list[str]) -> None:
    """Each sees the calls of the other's delegates, which it must not put its own
    partitions around.
    """
    torch.manual_seed(0)

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
            y = self.layer(x)
            return torch.sigmoid(self.layer(y + (count * 3 + count)) + y)

    module = Both().eval()
    call = (torch.randn(2, 8), torch.arange(8, dtype=torch.int32))
    specs = {"tosa": {"spec": "TOSA-1.0+INT"}}  # no floats: they are left to XNNPACK
    lowered = lower(module, call, backends=backends, options=specs)
    assert {delegate.backend_id for delegate in lowered.delegates} == {
        "XnnpackBackend",
        "TOSABackend",
    }
    assert_equal([lowered(*call)], [module(*call)])


def test_a_call_that_is_taken_in_part_is_refused() -> None:
    """Its neighbours are asked about again, so that no partition lies both before and
    behind it.
    """
    theirs = _their_xnnpack()

    class TakesHalves(theirs.partitioner):  # type: ignore[misc, name-defined]
        """Leaves the piece of ``x * 3`` (of doubles) that makes a tensor of the number
        to the host.
        """

        asked = 0

        def partition(self, program: Any) -> Any:
            TakesHalves.asked += 1
            result = super().partition(program)
            tag = next(iter(result.partition_tags))
            for node in result.tagged_exported_program.graph.nodes:
                if node.op == "call_function" and "mul" in str(node.target):
                    node.meta["delegation_tag"] = tag
            return result

    from delegraph_executorch import bridge

    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu((torch.relu(x).half() * 3).float())

    parts = bridge(theirs.backend, TakesHalves)
    program = torch.export.export(Twice(), (torch.randn(2, 3),)).run_decompositions()
    result = parts.partitioner().partition(program)
    tags = {
        node.name: node.meta.get("delegation_tag")
        for node in program.graph.nodes
        if node.op == "call_function"
    }
    assert tags["mul"] is None
    assert TakesHalves.asked == 2
    assert ("mul", "TakesHalves takes only a part of it") in [
        (refusal.node.name, refusal.reason) for refusal in result.refusals
    ]


def test_one_declaration_makes_a_backend() -> None:
    from delegraph_executorch import bridge

    theirs = _their_xnnpack()

    class MineBackend(_backend_details()):  # type: ignore[misc]
        preprocess = staticmethod(theirs.backend.preprocess)

    class MinePartitioner(theirs.partitioner):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.delegation_spec = self.delegation_spec._replace(
                backend_id="MineBackend"
            )

    made = bridge(MineBackend, MinePartitioner)
    assert [part.__module__ for part in made] == [__name__] * 3
    module = mlp().eval()
    x = torch.randn(2, 8)
    with delegraph.register(
        made.backend, partitioner=made.partitioner, runtime=made.runtime, name="mine"
    ):
        lowered = lower(module, (x,), backends=["mine"])
        assert [delegate.backend_id for delegate in lowered.delegates] == [
            "MineBackend"
        ]
        with pytest.raises(
            NoRuntime,
            match=(
                "ExecuTorch's runtime here has no backend MineBackend; it has .*XnnpackBackend"
            ),
        ):
            lowered(x)


def test_classes_that_cannot_be_bridged_are_refused() -> None:
    from delegraph_executorch import bridge

    with pytest.raises(
        ContractViolation, match="bridge takes a BackendDetails class of ExecuTorch"
    ):
        bridge(int, lambda: None)
    theirs = _their_xnnpack()

    class OtherBackend(_backend_details()):  # type: ignore[misc]
        preprocess = staticmethod(theirs.backend.preprocess)

    program = torch.export.export(
        mlp().eval(), (torch.randn(2, 8),)
    ).run_decompositions()
    with pytest.raises(
        ContractViolation,
        match="assigned the partition .* to the backend XnnpackBackend, but is bridged with OtherBackend",
    ):
        bridge(OtherBackend, theirs.partitioner).partitioner().partition(program)


def test_damaged_blobs_and_wrong_inputs() -> None:
    lowered = lower(mlp(), (torch.randn(2, 8),), backends=["xnnpack"])
    runtime = delegraph.get_runtime("xnnpack")
    blob = lowered.delegates[0].processed_bytes
    data = _named_data(lowered)
    delegate = runtime.load(blob, [], data)
    with pytest.raises(InputError, match="XnnpackBackend refuses these inputs"):
        delegate(torch.randn(2, 9))
    convention = next(
        key for key in data if key.startswith("XnnpackBackend.convention.")
    )
    for damaged in (
        b"",
        b"[]",
        b'{"inputs":[{"dtype":"nn"}],"outputs":[]}',
        b'{"inputs":3,"outputs":3}',
    ):
        with pytest.raises(FormatError, match="is damaged"):
            runtime.load(blob, [], {**data, convention: damaged})
    other = b"XH00" + bytes(60)
    with pytest.raises(NoRuntime, match="has no calling convention"):
        runtime.load(other, [], data)


def test_loaded_files_call_blobs_as_the_program_does(tmp_path: Any) -> None:
    module = mlp().eval()
    x = torch.randn(2, 8)
    lowered = lower(module, (x,), backends=["xnnpack"])
    lowered.save(tmp_path / "m.pte")
    loaded = delegraph.load(tmp_path / "m.pte")
    assert any(".convention." in key for key in _named_data(lowered))
    assert not any(".convention." in key for key in loaded.named_data)
    torch.testing.assert_close(loaded(x), module(x))
    mine = {
        "net.convention.txt": b"more",
        f"net.convention.{'0' * 64}": b"of somebody else",
    }
    lowered.save(tmp_path / "more.pte", named_data=mine)
    found = delegraph.load(tmp_path / "more.pte").named_data
    assert {key: found.get(key) for key in mine} == mine


def test_weights_of_the_caller_are_shared_and_left_alone() -> None:
    module = conv_net().eval()
    x = torch.randn(1, 3, 16, 16)
    before = copy.deepcopy(module.state_dict())
    lower(module, (x,), backends=["xnnpack"])
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_the_same_bytes_again() -> None:
    module = Split().eval()
    x = torch.randn(2, 8)
    once, twice = (lower(module, (x,), backends=["xnnpack"]) for _ in range(2))
    assert [delegate.processed_bytes for delegate in once.delegates] == [
        delegate.processed_bytes for delegate in twice.delegates
    ]


@pytest.mark.parametrize(
    ("name", "backend_id"),
    [
        ("vulkan", "VulkanBackend"),
        pytest.param("coreml", "CoreMLBackend", marks=pytest.mark.slow),
    ],
)
def test_backends_for_other_machines_compile_here(
    name: str, backend_id: str, tmp_path: Any
) -> None:
    lowered = lower(conv_net(), (torch.randn(1, 3, 16, 16),), backends=[name])
    assert [delegate.backend_id for delegate in lowered.delegates] == [backend_id]
    assert lowered.delegates[0].processed_bytes
    lowered.save(tmp_path / "m.pte")
    assert backend_id.encode() in (tmp_path / "m.pte").read_bytes()
    with pytest.raises(NoRuntime):
        lowered(torch.randn(1, 3, 16, 16))


class Scalars(nn.Module):
    """A result without dimensions of a weight that has none, and of a constant that an
    operator makes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * x + torch.full_like(x, 2.0)


def test_constants_without_dimensions_are_delegated(tmp_path: Any) -> None:
    module = Scalars().eval()
    call = (torch.tensor(2.0),)
    lowered = lower(module, call, backends=["xnnpack"])
    assert lowered.report.refusals == []
    check_both_runtimes(lowered, module, [call], tmp_path / "m.pte")


LARGE = [
    pytest.param(name, marks=pytest.mark.slow) for name in ("mobilenet-v2", "resnet-18")
]


@pytest.mark.parametrize("name", ["u-net", *LARGE])
def test_no_fewer_operators_than_executorch_delegates(name: str, tmp_path: Any) -> None:
    torch.manual_seed(0)
    module, calls, shapes = MODELS[name]()
    lowered = lower(module, calls[0], shapes, backends=["xnnpack"])
    host, delegates = _their_counts(module.eval(), calls[0], shapes)
    assert lowered.host_operators <= host
    assert len(lowered.delegates) <= delegates
    check_both_runtimes(lowered, module, calls, tmp_path / "m.pte")


def _their_counts(
    module: nn.Module, call: tuple[Any, ...], shapes: Any
) -> tuple[int, int]:
    """(operators on the host, delegates) of ``to_edge_transform_and_lower``."""
    from executorch.exir import to_edge_transform_and_lower

    with warnings.catch_warnings():
        program = torch.export.export(module, call, dynamic_shapes=shapes)
        edge = to_edge_transform_and_lower(
            program, partitioner=[_their_xnnpack().partitioner()]
        )
    targets = [
        str(node.target)
        for node in edge.exported_program().graph.nodes
        if node.op == "call_function"
    ]
    delegates = sum("call_delegate" in t for t in targets)
    return len(targets) - delegates - sum("getitem" in t for t in targets), delegates


def _their_xnnpack() -> Any:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
        XnnpackPartitioner,
    )
    from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend

    class Theirs:
        backend = XnnpackBackend
        partitioner = XnnpackPartitioner

    return Theirs


def _backend_details() -> Any:
    from executorch.exir.backend.backend_details import BackendDetails

    return BackendDetails


def _named_data(lowered: Any) -> dict[str, bytes]:
    store = lowered.named_data
    return {
        key: store.buffers[entry.buffer_index] for key, entry in store.pte_data.items()
    }
