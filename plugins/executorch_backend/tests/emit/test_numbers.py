"""Program files in ExecuTorch's own runtime give eager's numbers."""

from __future__ import annotations

import pytest
from delegraph_executorch.emit import EmitOptions

from ..support import programs as p
from ..support.cases import BATCH, DYNAMIC, STATIC, randn
from ..support.judge import check_in_both_runtimes


# torch.export of recurrent networks
@pytest.mark.filterwarnings("ignore:The tensor attributes")
@pytest.mark.parametrize("name", STATIC)
def test_static_programs_compute_as_eager_in_both_runtimes(name: str) -> None:
    module, calls = STATIC[name]
    check_in_both_runtimes(module, calls)


IN_BETWEEN = [
    "branch",
    "loop",
    "types",
    "branch in loop",
    "running",
    "rows",
    "counter",
    "tree",
    "indexed",
    "images",
]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if k < 3 else pytest.mark.slow)
        for k, name in enumerate(IN_BETWEEN)
    ],
)
def test_programs_with_delegates_compute_as_eager(name: str) -> None:
    module, calls = STATIC[name]
    check_in_both_runtimes(module, calls, backends=["compiler-demo"])


@pytest.mark.parametrize("name", DYNAMIC)
def test_dynamic_batches_compute_as_eager_in_both_runtimes(name: str) -> None:
    module, shapes = DYNAMIC[name]
    check_in_both_runtimes(
        module, [(randn(3, 4),), (randn(16, 4),), (randn(2, 4),)], shapes
    )


def test_dynamic_number_of_rows() -> None:
    calls = [(randn(n, 4), randn(4)) for n in (3, 16, 2)]
    check_in_both_runtimes(p.Function(p.rows), calls, (({0: BATCH}, None),))


@pytest.mark.parametrize(
    "name", ["mlp", "counter", "passed through", "tree", "branch", "views"]
)
def test_memory_of_the_caller(name: str) -> None:
    module, calls = STATIC[name]
    check_in_both_runtimes(
        module, calls, options=EmitOptions(plan_inputs=False, plan_outputs=False)
    )


def test_tensors_are_planned_in_the_chosen_memories() -> None:
    module, calls = STATIC["convolution"]
    options = EmitOptions(memory_of=lambda node: 2 if "convolution" in node.name else 1)
    emitted = check_in_both_runtimes(module, calls, options=options)
    sizes = emitted.program.plans[0].memory_sizes
    assert len(sizes) == 3
    assert sizes[2] == 4 * 4 * 6 * 6
