"""Results of ``.pte`` files in both runtimes, delegraph's own and ExecuTorch's,
compared with eager.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import delegraph
import torch
from torch.utils import _pytree as pytree


def runtimes() -> list[str | None]:
    """Names of the runtimes for ``delegraph.load``: our own, and ExecuTorch's if it is
    installed.
    """
    return [None, "executorch"] if find_spec("executorch") else [None]


def expect_right_in_both(
    path: Path,
    eager: Callable[..., Any],
    *calls: Sequence[Any],
    method: str = "forward",
    **tolerances: Any,
) -> None:
    """Load a file in each runtime, and expect eager's results from each of the calls.

    ``tolerances`` are those of ``torch.testing.assert_close``. NaN equals NaN.
    """
    for runtime in runtimes():
        run = delegraph.load(path, runtime=runtime).method(method)
        for inputs in calls:
            with torch.no_grad():
                expected = pytree.tree_leaves(eager(*inputs))
            found = pytree.tree_leaves(run(*inputs))
            torch.testing.assert_close(found, expected, equal_nan=True, **tolerances)


def save_and_expect_right(
    program: delegraph.LoweredProgram,
    eager: Callable[..., Any],
    *calls: Sequence[Any],
    folder: Path,
    **tolerances: Any,
) -> Path:
    """Save a program as ``.pte`` and check the file in each runtime. Returns its path."""
    path = folder / "program.pte"
    program.save(path)
    expect_right_in_both(path, eager, *calls, **tolerances)
    return path
