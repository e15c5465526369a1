"""What a program file computes in ExecuTorch's own runtime, compared with the module
that it was made from.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Any

import delegraph
import pytest
import torch
from delegraph.errors import NoRuntime
from delegraph_executorch.device import load_device_halves
from delegraph_executorch.emit import EmitOptions, EmittedProgram, emit_program
from delegraph_executorch.run.program import HostProgram
from delegraph_executorch.serialize.reader import ProgramFile, read_program
from torch.utils import _pytree as pytree

TOLERANCE = 1e-5
"""Of the largest output."""


def stock_runtime() -> Any:
    """The runtime in the wheel ``executorch``; the test is skipped where it is not
    installed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from executorch.runtime import Runtime
        except ImportError:
            pytest.skip(
                "the stock runtime is not installed (pip install executorch==1.5.1)"
            )
    return Runtime.get()


def load_device_halves_or_skip(lowered: Any) -> None:
    """Load what the delegates of ``lowered`` run on; the test is skipped where there is
    nothing to build it with.
    """
    stock_runtime()
    try:
        load_device_halves(delegate.backend_id for delegate in lowered.delegates)
    except NoRuntime as e:
        pytest.skip(f"{e.message}; {e.hint}")


def emit(lowered: Any, options: EmitOptions | None = None) -> EmittedProgram:
    return emit_program(lowered, options)


def lower(
    module: torch.nn.Module, inputs: tuple[Any, ...], shapes: Any = None, **kwargs: Any
) -> Any:
    return delegraph.lower(
        module.eval(),
        inputs,
        dynamic_shapes=shapes,
        backends=kwargs.pop("backends", []),
        **kwargs,
    )


def check_in_both_runtimes(
    module: torch.nn.Module,
    calls: Sequence[tuple[Any, ...]],
    shapes: Any = None,
    options: EmitOptions | None = None,
    backends: Sequence[str] = (),
) -> EmittedProgram:
    """Run a module's program file in both runtimes, call after call, and compare with
    the module itself.

    Each of ``backends`` has to take a part of it.
    """
    runtime = stock_runtime()
    lowered = lower(module, calls[0], shapes, backends=list(backends))
    assert len({delegate.backend_id for delegate in lowered.delegates}) == len(backends)
    load_device_halves_or_skip(lowered)
    emitted = emit(lowered, options)
    # a method does not keep its program
    program = runtime.load_program(emitted.file.join())
    method = program.load_method("forward")
    eager = copy.deepcopy(module)
    host = run_on_host(emitted)
    for call in calls:
        flat = pytree.tree_leaves(call)
        on_host = host.run("forward", flat)
        actual = method.execute(flat)
        with torch.no_grad():
            expected = pytree.tree_leaves(eager(*call))
        assert_equal(actual, expected)
        assert_equal(on_host, expected)
    return emitted


def assert_equal(got: Sequence[Any], wanted: Sequence[Any]) -> None:
    """Equal types, shapes and values; floating-point ones up to ``TOLERANCE`` of the
    largest.
    """
    assert len(got) == len(wanted)
    for ours, theirs in zip(got, wanted, strict=True):
        if not isinstance(theirs, torch.Tensor):
            assert ours == theirs
            continue
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        finite = theirs.detach().double().nan_to_num(0, 0, 0).abs()
        scale = float(finite.max()) if finite.numel() else 0.0
        torch.testing.assert_close(
            ours,
            theirs.detach(),
            rtol=TOLERANCE,
            atol=TOLERANCE * scale,
            equal_nan=True,
        )


def run_on_host(emitted: EmittedProgram, **limits: int) -> HostProgram:
    """The program read back from its bytes, to run in torch."""
    return host_program(read_program(emitted.file.join()), **limits)


def host_program(file: ProgramFile, load: Any = None, **limits: int) -> HostProgram:
    return HostProgram(file, [], load or load_delegate, **limits)


def load_delegate(
    backend: str, blob: bytes, specs: Any = (), data: Any = None, header: Any = None
) -> Any:
    return delegraph.get_runtime(backend).load(blob, specs, data or {})
