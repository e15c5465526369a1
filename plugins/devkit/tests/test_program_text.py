"""The script that the kit prints for a failure repeats the failure."""

import itertools
import subprocess
import sys

import pytest
from delegraph import Verification
from delegraph_devkit.lowering_attempt import is_random
from delegraph_devkit.opinfo import operator_programs
from delegraph_devkit.program_text import listing
from torch.utils import _pytree as pytree

from .support.kit import failure_of


def output_of_script(name, check, folder):
    """Run the script of a failed check in a new process, and return its output."""
    script = folder / "again.py"
    script.write_text(failure_of(name, check).script)
    completed = subprocess.run(
        [sys.executable, str(script)], cwd=folder, capture_output=True, text=True
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


@pytest.mark.parametrize(
    ("name", "check", "shows"),
    [
        (
            "max_pool_loses_nan",
            "numerics",
            "elements are NaN or infinite on one side only",
        ),
        pytest.param("int64_add_cut", "numerics", "ratio 1", marks=pytest.mark.slow),
        ("no_reason", "accepted_compiles", "1 x aten.sort.default"),
    ],
)
def test_failures_come_with_a_script_that_repeats_them(name, check, shows, tmp_path):
    assert shows in output_of_script(name, check, tmp_path)


@pytest.mark.slow
def test_different_blobs_come_with_a_script_that_compiles_twice(tmp_path):
    first, second = output_of_script("counter", "deterministic", tmp_path).splitlines()

    assert first != second


def returns_sparse_tensor(module, inputs):
    results = pytree.tree_leaves(module(*inputs))
    return any(getattr(result, "is_sparse", False) for result in results)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_listings_of_operators_run_without_opinfo():
    """A listing has the operators' calls, and all tensors with their strides."""
    compared = 0
    for program in itertools.islice(operator_programs(), 0, 60, 4):
        text = listing(program)
        module, inputs = program.make(3)
        is_only_a_comment = text.startswith("# ")
        if is_only_a_comment or returns_sparse_tensor(module, inputs):
            continue

        names = {}
        exec(text, names)
        results = names["model"](*names["inputs"])

        verification = Verification.of(results, module(*inputs))
        is_equal = verification.relative_error == 0
        assert is_equal or is_random(program.exported[0]), text
        assert [tensor.stride() for tensor in names["inputs"]] == [
            tensor.stride() for tensor in inputs
        ]
        assert "opinfo" not in text
        compared += 1
    assert compared > 8
