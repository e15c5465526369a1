"""Rows for rules: a function or module and its inputs, compared with eager torch,
through ``evaluate`` and as a file through the reference model. A family's test file
makes a ``Family``, fills it, and takes its three tests.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import delegraph_tosa.lowering.integer  # noqa: F401 - registers the rules for quantize, too
import numpy as np
import pytest
import torch
from delegraph_tosa.backend import compile_program
from delegraph_tosa.evaluate import evaluate
from delegraph_tosa.ir.graph import Value
from delegraph_tosa.lowering import RULES, Tosa, lower_program
from delegraph_tosa.serialize import TosaFile
from delegraph_tosa.spec import TosaSpec
from delegraph_tosa.validate import violations
from torch import nn
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves, tree_map

torch.set_num_threads(1)
SPEC = TosaSpec.parse("TOSA-1.0+FP+INT")
FP = TosaSpec.parse("TOSA-1.0+FP")
BOUND = {torch.float32: 1e-5, torch.float16: 2e-3}
"""Largest error relative to the largest output."""

inf = float("inf")
nan = float("nan")
EDGES = torch.tensor([-inf, -7.5, -3.0, -1.0, -0.0, 0.0, 1e-3, 1.0, 3.0, 6.5, inf, nan])


def randn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(seed + len(shape))
    ).to(dtype)


def random_positive(*shape):
    return randn(*shape).abs() + 0.1


def random_integers(*shape, dtype=torch.int32):
    return torch.randint(
        -9, 9, shape, generator=torch.Generator().manual_seed(1), dtype=dtype
    )


def random_bools(*shape):
    return randn(*shape) > 0


def random_halves(*shape):
    return randn(*shape, dtype=torch.float16)


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


class AsDelegate(nn.Module):
    """A program on int64 as a delegate gets it: such inputs and results are int32, and
    are cast inside.
    """

    def __init__(self, module, inputs):
        super().__init__()
        self.module = module
        self.wide = [a.dtype is torch.int64 for a in inputs]

    def forward(self, *args):
        inside = [
            a.long() if wide else a for a, wide in zip(args, self.wide, strict=True)
        ]
        return tree_map(narrow, self.module(*inside))


def narrow(tensor):
    return tensor.int() if tensor.dtype is torch.int64 else tensor


class WithConstant(nn.Module):
    """A function of a parameter and the inputs."""

    def __init__(self, function, *parameters):
        super().__init__()
        self.parameters_ = nn.ParameterList(
            [nn.Parameter(p, requires_grad=False) for p in parameters]
        )
        self.function = function

    def forward(self, *args):
        return self.function(*self.parameters_, *args)


class Family:
    """The rows of one family of rules, by name."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[nn.Module, tuple[Any, ...], TosaSpec, float]] = {}
        self._exported: dict[str, ExportedProgram] = {}

    def case(
        self,
        name: str,
        function: Callable[..., Any],
        *inputs: Any,
        spec: TosaSpec = SPEC,
        loose: float = 1,
    ):
        """One row. ``loose`` widens the bound: its reason stands beside the row."""
        module = function if isinstance(function, nn.Module) else Function(function)
        assert name not in self.rows, name
        self.rows[name] = (module.eval(), inputs, spec, loose)

    def cases(
        self,
        name: str,
        function: Callable[..., Any],
        *several: Any,
        spec: TosaSpec = SPEC,
        loose: float = 1,
    ):
        """The same function on several tuples of inputs (a tensor stands for a tuple of
        one).
        """
        for k, inputs in enumerate(several):
            row = inputs if isinstance(inputs, tuple) else (inputs,)
            self.case(f"{name}-{k}", function, *row, spec=spec, loose=loose)

    def exported(self, name: str) -> ExportedProgram:
        if name not in self._exported:
            module, inputs, *_ = self.rows[name]
            program = None
            # these are seen without an export
            if not _any_is_wide((*inputs, *_results(module, inputs))):
                program = torch.export.export(module, inputs)
                nodes = [
                    node
                    for node in program.graph.nodes
                    if node.op == "placeholder" or "output" in map(_op, node.users)
                ]
                program = (
                    None if _any_is_wide(n.meta["val"] for n in nodes) else program
                )
            if program is None:
                program = torch.export.export(
                    AsDelegate(module, inputs), tree_map(narrow, inputs)
                )
            self._exported[name] = program
        return self._exported[name]

    def operators(self) -> Iterator[Any]:
        """What the rows are calls of."""
        for name in self.rows:
            yield from (
                node.target
                for node in self.exported(name).graph.nodes
                if node.op == "call_function"
            )

    def covers(self, family: str) -> Callable[..., None]:
        """Return the test that the rows call each rule of a family."""
        rules = {
            op
            for (op, kind), rule in RULES.items()
            if kind is Value and rule.function.__module__.rpartition(".")[2] == family
        }

        def test():
            assert rules
            assert {str(op) for op in rules.difference(self.operators())} == set()

        return test

    def check(self, name: str, found: list[np.ndarray]) -> None:
        """Integers are equal, floats within the bound of their type and the row."""
        module, inputs, _, loose = self.rows[name]
        expected = tree_leaves(module(*inputs))
        assert len(found) == len(expected)
        for mine, theirs in zip(found, expected, strict=True):
            _check(mine, narrow(theirs.detach()), loose)

    def equals_eager(self) -> Callable[..., None]:
        """The test that every row computes what eager does, in ``evaluate``, without a
        violation.
        """

        @pytest.mark.parametrize("name", self.rows)
        def test(name):
            _, inputs, spec, _ = self.rows[name]
            graph = lower_program(self.exported(name), Tosa(spec))
            assert violations(graph, spec) == []
            self.check(name, evaluate(graph, _arrays(inputs)))

        return test

    def equals_eager_through_the_reference_model(
        self,
    ) -> tuple[Callable[..., Any], Callable[..., None]]:
        """A fixture to be called ``judged``, and the test that uses it: files are
        accepted and compute the same.
        """

        @pytest.fixture(scope="module")
        def judged(request, tmp_path_factory):
            pytest.importorskip("tosa_reference_model")
            asked = [
                i
                for i in request.session.items
                if i.path == request.path and "judged" in i.fixturenames
            ]
            # others of the rows do not run
            names = dict.fromkeys(item.callspec.params["name"] for item in asked)
            return judge([*map(self._job, names)], tmp_path_factory.mktemp("reference"))

        @pytest.mark.parametrize("name", self.rows)
        def test(name, judged):
            results, valid = judged[name]
            assert valid
            self.check(name, results)

        return judged, test

    def _job(self, name: str) -> tuple[str, bytes, list[np.ndarray]]:
        _, inputs, spec, _ = self.rows[name]
        blob = TosaFile(compile_program(self.exported(name), spec), spec).join()
        return name, blob, [np.ascontiguousarray(a) for a in _arrays(inputs)]


def _op(node):
    return node.op


def _results(module, inputs):
    """What a row returns in eager; it may write into its inputs. What torch says of it
    is for the row's own tests.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tree_leaves(
            module(
                *tree_map(
                    lambda x: x.clone() if isinstance(x, torch.Tensor) else x, inputs
                )
            )
        )


def _any_is_wide(values):
    return any(isinstance(v, torch.Tensor) and v.dtype is torch.int64 for v in values)


def _arrays(tensors):
    return [narrow(t.detach()).numpy() for t in tensors]


def _check(mine: np.ndarray, theirs: torch.Tensor, loose: float) -> None:
    assert mine.shape == tuple(theirs.shape)
    assert str(mine.dtype) == str(theirs.dtype).removeprefix("torch.")
    if not theirs.is_floating_point():
        np.testing.assert_array_equal(mine, theirs.numpy())
        return
    finite = theirs.isfinite()
    scale = theirs[finite].abs().max().item() if finite.any() else 1.0
    np.testing.assert_allclose(
        mine, theirs.numpy(), rtol=0, atol=loose * BOUND[theirs.dtype] * scale
    )


CHILD = """
import pickle, sys
import tosa_reference_model as model
with open(sys.argv[1], "rb") as work, open(sys.argv[2], "wb") as done:
    for name, blob, inputs in pickle.load(work):
        print(name, file=sys.stderr, flush=True)  # the last one printed is the one that aborted
        results, status = model.run(blob, inputs, tosa_level="EIGHTK")
        pickle.dump((name, [r.copy() for r in results], status == model.GraphStatus.TOSA_VALID), done)
"""


def judge(
    work: list[tuple[str, bytes, list[np.ndarray]]], folder: Path
) -> dict[str, tuple[list[np.ndarray], bool]]:
    """What the official model computes from the files: name -> (results, whether it
    accepts the file).
    """
    (folder / "work").write_bytes(pickle.dumps(work))
    # without gdb, which the model would attach to itself
    environment = {**os.environ, "PATH": ""}
    command = [sys.executable, "-c", CHILD, str(folder / "work"), str(folder / "done")]
    child = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert child.returncode == 0, child.stderr.decode()[-2000:]
    with open(folder / "done", "rb") as done:
        rows = [pickle.load(done) for _ in work]
    return {name: (results, valid) for name, results, valid in rows}
