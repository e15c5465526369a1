"""``as_strided`` and its kin in program files: right in both runtimes, or refused with
the user's line.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from delegraph.errors import DelegraphError, InputError, Unsupported
from delegraph_executorch.emit import EmitOptions, EmittedProgram
from torch import Tensor
from torch.export import Dim

from ..support.judge import (
    assert_equal,
    emit,
    load_device_halves_or_skip,
    lower,
    run_on_host,
    stock_runtime,
)
from ..support.programs import Function
from ..support.strided_programs import random_program

SQUARE = torch.arange(16.0).reshape(4, 4)
IMAGE = (
    torch.arange(24.0).reshape(1, 3, 4, 2).contiguous(memory_format=torch.channels_last)
)
GAPS = torch.arange(20.0).reshape(4, 5)[:, 1:]
READS: dict[str, tuple[Callable[..., Any], Tensor]] = {
    "of a transposed view": (lambda x: x.t().as_strided((2,), (1,)), SQUARE),
    "of what is computed from one": (
        lambda x: torch.sin(x).t().as_strided((2, 2), (4, 1)),
        SQUARE,
    ),
    "of a result that lies as its operand": (
        lambda x: torch.sin(x.t()).as_strided((4,), (1,)),
        SQUARE,
    ),
    "of a slice": (lambda x: x[:, 1:].as_strided((3,), (1,)), SQUARE),
    "before a slice": (lambda x: x[1:, 1:].as_strided((3,), (1,), 0), SQUARE),
    "of a part": (lambda x: x.split(2)[1].as_strided((4,), (3,), 3), SQUARE),
    "of another one": (
        lambda x: x.as_strided((2, 3), (1, 2)).as_strided((4,), (3,)),
        SQUARE,
    ),
    "of a view that copied": (
        lambda x: x.t().reshape(16).as_strided((2, 2), (3, 1), 1),
        SQUARE,
    ),
    "of a view that did not": (
        lambda x: x[1:].reshape(12).as_strided((2, 2), (3, 1), 1),
        SQUARE,
    ),
    "of expanded elements": (
        lambda x: (x[0] + 1).expand(3, 4).as_strided((2, 4), (0, 1)),
        SQUARE,
    ),
    "of channels last": (lambda x: (x + 1).as_strided((6,), (1,)), IMAGE),
    "of an input with channels last": (lambda x: x.as_strided((6,), (1,)), IMAGE),
    "of an input with gaps": (lambda x: x.as_strided((2, 3), (5, 1), 2), GAPS),
    "of nothing": (lambda x: x[1:].as_strided((0, 2), (4, 1), 3), SQUARE),
    "of one element": (lambda x: x.t().as_strided((), (), 7), SQUARE),
    "copied": (lambda x: torch.as_strided_copy(x.t(), (4,), (1,)), SQUARE),
    "scattered": (
        lambda x: torch.as_strided_scatter(x.t(), x[0] * 2, (4,), (1,)),
        SQUARE,
    ),
    "scattered beside": (
        lambda x: torch.as_strided_scatter(x[:, 1:], x[0] * 2, (4,), (3,)),
        SQUARE,
    ),
    "scattered nowhere": (
        lambda x: torch.as_strided_scatter(x[1:], x[0, :2], (2,), (2,), 0),
        SQUARE,
    ),
    "the same in other strides": (
        lambda x: torch.ops.aten._reshape_alias(x.t() * 1, [4, 4], [1, 4]),
        SQUARE,
    ),
}


def written(x: Tensor) -> Tensor:
    y = x.t() + 0
    y.as_strided((2, 2), (5, 1), 1).mul_(3)
    return y.as_strided((16,), (1,))


def assert_equals_eager(
    function: Callable[..., Any],
    calls: Sequence[tuple[Tensor, ...]],
    shapes: Any = None,
    **kwargs: Any,
) -> None:
    """In both runtimes, what eager computes for inputs that lie as those of the first
    call.
    """
    lowered = lower(Function(function), calls[0], shapes, **kwargs)
    assert_results(emit(lowered), calls, [[function(*call)] for call in calls])


def assert_results(
    emitted: EmittedProgram,
    calls: Sequence[Sequence[Tensor]],
    wanted: Sequence[list[Tensor]],
) -> None:
    """The results of each call, in both runtimes; ExecuTorch's has nothing that runs
    TOSA.
    """
    host = run_on_host(emitted)
    for call, results in zip(calls, wanted, strict=True):
        assert_equal(host.run("forward", _afresh(call)), results)
    if "TOSABackend" not in [
        delegate.id for plan in emitted.program.plans for delegate in plan.delegates
    ]:
        content = emitted.file.join()
        program = stock_runtime().load_program(content)
        method = program.load_method("forward")
        for call, results in zip(calls, wanted, strict=True):
            assert_equal(
                method.execute([t.contiguous() for t in _afresh(call)]), results
            )


@pytest.mark.parametrize("backends", [[], ["tosa"]], ids=["host", "tosa"])
@pytest.mark.parametrize("name", READS)
def test_memory_that_is_read_by_place(name: str, backends: list[str]) -> None:
    function, x = READS[name]
    try:
        assert_equals_eager(function, [(x,)], backends=backends)
    except Unsupported as e:  # a delegate returns elements and nothing around them
        assert backends
        assert "outside of the tensors that a program file has" in e.message
        assert e.source is not None


def test_memory_that_is_written_by_place() -> None:
    assert_equals_eager(written, [(SQUARE,)])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.t().as_strided((x.shape[0],), (1,)),
        lambda x: (x.t() * 2).as_strided((x.shape[0], 4), (4, 1)),
        lambda x: x[1:].as_strided((2,), (x.stride(0),)),
        lambda x: x.as_strided((x.shape[0] - 1, 4), (4, 1), 4),
    ],
)
def test_dynamic_strided_programs_equal_eager(function: Callable[..., Any]) -> None:
    calls = [(torch.randn(n, 4),) for n in (4, 3, 8)]
    assert_equals_eager(function, calls, (({0: Dim("n", min=3, max=8)},),))


@pytest.mark.parametrize(
    ("function", "x", "said"),
    [
        (
            lambda x: x.as_strided((5,), (1,), 1),
            GAPS,
            "outside of the tensors that a program file has",
        ),
        (
            lambda x: x.as_strided((2,), (1,), 0),
            SQUARE[1:],
            "outside of the tensors that a program file has",
        ),
        (
            lambda x: torch.as_strided_copy(x + 0.0, (5,), (1,), 0),
            GAPS.expand(2, 4, 4)[1],
            None,
        ),
        (
            lambda x: torch.as_strided_scatter(x, x[:2, :2], (2, 2), (1, 1)),
            SQUARE,
            "writes to the same memory twice",
        ),
        (lambda x: x.as_strided((8,), (1,)).reshape(-1), torch.randn(4, 2).t(), None),
    ],
)
def test_memory_that_the_file_lacks_is_refused(
    function: Callable[..., Any], x: Tensor, said: str | None
) -> None:
    if said is None:
        return assert_equals_eager(function, [(x,)])
    with pytest.raises(Unsupported, match=said) as raised:
        emit(lower(Function(function), (x,)))
    assert raised.value.source is not None
    assert "programs.py" in str(raised.value.source)


def test_inputs_of_other_strides_are_read_correctly() -> None:
    """The file says how its input lies in memory; what the caller gives is read so."""
    emitted = emit(
        lower(Function(lambda x: x.as_strided((6,), (2,), 1)), (SQUARE,)),
        EmitOptions(plan_inputs=False),
    )
    program = run_on_host(emitted)
    for x in (
        SQUARE.t().contiguous().t(),
        torch.stack([SQUARE * 0, SQUARE])[1],
        SQUARE.repeat(1, 2)[:, :4],
    ):
        assert_equal(program.run("forward", [x]), [SQUARE.as_strided((6,), (2,), 1)])


def test_places_beyond_a_tensor_are_damage() -> None:
    """The memory that it is planned in may go on; its elements do not."""
    function = Function(lambda x: x.as_strided((3,), (8,)))
    emitted = emit(
        lower(function, (torch.randn(8, 4),), (({0: Dim("n", min=3, max=8)},),))
    )
    with pytest.raises(InputError, match="reads memory beyond its argument"):
        run_on_host(emitted).run("forward", [torch.randn(3, 4)])


def outcome(seed: int, backends: list[str]) -> str:
    """ "right" or "refused"; anything else is an error."""
    module, inputs = random_program(seed)
    try:
        lowered = lower(copy.deepcopy(module), _afresh(inputs), backends=backends)
        load_device_halves_or_skip(lowered)
        emitted = emit(lowered)
    except DelegraphError as e:
        assert e.code == "export-failed" or (
            e.code != "internal" and e.source is not None
        ), e
        return "refused"
    expected = [module(*_afresh(inputs)) for _ in range(2)]
    assert_results(emitted, [inputs for _ in expected], expected)
    return "right"


def _afresh(inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The same in memory of their own, as programs write their inputs."""
    return tuple(
        torch.empty(0).set_(
            t.untyped_storage().clone(), t.storage_offset(), t.shape, t.stride()
        )
        for t in inputs
    )


@pytest.mark.parametrize(
    ("seeds", "backends"),
    [
        (range(8), []),
        (range(8), ["tosa"]),
        pytest.param(range(500), [], marks=pytest.mark.slow),
        pytest.param(range(500), ["tosa"], marks=pytest.mark.slow),
        pytest.param(range(500), ["compiler-demo"], marks=pytest.mark.slow),
    ],
    ids=["few", "few-tosa", "500", "500-tosa", "500-demo"],
)
def test_most_random_strided_programs_equal_eager(
    seeds: range, backends: list[str]
) -> None:
    counted = Counter(outcome(seed, backends) for seed in seeds)
    assert counted["right"] >= 0.7 * len(seeds), counted
