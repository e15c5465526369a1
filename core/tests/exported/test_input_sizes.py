"""A call with wrong inputs raises one error before anything runs."""

from __future__ import annotations

import threading

import delegraph
import pytest
import torch
from delegraph.errors import InputError
from torch.export import Dim, export

B = Dim("B", min=3, max=6)
HALF = Dim("HALF", max=4)
randn = torch.randn


class Nested(torch.nn.Module):
    def forward(self, x, pair, *, scale):
        return x + pair["a"], torch.cat([pair["a"], pair["b"]]) * scale


class Doubled(torch.nn.Module):
    def forward(self, x, y):
        return x.reshape(-1, 2, 8).sum(1) + y


class Summed(torch.nn.Module):
    def forward(self, x, n):
        return x.reshape(-1, 3, x.shape[1]).sum(1) * n


@pytest.fixture(scope="module")
def nested():
    inputs = randn(4, 8), {"a": randn(4, 8), "b": randn(4, 8)}
    shapes = {"x": {0: B}, "pair": {"a": {0: B}, "b": {0: B}}, "scale": None}
    return delegraph.lower(
        export(Nested(), inputs, {"scale": randn(1)}, dynamic_shapes=shapes),
        backends=[],
    )


def call_arguments(x=(4, 8), a=(4, 8), b=(4, 8), scale=(1,)):
    return (randn(x), {"a": randn(a), "b": randn(b)}), {"scale": randn(scale)}


EQUAL = (
    "has size 5 in dimension 0; the program was exported for size B there; B is 4 as"
    " input x has size 4"
)
TENSOR = r"must be torch.float32 of shape \[B, 8\]; it is"
OTHERS = {
    "above": (call_arguments((7, 8), (7, 8), (7, 8)), "^input x has size 7 in dimension 0; .* for sizes from 3 to 6 there"),
    "below": (call_arguments((2, 8), (2, 8), (2, 8)), "^input x has size 2 in dimension 0; .* for sizes from 3 to 6 there"),
    "zero": (call_arguments((0, 8), (0, 8), (0, 8)), "^input x has size 0 in dimension 0"),
    "unequal": (call_arguments(a=(5, 8)), rf"^input pair\['a'\] {EQUAL}"),
    "unequal, computable": (call_arguments(b=(5, 8)), rf"^input pair\['b'\] {EQUAL}"),
    "static": (call_arguments(b=(4, 9)), rf"^input pair\['b'\] {TENSOR} torch.float32 of shape \[4, 9\]$"),
    "rank": (call_arguments((4, 1, 8)), rf"^input x {TENSOR} torch.float32 of shape \[4, 1, 8\]$"),
    "dtype": (((randn(4, 8).double(), call_arguments()[0][1]), call_arguments()[1]), rf"^input x {TENSOR} torch.float64 of"),
    "device": (((randn(4, 8, device="meta"), call_arguments()[0][1]), call_arguments()[1]), rf"^input x {TENSOR} .* on meta$"),
    "array": (((randn(4, 8).numpy(), call_arguments()[0][1]), call_arguments()[1]), rf"(?s)^input x {TENSOR} of type ndarray.*from"),
    "few": (((randn(4, 8),), call_arguments()[1]), 
            r"the program takes \(x, pair, scale=\); it was given \(Tensor, scale=Tensor\): pair not given$"),
    "no keyword": ((call_arguments()[0], {}), ": scale not given$"),
    "by name": (((), {"x": randn(4, 8)}), "(?s)unknown keyword argument 'x'.*give x by position"),
    "list": (
        ((randn(4, 8), [randn(4, 8), randn(4, 8)]), call_arguments()[1]),
        r"^input pair must be a dict with the keys \['a', 'b'\]; it is a list of 2$",
    ),
    "leaf": (
        ((randn(4, 8), {"a": [randn(4, 8)], "b": randn(4, 8)}), call_arguments()[1]),
        r"^input pair\['a'\] must be a single value, such as a tensor; it is a list of 1$",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_wrong_inputs_are_named(nested, name):
    (args, kwargs), message = OTHERS[name]
    with pytest.raises(InputError, match=message):
        nested(*args, **kwargs)


def test_a_dict_input_may_have_another_order(nested):
    args, kwargs = call_arguments()
    turned = args[0], {"b": args[1]["b"], "a": args[1]["a"]}
    torch.testing.assert_close(nested(*turned, **kwargs), nested(*args, **kwargs))


def test_exported_sizes_are_accepted(nested):
    for size in (3, 4, 6):
        args, kwargs = call_arguments(*[(size, 8)] * 3)
        torch.testing.assert_close(nested(*args, **kwargs), Nested()(*args, **kwargs))


def test_a_size_must_be_twice_another():
    shapes = {0: 2 * HALF}, {0: HALF}
    lowered = delegraph.lower(
        Doubled().eval(), (randn(4, 8), randn(2, 8)), dynamic_shapes=shapes, backends=[]
    )

    torch.testing.assert_close(
        lowered(torch.ones(2, 8), torch.ones(1, 8)), torch.full((1, 8), 3.0)
    )
    with pytest.raises(
        InputError,
        match=r"input x has size 5 .* for size 2\*HALF there; .* as input y has size 2",
    ):
        lowered(randn(5, 8), randn(2, 8))
    with pytest.raises(
        InputError,
        match="input y has size 5 in dimension 0; .* for sizes of at most 4 there",
    ):
        lowered(randn(10, 8), randn(5, 8))


def test_a_size_must_be_a_multiple_of_three():
    shapes = {0: Dim.AUTO}, Dim.DYNAMIC
    lowered = delegraph.lower(
        Summed().eval(), (randn(6, 8), 4), dynamic_shapes=shapes, backends=[]
    )
    x = randn(9, 8)

    torch.testing.assert_close(lowered(x, 7), Summed()(x, 7))
    with pytest.raises(
        InputError,
        match="input x has size 7 in dimension 0; .* for multiples of 3 there",
    ):
        lowered(randn(7, 8), 4)


def test_a_size_must_be_twice_a_limited_size():
    class Halves(torch.nn.Module):
        def forward(self, x):
            return x.reshape(2, -1).sum(0)

    lowered = delegraph.lower(
        Halves().eval(), randn(4), dynamic_shapes=({0: 2 * HALF},), backends=[]
    )

    assert lowered(torch.ones(8)).tolist() == [2.0] * 4
    with pytest.raises(
        InputError,
        match=r"input x has size 7 in dimension 0; .* for size 2\*HALF there",
    ):
        lowered(randn(7))
    with pytest.raises(
        InputError,
        match="input x has size 10 in dimension 0; .* with HALF of at most 4 there",
    ):
        lowered(randn(10))


def test_refused_calls_write_no_input_or_buffer():
    class Counted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x, y):
            self.calls += 1
            x.add_(1)
            return x.sum() + y.sum() + self.calls

    lowered = delegraph.lower(
        Counted().eval(),
        (randn(4), randn(4)),
        dynamic_shapes=({0: B}, {0: B}),
        backends=[],
    )
    zeros = torch.zeros(4)

    with pytest.raises(InputError, match="input y has size 5"):
        lowered(zeros, randn(5))
    assert not zeros.any()
    assert lowered(zeros, torch.zeros(4)) == 5


def test_threads_get_the_same_error_in_the_first_call(nested):
    lowered = nested.instance()
    failed = []

    def call():
        for _ in range(50):
            args, kwargs = call_arguments(b=(5, 8))
            try:
                lowered(*args, **kwargs)
            except InputError:
                failed.append(1)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(failed) == 4 * 50, "all calls of all threads"


class Scaled(torch.nn.Module):
    def forward(self, x, n):
        return x * n


def test_a_dynamic_number_must_be_a_number():
    program = export(
        Scaled(), (torch.ones(3), 4), dynamic_shapes={"x": None, "n": Dim.DYNAMIC}
    )
    lowered = delegraph.lower(program, backends=[])
    assert lowered(torch.ones(3), 7).tolist() == [7, 7, 7]
    with pytest.raises(InputError, match="input n must be a number; it is '7'"):
        lowered(torch.ones(3), "7")
