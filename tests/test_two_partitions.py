"""TOSA partitions around host operators, shared weights, and random programs."""

import json

import delegraph
import pytest
import torch
from delegraph_tosa.ir.graph import Value
from delegraph_tosa.lowering import RULES
from delegraph_tosa.partitioner import TOSAPartitioner
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

torch.set_num_threads(1)


class Sorted(nn.Module):
    """A sort between two convolutions. It stays on the host, because TOSA has no rule
    for it.
    """

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Conv2d(3, 4, 3, padding=1)
        self.b = nn.Conv2d(4, 2, 1)

    def forward(self, x):
        y = torch.relu(self.a(x))
        z = torch.sort(y, dim=1)[0]
        return self.b(z) + y[:, :2]


def test_two_partitions_around_a_host_operator(monkeypatch):
    monkeypatch.delitem(RULES, (torch.ops.aten.sort.default, Value))
    module = Sorted().eval()
    x = torch.randn(2, 3, 8, 8)
    program = delegraph.lower(module, (x,), backends=["tosa"])
    assert [delegate.backend_id for delegate in program.delegates] == [
        "TOSABackend"
    ] * 2
    assert program.report.host == {"forward": {"aten.sort.default": 1}}
    assert program.verify(x).relative_error < 1e-5

    text = str(program.report)
    assert "1 x aten.sort.default" in text
    assert "no TOSA lowering" in text
    assert "z = torch.sort(y, dim=1)[0]" in text

    json.dumps(program.report.to_json())


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Linear(8, 8)

    def forward(self, x):
        return self.shared(x).relu()

    def other(self, x):
        return torch.sigmoid(self.shared(x * 2))


def test_two_methods_share_their_weights():
    module = Two().eval()
    x = torch.randn(3, 8)
    other = Two().eval()
    other.shared = module.shared
    other.forward = other.other
    program = delegraph.lower(
        {"forward": module, "other": other},
        {"forward": (x,), "other": (x,)},
        backends=["tosa"],
    )
    assert [delegate.method for delegate in program.delegates] == ["forward", "other"]

    for method in program.methods:
        assert program.verify(x, method=method).relative_error < 1e-5
    held = [
        delegate.module.original_module.state_dict["shared.weight"].data_ptr()
        for delegate in program.delegates
    ]
    assert held == [module.shared.weight.data_ptr()] * 2


def test_each_method_writes_its_own_debug_file(tmp_path):
    module = Two().eval()
    x = torch.randn(3, 8)
    options = {"tosa": {"debug_artifact_path": str(tmp_path)}}
    delegraph.lower(
        {"forward": module, "other": module},
        {"forward": (x,), "other": (x,)},
        options=options,
    )
    names = sorted(path.name for path in tmp_path.iterdir())

    assert names == [
        "output_TOSABackend_0_TOSA-1.0+FP+INT.tosa",
        "output_other_TOSABackend_0_TOSA-1.0+FP+INT.tosa",
    ]


class Masked(TOSAPartitioner):
    """Refuses calls by the bits of ``mask``, in addition to the rules of TOSA."""

    def __init__(self, mask):
        super().__init__()
        why_not_in_tosa = self.support.why_not

        def why_not(node):
            bit = node.meta["debug_handle"] % 31
            if mask >> bit & 1:
                return "masked"
            return why_not_in_tosa(node)

        self.support.why_not = why_not


STEPS = [
    "relu",
    "add",
    "conv",
    "split",
    "mean",
    "view",
    "scale",
    "sort",
    "softmax",
    "cat",
    "relu_",
]


class Random(nn.Module):
    """Applies ``steps`` to a pool of [1, 4, 6, 6] values. Each step returns one value
    of this shape.
    """

    def __init__(self, steps):
        super().__init__()
        torch.manual_seed(1)
        self.steps = steps
        self.kernel = nn.Parameter(torch.randn(4, 4, 3, 3) / 6)
        self.w = nn.Parameter(torch.rand(4, 1, 1))

    def forward(self, x):
        pool = [x + 0]
        for name, i, j in self.steps:
            pool += getattr(self, name)(pool[i % len(pool)], pool[j % len(pool)])
        return tuple(pool[-2:])

    def relu(self, a, b):
        return [torch.relu(a)]

    def conv(self, a, b):
        return [nn.functional.conv2d(a, self.kernel, padding=1)]

    def relu_(self, a, b):
        return [torch.relu_(a * 1.5)]

    def add(self, a, b):
        return [a + b]

    def scale(self, a, b):
        return [a * torch.sigmoid(self.w)]

    def split(self, a, b):
        return [torch.cat([c, c], 1) for c in torch.split(a, 2, 1)]

    def mean(self, a, b):
        return [a - b.mean((2, 3), keepdim=True)]

    def view(self, a, b):
        return [a.reshape(1, 6, 6, 4).permute(0, 3, 1, 2)]

    def sort(self, a, b):
        return [torch.sort(a, dim=1)[0]]

    def softmax(self, a, b):
        return [torch.softmax(a, 1)]

    def cat(self, a, b):
        return [torch.cat([a, b], 1)[:, ::2]]


steps = st.lists(
    st.tuples(st.sampled_from(STEPS), st.integers(0, 7), st.integers(0, 7)),
    min_size=1,
    max_size=9,
)


def assert_two_partitions_equal_eager(steps, mask):
    module = Random(steps).eval()
    x = torch.randn(1, 4, 6, 6)
    program = delegraph.lower(module, (x,), backends=[Masked(mask)])
    assert program.verify(x).relative_error < 1e-5


@given(steps, st.integers(0, 2**31 - 1))
@settings(max_examples=25, deadline=None)
def test_random_programs_with_random_support_equal_eager(steps, mask):
    assert_two_partitions_equal_eager(steps, mask)


@pytest.mark.slow
@given(steps, st.integers(0, 2**31 - 1))
@settings(max_examples=1000, deadline=None)
def test_many_random_programs_with_random_support_equal_eager(steps, mask):
    assert_two_partitions_equal_eager(steps, mask)


def test_every_step_keeps_the_shape():
    for name in STEPS:
        assert_two_partitions_equal_eager([(name, 0, 0), ("add", 0, 1)], 0)
