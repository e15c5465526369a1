"""Offer fixtures for the tests of a backend.

Write ``pytest_plugins = ["delegraph_devkit.pytest_plugin"]`` in the top conftest.py.
Name the backend in the configuration of pytest, ``delegraph_backend = my-npu``, or with
``--delegraph-backend``::

    def test_my_layer(verify):
        verify(torch.nn.Linear(3, 3), torch.ones(2, 3))


    def test_every_program_of_the_kit(verify, delegraph_program):
        module, inputs = delegraph_program.make(2)
        verify(module, *inputs, delegates=0)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from delegraph import LoweredProgram


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "name of the backend that the fixtures lower for"
    parser.addini("delegraph_backend", text)
    parser.addoption("--delegraph-backend", metavar="NAME", help=text)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with the parameter ``delegraph_program`` on each sample of the kit."""
    if "delegraph_program" in metafunc.fixturenames:
        from .programs import PROGRAMS

        metafunc.parametrize(
            "delegraph_program", PROGRAMS, ids=[program.name for program in PROGRAMS]
        )


@pytest.fixture
def delegraph_backend(request: pytest.FixtureRequest) -> str:
    """Return the name of the backend; a test module may override this fixture."""
    config = request.config
    name = config.getoption("--delegraph-backend") or config.getini("delegraph_backend")
    if not name:
        pytest.fail(
            "no backend is named: write delegraph_backend = NAME in the configuration"
            " of pytest, or pass --delegraph-backend NAME"
        )
    return str(name)


@pytest.fixture
def lower(delegraph_backend: str) -> Callable[..., LoweredProgram]:
    """Return ``lower(module, *inputs, **more)``, which lowers for the backend.

    ``more`` are further arguments of ``delegraph.lower``.
    """
    import delegraph

    def lower(module: Any, *inputs: Any, **more: Any) -> LoweredProgram:
        model = module.eval() if hasattr(module, "eval") else module
        return delegraph.lower(model, inputs, backends=[delegraph_backend], **more)

    return lower


@pytest.fixture
def verify(lower: Callable[..., LoweredProgram]) -> Callable[..., LoweredProgram]:
    """Return ``verify(module, *inputs)``, which lowers and compares with eager.

    It asserts that there are at least ``delegates`` delegates. ``tolerance`` is
    relative to the largest value of an output; the default depends on its type.
    """

    def verify(
        module: Any,
        *inputs: Any,
        tolerance: float | None = None,
        delegates: int = 1,
        **more: Any,
    ) -> LoweredProgram:
        lowered = lower(module, *inputs, **more)
        assert len(lowered.delegates) >= delegates, str(lowered.report)
        found = lowered.verify(*inputs)
        assert found.agrees(tolerance), f"{found}\n{lowered.report}"
        return lowered

    return verify
