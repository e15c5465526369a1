"""The documents are true: generated pages are current, links lead somewhere, CI runs what the README says."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")]


def generator():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["errors.md", "tosa-operators.md"])
def test_a_generated_page_is_current(name):
    assert (ROOT / "docs" / name).read_text() == generator().PAGES[name](), "run python docs/generate.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_relative_links_lead_to_files(page):
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [t for t in targets if not (page.parent / t).exists()] == []


def test_continuous_integration_runs_the_second_command_of_the_readme():
    commands = re.findall(r"^    (python3 -m venv .*)$", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    assert len(commands) == 2
    assert commands[1] in (ROOT / ".ci" / "run").read_text().splitlines()


@pytest.mark.parametrize("distribution", ["core", "plugins/tosa_backend", "plugins/demo_backend"])
def test_each_distribution_carries_the_licence(distribution):
    assert (ROOT / distribution / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_distributions_share_one_version():
    projects = [ROOT / d / "pyproject.toml" for d in ("core", "plugins/tosa_backend", "plugins/demo_backend")]
    assert len({re.search(r'^version = "(.+)"$', p.read_text(), flags=re.MULTILINE)[1] for p in projects}) == 1


@pytest.mark.filterwarnings("default")
def test_the_python_of_the_user_guide_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs" / "user-guide.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert len(blocks) > 4
    names = {"__name__": "guide"}
    for block in blocks:
        exec(compile(block, "user-guide.md", "exec"), names)
    assert names["figures"].relative_error < 1e-5
    assert {"model.tosa", "part_0.tosa"} <= {p.name for p in tmp_path.iterdir()}
    assert "aten.linalg_inv_ex" in capsys.readouterr().out
