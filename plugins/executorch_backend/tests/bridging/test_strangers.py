"""Partitioners and backends of others: what they are given, and whose fault the error
names if they misbehave.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import delegraph
import pytest
import torch
from delegraph.errors import ContractViolation, DelegraphError, NotFullyDelegated
from torch import nn

from ..support.judge import assert_equal, emit, lower, stock_runtime

pytestmark = pytest.mark.filterwarnings("ignore")
X = torch.tensor([0.5, -1.0, 2.0])


@pytest.fixture(autouse=True)
def _needs_executorch() -> None:
    stock_runtime()


class Chain(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(torch.cos(torch.sin(x)))

    def other(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) + x


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(torch.sin(x))
        return self.total * 2


@contextmanager
def bridge(backend: Any, tag: Callable[[Any, str], Any]) -> Iterator[None]:
    """``backend`` under the name ``it``, with a partitioner that lets ``tag(program,
    tag)`` tag nodes.
    """
    from delegraph_executorch import bridge
    from executorch.exir.backend.backend_details import CompileSpec
    from executorch.exir.backend.partitioner import (
        DelegationSpec,
        Partitioner,
        PartitionResult,
    )

    class Tagging(Partitioner):
        def partition(self, program: Any) -> Any:
            odd = tag(program, "some")
            spec = DelegationSpec(backend.__name__, [CompileSpec("mode", b"fast")])
            used = {
                node.meta["delegation_tag"]
                for node in program.graph.nodes
                if "delegation_tag" in node.meta
            }
            return odd or PartitionResult(
                program, {name: spec for name in used if name != "unknown"}
            )

    made = bridge(backend, Tagging)
    with delegraph.register(made.backend, partitioner=made.partitioner, name="it"):
        yield


def backend_compiling_with(preprocess: Callable[..., Any]) -> Any:
    """A backend class of ExecuTorch's that compiles with ``preprocess(program,
    specs)``.
    """
    from executorch.exir.backend.backend_details import BackendDetails

    class StrangeBackend(BackendDetails):  # type: ignore[misc]
        pass

    StrangeBackend.preprocess = staticmethod(preprocess)  # type: ignore[method-assign]
    return StrangeBackend


def result_of(blob: Any, handles: Any = None) -> Any:
    from executorch.exir.backend.backend_details import PreprocessResult

    return PreprocessResult(processed_bytes=blob, debug_handle_map=handles)


def calls_of(program: Any, *names: str) -> list[Any]:
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    return [
        n
        for n in calls
        if not names or any(f"aten.{name}." in str(n.target) for name in names)
    ]


def tag_all(program: Any, tag: str) -> None:
    for node in calls_of(program):
        node.meta["delegation_tag"] = tag


def test_methods_are_compiled_together() -> None:
    """ExecuTorch's own backend for its tests writes how many operators all methods have
    into every blob.
    """
    from executorch.exir.backend.test.backend_with_preprocess_all_demo import (
        FirstBackendWithPreprocessAll as Theirs,
    )

    def sines(program: Any, tag: str) -> None:
        for node in calls_of(program, "sin", "add"):
            node.meta["delegation_tag"] = f"{tag}_{node.name}"

    module = Chain()
    other = Chain()
    other.forward = module.other  # type: ignore[method-assign]
    programs = {
        name: torch.export.export(m, (X,))
        for name, m in (("forward", module), ("other", other))
    }
    with bridge(Theirs, sines):
        lowered = delegraph.lower(programs, backends=["it"])
    expected = [
        (
            delegate.method,
            f"FirstBackendWithPreprocessAll#4#{delegate.nodes[0].target}:#mode:b'fast';",
        )
        for delegate in lowered.delegates
    ]
    assert [
        (delegate.method, delegate.processed_bytes.decode())
        for delegate in lowered.delegates
    ] == expected
    assert [delegate.method for delegate in lowered.delegates] == [
        "forward",
        "forward",
        "other",
        "other",
    ]


def test_a_buffer_that_a_delegate_keeps() -> None:
    """Its ``preprocess`` gets it with its value and what becomes of it; the program
    around it has it no more.
    """
    from executorch.exir.backend.utils import tag_constant_data, tag_mutated_buffer

    seen: list[Any] = []

    def preprocess(program: Any, specs: Any) -> Any:
        signature = program.graph_signature
        seen.append(
            (
                dict(signature.buffers_to_mutate),
                signature.inputs_to_buffers,
                program.state_dict,
            )
        )
        return result_of(b"kept", {})

    def keep(program: Any, tag: str) -> None:
        tag_all(program, tag)
        tag_constant_data(program)
        tag_mutated_buffer(program)

    with bridge(backend_compiling_with(preprocess), keep):
        lowered = lower(Counter(), (X,), backends=["it"]).with_missing_runtime("eager")
        written, read, tensors = seen[0]
        assert list(written.values()) == ["total"]
        assert "total" in read.values()
        assert torch.equal(tensors["total"], torch.zeros(3))
        assert emit(lowered).program.plans[0].memory_sizes[1] <= 64, (
            "memory for the input and the result, and no state"
        )
        eager = Counter()
        for _ in range(3):
            assert_equal([lowered(X)], [eager(X)])


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads take turns a hundred times as often as they do by default."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(5e-5)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("hasty")
def test_two_threads_lower_at_once() -> None:
    """Exporting in one while the other compiles, which ExecuTorch does by tracing."""
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    x = torch.randn(2, 4)
    with ThreadPoolExecutor(3) as pool:
        made = [
            pool.submit(lower, module, (x,), backends=["xnnpack"]) for _ in range(6)
        ]
    first, *_, second = (done.result() for done in made)
    assert (
        [delegate.processed_bytes for delegate in first.delegates]
        == [delegate.processed_bytes for delegate in second.delegates]
        != []
    )
    assert_equal([second(x)], [module(x)])


def raise_no_luck(*_: Any) -> Any:
    raise ValueError("no luck")


def tag_unknown(program: Any, _: str) -> None:
    calls_of(program)[0].meta["delegation_tag"] = "unknown"


def tag_around(program: Any, tag: str) -> None:
    """The first and the last of a chain, whose middle stays outside: each is a
    partition, and comes to be compiled.
    """
    for node in calls_of(program, "sin"):
        node.meta["delegation_tag"] = tag


@pytest.mark.parametrize(
    ("tag", "kind", "text"),
    [
        (
            raise_no_luck,
            NotFullyDelegated,
            "the backend's support check raised ValueError: no luck",
        ),
        (
            lambda *_: 7,
            NotFullyDelegated,
            "AttributeError: 'int' object has no attribute",
        ),
        (tag_unknown, ContractViolation, "unknown"),
        (
            tag_around,
            NotFullyDelegated,
            "its compiler failed on the partition: ValueError: no luck",
        ),
    ],
    ids=[
        "raises",
        "returns a number",
        "a tag that nothing declares",
        "around what it leaves",
    ],
)
def test_wrong_tags_of_partitioners_are_refused(
    tag: Any, kind: type[DelegraphError], text: str
) -> None:
    with (
        bridge(backend_compiling_with(raise_no_luck), tag),
        pytest.raises(kind, match=text),
    ):
        lower(Chain(), (X,), backends=["it"], require_full=True)


def test_a_partitioner_that_wants_nothing() -> None:
    with bridge(backend_compiling_with(raise_no_luck), lambda *_: None):
        lowered = lower(Chain(), (X,), backends=["it"])
    assert lowered.host_operators == 3
    assert "Tagging does not take it" in str(lowered.report)


@pytest.mark.parametrize(
    ("preprocess", "kind", "text"),
    [
        (
            raise_no_luck,
            NotFullyDelegated,
            "its compiler failed on the partition: ValueError: no luck",
        ),
        (
            lambda *_: None,
            ContractViolation,
            "preprocess of StrangeBackend returned None",
        ),
        (
            lambda *_: result_of(5, {}),
            ContractViolation,
            "not a PreprocessResult with bytes",
        ),
        (
            lambda *_: result_of("text", {}),
            ContractViolation,
            "not a PreprocessResult with bytes",
        ),
    ],
    ids=["raises", "nothing", "a number", "text"],
)
def test_wrong_results_of_backends_are_refused(
    preprocess: Any, kind: type[DelegraphError], text: str
) -> None:
    with (
        bridge(backend_compiling_with(preprocess), tag_all),
        pytest.raises(kind, match=text),
    ):
        lower(Chain(), (X,), backends=["it"], require_full=True)


def test_backends_that_draw_numbers_keep_the_users_generator() -> None:
    """XNNPACK's passes draw example inputs when they run for the first time."""

    def preprocess(*_: Any) -> Any:
        torch.rand(1)
        return result_of(b"blob")

    with bridge(backend_compiling_with(preprocess), tag_all):
        before = torch.get_rng_state()
        lower(Chain(), (X,), backends=["it"])
    assert torch.equal(torch.get_rng_state(), before)


def test_debug_handles_that_lead_nowhere_are_left_out() -> None:
    handles = {1: (1, 99), "two": 2, 3: [77], 4: None}
    with bridge(
        backend_compiling_with(lambda *_: result_of(b"blob", handles)), tag_all
    ):
        lowered = lower(Chain(), (X,), backends=["it"])
    assert lowered.delegates[0].module.meta["debug_handle_map"] == {
        1: (1,),
        "two": (2,),
    }
