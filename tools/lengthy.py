"""Which tests are left to ``pytest -m lengthy``, from how long each took: writes tests/lengthy.txt.

    python -m pytest -n auto -m "not slow" --junitxml=times.xml
    python tools/lengthy.py times.xml [--seconds 0.12] [--alone 1.2]

A test of more than ``--seconds`` is left out of the default run if another one of the same function is shorter. That
one stays if it takes at most ``--alone`` seconds, or if KEPT names it. Lines of tests that did not run stay: with a
run of the default suite, lines are only added.
"""

from __future__ import annotations

import argparse
import fnmatch
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
LISTED = ROOT / "tests" / "lengthy.txt"
KEPT = (
    "plugins/tosa_backend/tests/test_contract.py::TestTosa::test_accepted_compiles",
    "plugins/tosa_backend/tests/test_contract.py::TestTosa::test_numerics",
    "plugins/demo_backend/tests/test_contract.py::TestDemo::*",
    "plugins/devkit/tests/checks/test_checks.py::test_a_bad_backend_fails_its_check?wrong_relu?",
    "plugins/executorch_backend/tests/bridging/test_bridge.py::test_a_net_that_xnnpack_takes_whole?mlp-shape0?",
    "plugins/tosa_backend/tests/serialize/test_mutations.py::*",
    "plugins/quantize/tests/test_quantize.py::test_a_quantized_program_is_a_file_that_lowers_in_a_fresh_process",
    "plugins/openvino_backend/tests/test_openvino.py::test_a_network_is_one_delegate*",
    "core/tests/acceptance/*",
    "tests/test_scaffold_end_to_end.py::test_it_is_listed",
    "core/tests/engine/test_properties.py::test_a_lowered_program_is_eager_over_several_calls*",
    "core/tests/exported/functionalize/test_writes.py::test_random_aliasing_programs?0?",
    "tests/test_docs.py::*docs/tutorials/first-backend.md?",
    "tests/test_docs.py::*docs/tutorials/cnn-to-tosa.md?",
    "tests/test_docs.py::*README.md?",
    "tests/test_models.py::test_the_reference_model_agrees_with_eager*",
    "tests/test_packaging.py::*",
    "tests/test_wording.py::*",
    "tests/test_house.py::test_[!a]*",
    "tests/test_house.py::test_a_forbidden_import_is_found?delegraph_devkit*",
)
"""What a change is not to break, whatever it takes."""


def node_id(case: ElementTree.Element) -> str:
    """The name of a test, as pytest takes it, from its record in JUnit's form."""
    parts = str(case.get("classname")).split(".")
    files = (n for n in range(len(parts), 0, -1) if ROOT.joinpath(*parts[:n]).with_suffix(".py").is_file())
    number = next(files)
    return "::".join(["/".join(parts[:number]) + ".py", *parts[number:], str(case.get("name"))])


def lengthy(seconds: dict[str, float], limit: float, alone: float) -> list[str]:
    """The tests that are left out."""
    of_function = defaultdict[str, list[tuple[float, str]]](list)
    for test, took in seconds.items():
        of_function[test.partition("[")[0]].append((took, test))
    left = []
    for tests in of_function.values():
        shortest = min(tests)
        for took, test in tests:
            stays = took <= limit or ((took, test) == shortest and took <= alone)
            if not stays and not any(fnmatch.fnmatchcase(test, pattern) for pattern in KEPT):
                left.append(test)
    return sorted(left)


def main() -> None:
    """Write the list, and say what is left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("times", type=Path, help="what pytest wrote with --junitxml")
    parser.add_argument("--seconds", type=float, default=0.12)
    parser.add_argument("--alone", type=float, default=1.2)
    given = parser.parse_args()
    cases = ElementTree.parse(given.times).getroot().iter("testcase")
    seconds = {node_id(case): float(case.get("time", 0)) for case in cases}
    left = lengthy(seconds, given.seconds, given.alone)
    kept = sum(took for test, took in seconds.items() if test not in set(left))
    before = LISTED.read_text("utf-8").splitlines() if LISTED.exists() else []
    listed = sorted({*(test for test in before if test not in seconds), *left})
    LISTED.write_text("".join(f"{test}\n" for test in listed), "utf-8")
    whole = sum(seconds.values())
    print(f"{len(listed)} tests are lengthy; {len(seconds) - len(left)} others took {kept:.0f} s of {whole:.0f}")


if __name__ == "__main__":
    main()
