"""Programs traced at other sizes equal eager at sizes 0 and 1, or raise a clear error."""

from __future__ import annotations

import delegraph
import delegraph.api as api
import pytest
import torch
from delegraph.discovery.registry import Registry
from delegraph.errors import InputError
from delegraph.partitioner import CapabilityPartitioner
from torch.export import Dim, export
from torch.utils._pytree import tree_leaves

from ..conftest import EchoBackend, EchoRuntime

aten = torch.ops.aten
SINE = CapabilityPartitioner(
    lambda n: None if n.target is aten.sin.default else "the host's", "EchoBackend"
)


def export_dynamic(function, example, dynamic):
    class Module(torch.nn.Module):
        def forward(self, x):
            return function(x)

    return export(Module(), (example,), dynamic_shapes=(dynamic,), strict=False)


def lower_dynamic(function, backends=()):
    registry = Registry(discover=False)
    registry.register(EchoBackend, runtime=EchoRuntime)
    program = export_dynamic(
        function, torch.ones(3, 4, 5), {0: Dim("n", min=0), 1: Dim("m", min=0)}
    )
    return api.lower(program, backends=list(backends), registry=registry)


AGREE = {
    "squeeze": lambda x: torch.relu(x.squeeze()) * 2,
    "what would be decomposed to a largest element": lambda x: x.logsumexp(0),
    "squeeze.dim": lambda x: x.squeeze(0) + x,
    "squeeze.dims": lambda x: x.squeeze((0, 1)).exp(),
    "views": lambda x: (x.flatten(1), x.view(-1, 5), x[:, None].expand(-1, 2, -1, -1)),
    "layers": lambda x: (torch.nn.functional.layer_norm(x, (5,)), x.softmax(-1), x @ x.mT),
    "sizes": lambda x: x * x.shape[0] + torch.arange(x.shape[1])[:, None],
}  # fmt: skip


@pytest.mark.parametrize("name", AGREE)
def test_small_sizes_agree_with_eager(name):
    result = lower_dynamic(AGREE[name])
    for sizes in [(1, 1), (1, 3), (3, 1), (0, 2), (2, 0), (3, 3)]:
        x = torch.randn(*sizes, 5)
        for mine, theirs in zip(
            tree_leaves(result(x)), tree_leaves(AGREE[name](x)), strict=True
        ):
            torch.testing.assert_close(mine, theirs)


def inside(x):
    return torch.cond(
        x.sum() > 1e9, lambda x: x.squeeze(0) * 2, lambda x: x.squeeze(0) + 1, (x,)
    ).mT


def test_a_squeeze_of_a_scalar_changes_nothing():
    program = export(OfNumber(), (torch.tensor(2.0),))
    result = delegraph.lower(program, backends=[])(torch.tensor(3.0))
    torch.testing.assert_close(result, OfNumber()(torch.tensor(3.0)))


class OfNumber(torch.nn.Module):
    def forward(self, x):
        return x.squeeze(0).logsumexp(0), x.squeeze()


COUNTED_ON = {
    "a decomposition": (lambda x: x.squeeze(1).transpose(0, -1), (2, 1), ()),
    "one for which another dimension is meant": (
        lambda x: x.squeeze(1).std(-2),
        (2, 1),
        (),
    ),
    "a delegate": (lambda x: (x.squeeze(0) * 2).sin(), (1, 2), [SINE]),
    "the caller of a branch": (inside, (1, 2), ()),
}


@pytest.mark.parametrize("name", COUNTED_ON)
def test_dropped_dimension_that_is_needed_is_refused(name):
    function, sizes, backends = COUNTED_ON[name]
    result = lower_dynamic(function, backends)
    x = torch.randn(3, 4, 5)

    torch.testing.assert_close(result(x), function(x))
    with pytest.raises(
        InputError,
        match=r"aten\.squeeze\.dim drops dimension \d, whose size is 1 in this call",
    ) as raised:
        result(torch.randn(*sizes, 5))
    assert "test_sizes.py" in str(raised.value.source)


def test_errors_at_small_sizes_name_the_size():
    result = lower_dynamic(lambda x: x.amax(0))  # which an empty row does not have
    with pytest.raises(
        InputError,
        match="input x has size 0 in dimension 0, and torch traced .* at least 2",
    ) as raised:
        result(torch.randn(0, 2, 5))
    assert isinstance(raised.value.__cause__, IndexError)


def test_errors_for_other_reasons_are_unchanged():
    program = export_dynamic(
        lambda x: torch.arange(4)[x], torch.tensor([1, 2, 3]), {0: Dim("n")}
    )
    with pytest.raises(IndexError, match="index 7 is out of bounds"):
        delegraph.lower(program, backends=[])(torch.tensor([7, 1]))
