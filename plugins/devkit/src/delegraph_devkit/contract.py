"""Offer the checks as test methods, for a backend's own test suite."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from delegraph.errors import DelegraphWarning

from . import checks  # noqa: F401 - fills CHECKS
from .backend_under_test import BackendUnderTest
from .check import CHECKS, Check
from .configured_backend import QUICK_GATE, TOLERANCE, Register
from .programs import Example


class BackendContract:
    """The base of a test class that runs every check on a backend.

        class TestMine(BackendContract):
            backend = "mine"

    ``options`` are the options of the backend. ``tolerance`` is relative to the largest
    value of an output. ``gate`` is the number of operators and random programs, which
    are the same in every run; further programs are tried for ``seconds``. ``example``,
    a static method, returns (module, inputs) that the backend accepts at least in part.
    ``register``, a static method, adds a backend that is not installed to a registry.
    With ``may_refuse``, the compiler may refuse partitions that the support check
    accepted.
    """

    backend: ClassVar[str] = ""
    options: ClassVar[Mapping[str, Any]] = {}
    tolerance: ClassVar[float] = TOLERANCE
    gate: ClassVar[int] = QUICK_GATE
    seconds: ClassVar[float] = 0.0
    may_refuse: ClassVar[bool] = False
    example: ClassVar[Callable[[], Example] | None] = None
    register: ClassVar[Register | None] = None

    @classmethod
    def backend_under_test(cls) -> BackendUnderTest:
        """Return the backend with its outcomes, which all checks of the class share."""
        if cls not in _tested:
            _tested[cls] = BackendUnderTest(
                cls.backend,
                options=dict(cls.options),
                tolerance=cls.tolerance,
                example=cls.example,
                register=cls.register,
                gate=cls.gate,
                seconds=cls.seconds,
                may_refuse=cls.may_refuse,
            )
        return _tested[cls]


_tested: dict[type[BackendContract], BackendUnderTest] = {}


def _method(one: Check) -> Callable[[BackendContract], None]:
    def test(self: BackendContract) -> None:
        backend = self.backend_under_test()
        before = len(backend.warnings)
        one.run(backend)
        for text in backend.warnings[before:]:
            warnings.warn(f"{backend.name}: {text}", DelegraphWarning, stacklevel=1)

    test.__name__ = f"test_{one.name}"
    test.__doc__ = one.purpose
    test.__qualname__ = f"BackendContract.{test.__name__}"
    return test


for _one in CHECKS.values():
    setattr(BackendContract, f"test_{_one.name}", _method(_one))
