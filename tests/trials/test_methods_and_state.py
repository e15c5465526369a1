"""Methods without inputs and buffers shared by methods, in both runtimes of ``.pte``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import delegraph
import pytest
import torch
from torch import nn

# whatever ExecuTorch warns of at import
pytestmark = pytest.mark.filterwarnings("ignore")

BACKENDS = [[], ["tosa"], ["xnnpack"], ["openvino"]]
EACH_BACKEND = pytest.mark.parametrize(
    "backends",
    [
        (
            names
            if names in ([], ["tosa"])
            else pytest.param(names, marks=pytest.mark.slow)
        )
        for names in BACKENDS
    ],
    ids=lambda names: names[0] if names else "host",
)


class Holder(nn.Module):
    """The state of the modules below."""

    def __init__(self) -> None:
        super().__init__()
        self.state = nn.Buffer(torch.arange(3.0))
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 4.0]))


class Method(nn.Module):
    """A method that calls a function with the state and its arguments."""

    def __init__(self, holder: Holder, function: Callable[..., Any]) -> None:
        super().__init__()
        self.holder = holder
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(self.holder, *args)


def step(holder: Any, x: Any) -> Any:
    holder.state.add_(x * holder.weight)
    return holder.state * 2


def peek(holder: Any, x: Any) -> Any:
    return holder.state + x


def get_state(holder: Any) -> Any:
    return holder.state.clone()


def get_twice(holder: Any) -> Any:
    return holder.state * 2 + 1, holder.state


def reset(holder: Any) -> Any:
    holder.state.zero_()


def reset_and_get(holder: Any) -> Any:
    holder.state.zero_()
    return holder.state + 1


def constants(holder: Any) -> Any:
    return (
        torch.ones(3),
        torch.arange(4) * 2,
        torch.zeros(2, dtype=torch.bool),
        holder.weight * 2,
    )


def weights(holder: Any) -> Any:
    return holder.weight


def number(holder: Any) -> Any:
    return 5


WITHOUT_INPUTS = [
    get_state,
    get_twice,
    reset,
    reset_and_get,
    constants,
    weights,
    number,
]


class NoArguments(nn.Module):
    """A module whose ``forward`` has no parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.state = nn.Buffer(torch.arange(3.0))

    def forward(self) -> Any:
        self.state.add_(1)
        return self.state * 2


def skip_unless_installed(backends: list[str]) -> None:
    """Skip the test if the backend is not installed."""
    for name in backends:
        usable_names = [
            info.name for info in delegraph.default_registry().backends() if info.usable
        ]
        if name not in usable_names:
            pytest.skip(f"{name} is not installed")


def runtimes_for(backends: list[str]) -> list[str | None]:
    """Return the runtimes that run a file of these backends. ExecuTorch's lacks TOSA
    and OpenVINO.
    """
    pytest.importorskip("delegraph_executorch")
    stock: list[str | None] = []
    try:
        import executorch.runtime  # noqa: F401

        stock = ["executorch"]
    except ImportError:
        pass
    return [None, *stock] if backends in ([], ["xnnpack"]) else [None]


@EACH_BACKEND
@pytest.mark.parametrize(
    "function", WITHOUT_INPUTS, ids=lambda function: function.__name__
)
def test_methods_without_inputs_run_and_survive_files(
    function: Callable[..., Any], backends: list[str], tmp_path: Any
) -> None:
    skip_unless_installed(backends)
    expected = Method(Holder(), function)()
    lowered = delegraph.lower(Method(Holder(), function), (), backends=backends)

    assert_close(lowered(), expected)
    lowered.save(tmp_path / "model.pte")
    for runtime in runtimes_for(backends):
        assert_close(
            delegraph.load(tmp_path / "model.pte", runtime=runtime)(), expected
        )


def assert_close(result: Any, expected: Any) -> None:
    torch.testing.assert_close(result, expected)


def test_forward_without_parameters_needs_no_examples() -> None:
    lowered = delegraph.lower(NoArguments(), backends=["tosa"])
    model = NoArguments()
    for _ in range(3):
        assert_close(lowered(), model())


def test_forward_with_parameters_needs_examples() -> None:
    with pytest.raises(delegraph.DelegraphError, match="example_inputs are needed"):
        delegraph.lower(nn.ReLU(), backends=[])


def test_verify_of_a_method_without_inputs() -> None:
    lowered = delegraph.lower(Method(Holder(), get_twice), (), backends=["tosa"])
    assert lowered.verify().agrees


def lowered_methods(backends: list[str], **more: Any) -> Any:
    """Lower methods of one state: one writes it, one resets it, and two read it."""
    holder = Holder()
    functions = {
        "step": step,
        "peek": peek,
        "get_state": get_state,
        "reset": reset_and_get,
    }
    return delegraph.lower(
        {name: Method(holder, function) for name, function in functions.items()},
        {
            "step": (torch.ones(3),),
            "peek": (torch.ones(3),),
            "get_state": (),
            "reset": (),
        },
        backends=backends,
        **more,
    )


@EACH_BACKEND
def test_methods_share_a_buffer_that_one_only_reads(
    backends: list[str], tmp_path: Any
) -> None:
    skip_unless_installed(backends)
    lowered_methods(backends).save(tmp_path / "model.pte", share_mutable_buffers=True)
    functions = {
        "step": step,
        "peek": peek,
        "get_state": get_state,
        "reset": reset_and_get,
    }
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("get_state", ()),
        ("step", (torch.ones(3),)),
        ("peek", (torch.zeros(3),)),
        ("step", (torch.full((3,), 2.0),)),
        ("get_state", ()),
        ("reset", ()),
        ("get_state", ()),
        ("peek", (torch.ones(3),)),
    ]
    for runtime in runtimes_for(backends):
        loaded = delegraph.load(tmp_path / "model.pte", runtime=runtime)
        holder = Holder()
        for name, args in calls:
            with torch.no_grad():
                assert_close(loaded.method(name)(*args), functions[name](holder, *args))


@EACH_BACKEND
def test_each_method_keeps_its_own_buffer_without_sharing(
    backends: list[str], tmp_path: Any
) -> None:
    skip_unless_installed(backends)
    lowered = lowered_methods(backends)
    lowered.save(tmp_path / "model.pte")
    for runtime in runtimes_for(backends):
        loaded = delegraph.load(tmp_path / "model.pte", runtime=runtime)
        for program in (loaded, lowered.instance()):
            with torch.no_grad():
                program.method("step")(torch.ones(3))
                assert_close(program.method("get_state")(), torch.arange(3.0))


def test_a_shared_buffer_stays_outside_of_delegates_that_keep_state(
    tmp_path: Any,
) -> None:
    pytest.importorskip("delegraph_executorch")
    lowered = lowered_methods(
        ["tosa"], options={"tosa": {"spec": "TOSA-1.0+FP+INT+variable"}}
    )
    assert not any(delegate.module.state for delegate in lowered.delegates)

    lowered.save(tmp_path / "model.pte", share_mutable_buffers=True)
    loaded = delegraph.load(tmp_path / "model.pte")
    loaded.method("step")(torch.ones(3))
    assert_close(loaded.method("get_state")(), torch.tensor([1.0, 3.0, 6.0]))


def test_methods_of_separate_programs_share_a_buffer_by_name(tmp_path: Any) -> None:
    pytest.importorskip("delegraph_executorch")
    programs = {
        "step": torch.export.export(Method(Holder(), step), (torch.ones(3),)),
        "peek": torch.export.export(Method(Holder(), peek), (torch.ones(3),)),
    }
    lowered = delegraph.lower(programs, backends=["tosa"])
    lowered.save(tmp_path / "model.pte", share_mutable_buffers=True)
    loaded = delegraph.load(tmp_path / "model.pte")
    loaded.method("step")(torch.ones(3))

    assert_close(loaded.method("peek")(torch.zeros(3)), torch.tensor([1.0, 3.0, 6.0]))


def test_edge_programs_share_a_buffer_that_one_only_reads(tmp_path: Any) -> None:
    edge = pytest.importorskip("delegraph_executorch.edge")
    holder = Holder()
    programs = {
        "step": torch.export.export(Method(holder, step), (torch.ones(3),)),
        "peek": torch.export.export(Method(holder, peek), (torch.ones(3),)),
    }
    manager = edge.to_edge_transform_and_lower(
        programs, partitioner=[delegraph.get_partitioner("tosa")]
    )
    manager.save(tmp_path / "model.pte", share_mutable_buffers=True)
    loaded = delegraph.load(tmp_path / "model.pte")
    loaded.method("step")(torch.ones(3))

    assert_close(loaded.method("peek")(torch.zeros(3)), torch.tensor([1.0, 3.0, 6.0]))
