"""Values have the recorded strides wherever the program can see memory."""

from __future__ import annotations

import copy

import delegraph.api as api
import pytest
import torch
from delegraph.discovery.registry import Registry
from delegraph.errors import InputError, Unsupported
from delegraph.partitioner import CapabilityPartitioner
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

from programs.tests.support import aliasing_programs as programs

from ..conftest import EchoBackend, EchoRuntime
from ..support.random_support import MASK, partitioner

aten = torch.ops.aten
SINE = CapabilityPartitioner(
    lambda n: None if n.target is aten.sin.default else "the host's", "EchoBackend"
)


class PackedRuntime(EchoRuntime):
    """Returns contiguous results in new memory, as compilers do."""

    @staticmethod
    def load(processed_bytes, compile_specs, named_data):
        run = EchoRuntime.load(processed_bytes, compile_specs, named_data)
        return lambda *args: tuple(
            r.clone(memory_format=torch.contiguous_format) for r in run(*args)
        )


@pytest.fixture(scope="module")
def packed():
    registry = Registry(discover=False)
    registry.register(EchoBackend, runtime=PackedRuntime)
    return registry


def as_module(function):
    class Module(torch.nn.Module):
        def forward(self, *args):
            return function(*args)

    return Module().eval()


def lower_all_but(
    function, registry, *inputs, host=(aten.as_strided.default,), **options
):
    """Lower for a backend that takes all operators except ``host``."""
    takes = CapabilityPartitioner(
        lambda n: "the host's" if n.target in host else None, "EchoBackend"
    )
    return api.lower(
        as_module(function), inputs, backends=[takes], registry=registry, **options
    )


def branch(x):
    return torch.cond(
        x.sum() > 1e9, lambda x: x.cos().t(), lambda x: x.sin().t(), (x,)
    ).as_strided((2, 2), (4, 1))


def inside_branch(x):
    read = lambda x: x.sin().t().as_strided((2, 2), (4, 1))
    return torch.cond(
        x.sum() > 1e9, lambda x: x.cos()[:2, :2] + 0, lambda x: read(x) + 0, (x + 1,)
    )


READS = {
    "transposed": lambda x: x.sin().t().as_strided((2, 2), (4, 1)),
    "after a host operator": lambda x: x.sin().t().exp().as_strided((2, 2), (4, 1)),
    "part": lambda x: x.sin().t()[1:].as_strided((2, 2), (4, 1)),
    "offset": lambda x: x.sin()[1:].t().as_strided((2, 2), (4, 1), 4),
    "broadcast": lambda x: x.sin()[0].expand(3, 4).as_strided((4,), (1,)),
    "twice": lambda x: (
        x.sin().t().as_strided((2, 2), (4, 1)).cos().t().as_strided((2, 2), (1, 2))
    ),
    "as a complex number": lambda x: torch.view_as_complex(
        x.sin().reshape(2, 2, 3).permute(2, 0, 1).contiguous()
    ),
    "as integers": lambda x: x.sin().view(torch.int16),
    "result of a branch": branch,
    "inside a branch": inside_branch,
}


@pytest.mark.parametrize("name", READS)
def test_memory_is_read_as_in_eager(packed, name):
    x = torch.arange(12.0).reshape(3, 4) / 8
    host = (
        aten.as_strided.default,
        aten.exp.default,
        aten.view_as_complex.default,
        aten.view.dtype,
    )
    program = lower_all_but(READS[name], packed, x, host=host)

    assert program.delegates
    for k in range(2):
        torch.testing.assert_close(program(x + k), READS[name](x + k), rtol=0, atol=0)


def test_random_numbers_are_drawn_in_the_order_of_memory(packed):
    def draw(x):
        return torch.rand_like(x.sin().t()) + 1

    x = torch.ones(3, 4)
    program = lower_all_but(draw, packed, x, host=(aten.rand_like.default,))
    torch.manual_seed(0)
    found = program(x)
    torch.manual_seed(0)

    torch.testing.assert_close(found, draw(x), rtol=0, atol=0)


def test_memory_around_a_delegates_result_is_refused(packed):
    """In eager this memory has the rest of the sine. The delegate returns only a part."""

    def around(x):
        return x.sin()[1:, 1:].as_strided((2, 2), (4, 1), 0)

    program = lower_all_but(around, packed, torch.ones(3, 4))
    with pytest.raises(
        Unsupported,
        match="as_strided.default reads memory around .*\n  at .*test_layouts.py:",
    ):
        program(torch.ones(3, 4))


def channels_last(*shape):
    return torch.randn(shape).to(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (lambda x: x.sin().t(), torch.randn(3, 4)),
        (lambda x: x.sin(), torch.randn(3, 4).t()),
        (lambda x: x.sin(), channels_last(2, 3, 4, 5)),
        (lambda x: x.sin().expand(2, 3, 4), torch.randn(3, 4)),
        (lambda x: (x.sin()[:, ::2], x.cos()[None]), torch.randn(3, 4)),
        (lambda x: x.sin(), torch.randn(0, 4).t()),
        (lambda x: x.sin().t(), torch.randn(1, 4)),
    ],
)
def test_the_caller_gets_the_recorded_strides(packed, function, given):
    lowered = lower_all_but(function, packed, given)(given)
    expected = function(given)
    torch.testing.assert_close(lowered, expected, rtol=0, atol=0)
    assert [t.stride() for t in pytree.tree_leaves(lowered)] == [
        t.stride() for t in pytree.tree_leaves(expected)
    ]


def test_dynamic_sizes_have_the_recorded_order_of_strides(packed):
    shapes = (
        (
            {
                0: torch.export.Dim("n", min=2, max=64),
                1: torch.export.Dim("m", min=2, max=64),
            },
        ),
    )
    program = lower_all_but(
        lambda x: x.sin().t(), packed, torch.randn(3, 4), dynamic_shapes=shapes
    )
    found = program(torch.ones(5, 7))

    assert found.shape == (7, 5)
    assert found.stride() == (1, 7)


def test_delegates_get_the_strides_that_they_were_compiled_for():
    seen = []

    class Looking(EchoRuntime):
        @staticmethod
        def load(*args):
            run = EchoRuntime.load(*args)

            def call(*given):
                seen.append([value.stride() for value in given])
                return run(*given)

            return call

    registry = Registry(discover=False)
    registry.register(EchoBackend, runtime=Looking)
    program = lower_all_but(
        lambda x, y: x @ y, registry, torch.ones(3, 4), torch.ones(5, 4).t()
    )
    x = torch.randn(4, 3).t()
    y = torch.randn(4, 5)

    torch.testing.assert_close(program(x, y), x @ y)
    assert seen == [[(4, 1), (1, 4)]]


def test_strides_that_differ_from_the_export_are_refused(packed):
    read = READS["transposed"]
    program = lower_all_but(read, packed, torch.randn(3, 4))
    with pytest.raises(
        InputError,
        match=r"input args_0 has the strides \[1, 3\]; it was exported with \[4, 1\]",
    ):
        program(torch.randn(4, 3).t())


def test_an_input_that_is_read_directly_may_have_any_strides(packed):
    def read(x):
        return x.t().as_strided((2, 2), (4, 1)), x.sin()

    program = api.lower(
        as_module(read), (torch.randn(3, 4),), backends=[SINE], registry=packed
    )
    x = torch.randn(4, 3).t()

    torch.testing.assert_close(program(x), read(x), rtol=0, atol=0)


def test_state_keeps_its_strides(packed):
    class State(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("k", torch.zeros(3, 4))

        def forward(self, x):
            before = self.k.as_strided((6,), (2,)) + 0
            self.k.copy_(x.sin().t())
            return before, self.k.as_strided((6,), (2,)) + 0

    module = State().eval()
    x = torch.randn(4, 3)
    program = api.lower(copy.deepcopy(module), (x,), backends=[SINE], registry=packed)
    for k in range(3):
        torch.testing.assert_close(program(x + k), module(x + k), rtol=0, atol=0)


def outcome(program, inputs):
    try:
        return program(*inputs), inputs
    except (InputError, Unsupported) as error:
        return error


def equals_eager_unless_refused(registry, seed, mask):
    """Compare with eager over two calls. Return whether the calls were refused."""
    module = programs.Program(seed, reads_memory=True).eval()
    exported = torch.export.export(module, programs.inputs(0))
    lowered = api.lower(exported, backends=[partitioner(mask)], registry=registry)
    eager = copy.deepcopy(module)
    for call in range(2):
        mine = programs.inputs(call)
        theirs = programs.inputs(call)
        found = outcome(lowered, mine)
        if isinstance(found, Unsupported):
            return True
        torch.testing.assert_close(
            found,
            (eager(*theirs), theirs),
            rtol=0,
            atol=0,
            msg=f"seed {seed}, mask {mask}",
        )
    return False


@pytest.mark.parametrize("mask", [0, 2**MASK - 1])
def test_written_transposed_values_keep_their_memory_order(packed, mask):
    """A write through a transposed view changes the order of ``x`` in memory."""
    assert not equals_eager_unless_refused(packed, 253, mask)


def test_writes_to_a_copy_of_an_expanded_tensor_equal_eager(packed):
    """Expanded elements share memory, so a scatter would write all of them."""
    assert not equals_eager_unless_refused(packed, 41296, 32768)


def test_random_programs_that_read_memory_equal_eager(packed):
    refused = [
        equals_eager_unless_refused(
            packed, seed, 0x123456789ABCDEF * (seed + 1) % 2**MASK
        )
        for seed in range(12)
    ]
    assert sum(refused) < len(refused) / 2


@pytest.mark.slow
@given(st.integers(0, 10**6), st.integers(0, 2**MASK - 1))
@settings(max_examples=2000, deadline=None)
def test_many_random_programs_that_read_memory_equal_eager(packed, seed, mask):
    equals_eager_unless_refused(packed, seed, mask)
