"""Which tests are left to ``pytest -m lengthy``."""

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("lengthy", ROOT / "tools" / "lengthy.py")
tool = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(tool)


def test_the_shortest_of_each_function_stays_and_what_has_to():
    seconds = {
        "a.py::f[1]": 2.0,
        "a.py::f[2]": 5.0,
        "a.py::f[3]": 0.1,
        "a.py::g": 2.0,
        "a.py::h": 3.0,
        "a.py::i[x]": 1.2,
    }
    assert tool.lengthy(seconds, limit=1.0, alone=2.5) == ["a.py::f[1]", "a.py::f[2]", "a.py::h"]
    kept = "plugins/tosa_backend/tests/test_contract.py::TestTosa::test_numerics"
    assert tool.lengthy({kept: 100.0}, 1.0, 2.5) == []


def test_lines_of_tests_that_did_not_run_stay(tmp_path, monkeypatch, capsys):
    case = '<testcase classname="tests.test_lengthy" name="{}" time="{}"/>'
    cases = case.format("test_one[a]", 9) + case.format("test_one[b]", 0.1) + case.format("test_two", 0.1)
    (tmp_path / "times.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    monkeypatch.setattr(tool, "LISTED", tmp_path / "lengthy.txt")
    tool.LISTED.write_text("tests/test_house.py::test_three\ntests/test_lengthy.py::test_two\n")
    monkeypatch.setattr(sys, "argv", ["lengthy.py", str(tmp_path / "times.xml")])
    tool.main()
    assert tool.LISTED.read_text() == "tests/test_house.py::test_three\ntests/test_lengthy.py::test_one[a]\n"
    assert capsys.readouterr().out == "2 tests are lengthy; 2 others took 0 s of 9\n"


@pytest.fixture
def conftest(pytestconfig):
    return pytestconfig.pluginmanager.get_plugin(str(ROOT / "conftest.py"))


def test_listed_tests_are_marked_and_a_line_without_a_test_is_an_error(conftest, tmp_path, monkeypatch):
    items = [SimpleNamespace(nodeid=name, marks=[]) for name in ("a.py::f[1]", "a.py::g")]
    for item in items:
        item.add_marker = item.marks.append
    config = SimpleNamespace(args=["tests"], getini=lambda name: ["tests"])
    monkeypatch.setattr(conftest, "LENGTHY", tmp_path / "lengthy.txt")
    conftest.LENGTHY.write_text("a.py::f[1]\n")
    conftest.pytest_collection_modifyitems(config, items)
    assert [item.marks for item in items] == [["lengthy"], []]
    conftest.LENGTHY.write_text("a.py::f[1]\na.py::gone\n")
    with pytest.raises(pytest.UsageError, match=r"names what is no test: a.py::gone"):
        conftest.pytest_collection_modifyitems(config, items)
    config.args = ["tests/test_house.py"]
    conftest.pytest_collection_modifyitems(config, items)
