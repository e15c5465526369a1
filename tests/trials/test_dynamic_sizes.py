"""Programs with dynamic sizes equal eager at the limits of the range."""

from concurrent.futures import ThreadPoolExecutor

import delegraph
import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim

SPEC = "TOSA-1.1+FP+INT+shape"
OPTIONS = {"iree": {"spec": SPEC}, "tosa": {"spec": SPEC}}
BACKENDS = ["iree", "tosa", "openvino", "xnnpack"]


class Program(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.conv = torch.nn.Conv2d(3, 4, 3)
        self.other_conv = torch.nn.Conv2d(3, 4, 3)
        self.strided = torch.nn.Conv2d(3, 4, 3, stride=2)
        self.conv1d = torch.nn.Conv1d(6, 4, 3, padding=1)
        self.linear = torch.nn.Linear(6, 4)
        self.second_linear = torch.nn.Linear(4, 2)
        self.prelu = torch.nn.PReLU(4)
        self.norm = torch.nn.LayerNorm(6)
        self.batch_norm = torch.nn.BatchNorm1d(6)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def leaky(y):
    return torch.where(y > 0, y, y * 0.1)


ROWS = (6,)
IMAGE = (3, 8, 8)
SEQUENCE = (3, 6)
PROGRAMS = {
    # elementwise operators whose operands all have the size
    "conv and where": (lambda m, x: leaky(m.conv(x)), [IMAGE]),
    "conv and where of another layer": (
        lambda m, x: torch.where(m.conv(x) > 0, m.conv(x), m.other_conv(x)),
        [IMAGE],
    ),
    "conv and prelu": (lambda m, x: m.prelu(m.conv(x)), [IMAGE]),
    "strided conv and prelu": (lambda m, x: m.prelu(m.strided(x)), [IMAGE]),
    "conv and elu": (lambda m, x: F.elu(m.conv(x)), [IMAGE]),
    "where of its mean": (lambda m, x: torch.where(x > x.mean(0), x, x * 0.1), [ROWS]),
    "where of three inputs": (
        lambda m, x, y, z: torch.where(x > 0, y, z),
        [ROWS, ROWS, ROWS],
    ),
    "comparisons": (
        lambda m, x, y: (x == y, x > y, x >= y, (x > 0) & (y > 0), (x > 0) ^ (y > 0)),
        [ROWS, ROWS],
    ),
    "arithmetic": (
        lambda m, x, y: (x + y, x - y, x * y, x / (y.abs() + 1), torch.maximum(x, y)),
        [ROWS, ROWS],
    ),
    "outer product": (lambda m, x: x[:, None] * x[None], [ROWS]),
    # several results
    "two results": (lambda m, x: (m.conv(x), m.other_conv(x).mean((2, 3))), [IMAGE]),
    "results of two layers": (
        lambda m, x: (m.linear(x), m.second_linear(m.linear(x).relu())),
        [ROWS],
    ),
    # shapes
    "stack at the end": (lambda m, x: torch.stack([x, x * 2], 2), [SEQUENCE]),
    "stack behind the size": (lambda m, x: torch.stack([x, x * 2], 1), [SEQUENCE]),
    "stack before the size": (lambda m, x: torch.stack([x, x * 2], 0), [SEQUENCE]),
    "column as a list": (lambda m, x: m.linear(x)[..., :1].reshape(-1), [SEQUENCE]),
    "flat": (lambda m, x: x.reshape(-1) * 2, [SEQUENCE]),
    "flat but for the size": (lambda m, x: m.linear(x).flatten(1), [SEQUENCE]),
    "heads": (
        lambda m, x: (
            x.view(x.shape[0], 3, 2, 3).transpose(1, 2).reshape(x.shape[0], 2, -1)
        ),
        [SEQUENCE],
    ),
    "concatenation along the size": (lambda m, x: torch.cat([x, x * 2]), [ROWS]),
    "concatenation beside the size": (lambda m, x: torch.cat([x, x * 2], 1), [ROWS]),
    "zeros before": (
        lambda m, x: torch.cat([torch.zeros(x.shape[0], 2), x], 1),
        [ROWS],
    ),
    "padding along the size": (lambda m, x: F.pad(x, (1, 2, 1, 0), value=2.5), [ROWS]),
    "last row": (lambda m, x: x[-1:], [ROWS]),
    "repeated": (lambda m, x: x.repeat(2, 3), [ROWS]),
    "repeated as often as rows": (lambda m, x: x[:1].repeat(x.shape[0], 2), [ROWS]),
    "numbered": (lambda m, x: x + torch.arange(x.shape[0])[:, None], [ROWS]),
    "rolled over two axes": (lambda m, x: x.roll((1, 2), (0, 1)), [SEQUENCE]),
    "rolled over the size": (lambda m, x: x.roll(-1, 0), [ROWS]),
    "rolled over all axes": (lambda m, x: x.roll((1, -1, 2), (0, 1, 2)), [SEQUENCE]),
    "rolled twice": (lambda m, x: x.roll(1, 0).roll(2, 1), [ROWS]),
    "halves exchanged": (lambda m, x: torch.fft.fftshift(x), [ROWS]),
    "halves exchanged back": (lambda m, x: torch.fft.ifftshift(x, (0, 1)), [SEQUENCE]),
    "last rows but one column": (
        lambda m, x: torch.cat([x, x * 2])[x.shape[0] :, 1:],
        [ROWS],
    ),
    # reductions over the size
    "mean": (lambda m, x: x.mean(0), [ROWS]),
    "mean of all": (lambda m, x: x.mean(), [SEQUENCE]),
    "variance": (lambda m, x: x.var(0, correction=0), [ROWS]),
    "largest": (lambda m, x: (x.amax(0), x.argmax(0)), [ROWS]),
    "softmax over the size": (lambda m, x: x.softmax(0), [ROWS]),
    "running sum": (lambda m, x: x.cumsum(0), [ROWS]),
    # products and layers
    "product with itself": (lambda m, x: x @ x.T, [ROWS]),
    "product over the size": (lambda m, x: x.T @ x, [ROWS]),
    "batched product": (lambda m, x, y: x @ y.mT, [SEQUENCE, SEQUENCE]),
    "attention": (lambda m, x: F.scaled_dot_product_attention(x, x, x), [SEQUENCE]),
    "causal attention of a sequence": (
        lambda m, x: F.scaled_dot_product_attention(
            x[None], x[None], x[None], is_causal=True
        ),
        [ROWS],
    ),
    "conv1d over the size": (lambda m, x: m.conv1d(x.T[None]), [ROWS]),
    "norms": (lambda m, x: (m.norm(x), m.batch_norm(x)), [ROWS]),
    "pooling": (lambda m, x: (F.max_pool2d(x, 2, 1, 1), F.avg_pool2d(x, 2)), [IMAGE]),
    "nearest resizing": (lambda m, x: F.interpolate(x, scale_factor=2.0), [IMAGE]),
}
FULL = {"iree", "tosa"}
"""Backends that take every program here whole."""
ALSO_HERE = [
    *(
        "conv and where",
        "conv and prelu",
        "two results",
        "stack at the end",
        "column as a list",
        "mean",
    ),
    *("batched product", "attention", "flat but for the size"),
]
CASES = [(name, "iree") for name in PROGRAMS]
CASES += [
    (name, backend) for name in ALSO_HERE for backend in ("tosa", "openvino", "xnnpack")
]


def assert_equals_eager_at_sizes(backend, name, low, high, options=None):
    """Lower a program for sizes from ``low`` to ``high``, and compare four sizes with
    eager.
    """
    function, shapes = PROGRAMS[name]
    program = Program(function).eval()
    size = Dim("n", min=low, max=high)
    middle = (low + high) // 2
    inputs = tuple(torch.randn(middle, *shape) for shape in shapes)
    sizes = (tuple({0: size} for _ in shapes),)
    exported = torch.export.export(program, inputs, dynamic_shapes=sizes)
    options = {backend: {**OPTIONS.get(backend, {}), **(options or {})}}
    lowered = delegraph.lower(
        exported, backends=[backend], options=options, require_full=backend in FULL
    )
    for count in (low, low + 1, middle, high):
        inputs = tuple(torch.randn(count, *shape) for shape in shapes)
        torch.testing.assert_close(
            lowered(*inputs),
            program(*inputs),
            msg=lambda text, count=count: f"n = {count}: {text}",
        )


@pytest.mark.parametrize("name, backend", CASES)
def test_results_equal_eager_at_the_limits_of_the_range(name, backend):
    assert_equals_eager_at_sizes(backend, name, 1, 7)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tosa", "openvino", "xnnpack"])
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in ALSO_HERE])
def test_more_results_equal_eager_at_the_limits_of_the_range(name, backend):
    assert_equals_eager_at_sizes(backend, name, 1, 7)


@pytest.mark.parametrize(
    "name", ["two results", "conv and elu", "conv and where", "largest"]
)
def test_all_drivers_of_iree_compute_the_same(name):
    for driver in ("local-sync", "local-task"):
        assert_equals_eager_at_sizes("iree", name, 1, 7, {"driver": driver})


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["conv and where", "column as a list"])
def test_ranges_may_begin_above_one(name, backend):
    assert_equals_eager_at_sizes(backend, name, 3, 20)


@pytest.mark.parametrize("driver", ["local-sync", "local-task"])
def test_threads_call_one_module_with_different_sizes(driver, tmp_path):
    function, [shape] = PROGRAMS["two results"]
    program = Program(function).eval()
    sizes = (({0: Dim("n", min=1, max=7)},),)
    exported = torch.export.export(
        program, (torch.randn(3, *shape),), dynamic_shapes=sizes
    )
    options = {"iree": {"spec": SPEC, "driver": driver}}
    lowered = delegraph.lower(
        exported, backends=["iree"], options=options, require_full=True
    )
    lowered.save(tmp_path / "m.pte")
    callables = [lowered, delegraph.load(tmp_path / "m.pte")]
    inputs = [torch.randn(count, *shape) for count in (1, 2, 4, 7)]
    with torch.no_grad():
        expected = [program(x) for x in inputs]

    def call(number):
        place = number % len(inputs)
        torch.testing.assert_close(
            callables[number % 3 % 2](inputs[place]), expected[place]
        )

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(call, range(60)))
