"""The script of a failure repeats it."""

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
    script = tmp_path / "again.py"
    script.write_text(failure_of(name, check).script)
    completed = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True
    )
    assert completed.returncode == 0, completed.stderr
    assert shows in completed.stdout, completed.stdout


@pytest.mark.slow
def test_different_blobs_come_with_a_script_that_compiles_twice(tmp_path):
    script = tmp_path / "again.py"
    script.write_text(failure_of("counter", "deterministic").script)
    completed = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    first, second = completed.stdout.splitlines()
    assert first != second


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_listings_of_operators_do_not_need_opinfo(tmp_path):
    """The listing has calls of operators and all tensors, with their strides."""
    seen = 0
    for program in itertools.islice(operator_programs(), 0, 60, 4):
        scope = {}
        text = listing(program)
        module, inputs = program.make(3)
        results = pytree.tree_leaves(module(*inputs))
        if text.startswith("# ") or any(
            getattr(r, "is_sparse", False) for r in results
        ):
            continue
        exec(text, scope)
        found = Verification.of(scope["model"](*scope["inputs"]), module(*inputs))
        assert is_random(program.exported[0]) or found.relative_error == 0, text
        assert [i.stride() for i in scope["inputs"]] == [i.stride() for i in inputs]
        assert "opinfo" not in text
        seen += 1
    assert seen > 8
