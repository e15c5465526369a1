"""Fixtures for the tests of a backend: ``pytest_plugins =
["delegraph_devkit.pytest_plugin"]`` in the top conftest.py.

The backend is named in the configuration of pytest, ``delegraph_backend = my-npu``, or
by ``--delegraph-backend``::

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
    """With ``delegraph_program`` a test runs on each sample of the kit."""
    if "delegraph_program" in metafunc.fixturenames:
        from .programs import PROGRAMS

        metafunc.parametrize(
            "delegraph_program", PROGRAMS, ids=[program.name for program in PROGRAMS]
        )


@pytest.fixture
def delegraph_backend(request: pytest.FixtureRequest) -> str:
    """The name of the backend; a test module may have a fixture of this name that
    returns another.
    """
    name = request.config.getoption("--delegraph-backend") or request.config.getini(
        "delegraph_backend"
    )
    if not name:
        pytest.fail(
            "no backend is named: delegraph_backend = NAME in pytest's configuration,"
            " or --delegraph-backend"
        )
    return str(name)


@pytest.fixture
def lower(delegraph_backend: str) -> Callable[..., LoweredProgram]:
    """``lower(module, *inputs, **more)`` lowers for the backend; ``more`` is what
    ``delegraph.lower`` takes.
    """
    import delegraph

    def lower(module: Any, *inputs: Any, **more: Any) -> LoweredProgram:
        model = module.eval() if hasattr(module, "eval") else module
        return delegraph.lower(model, inputs, backends=[delegraph_backend], **more)

    return lower


@pytest.fixture
def verify(lower: Callable[..., LoweredProgram]) -> Callable[..., LoweredProgram]:
    """``verify(module, *inputs)`` lowers, and asserts that results are eager's and
    something is delegated.

    ``tolerance`` is relative to the largest value of an output, by default that of its
    type; ``delegates`` the fewest that there have to be.
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
