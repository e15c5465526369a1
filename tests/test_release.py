"""Parts of a release agree: versions, metadata, workflows, changelog and archives."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RELEASE = ROOT / "tools/release.py"
PROJECTS = [
    ROOT / "programs/pyproject.toml",
    ROOT / "core/pyproject.toml",
    *sorted(ROOT.glob("plugins/*/pyproject.toml")),
]


def run_release_tool(*arguments):
    completed = subprocess.run(
        [sys.executable, RELEASE, *map(str, arguments)], capture_output=True, text=True
    )
    return completed.returncode, completed.stdout + completed.stderr


def test_setting_a_version_changes_all_distributions(tmp_path):
    code, version = run_release_tool("version")
    assert code == 0
    assert version.strip() == "0.1.0"

    versioned = (
        ROOT / "programs/src/delegraph_programs/__init__.py",
        ROOT / "core/src/delegraph/__init__.py",
    )
    copies = [*PROJECTS, RELEASE, ROOT / "CITATION.cff", *versioned]
    for file in copies:
        copy = tmp_path / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(file.read_text())
    tool = [sys.executable, tmp_path / "tools/release.py", "version"]
    said = subprocess.run([*tool, "0.2.0rc1"], capture_output=True, text=True)
    assert said.returncode == 0
    assert said.stdout == "0.2.0rc1\n"

    copies.remove(RELEASE)
    for file in copies:
        assert "0.1.0" not in _versions(tmp_path / file.relative_to(ROOT)), file

    wrong_version = subprocess.run([*tool, "v0.2"], capture_output=True)
    assert wrong_version.returncode == 1


def _versions(file):
    """Return the versions that a file pins or declares."""
    return re.findall(
        r'(?:version = |version: |__version__ = |==)"?([\w.]+)', file.read_text()
    )


def test_every_distribution_names_its_urls_and_pythons():
    tables = set()
    for project in PROJECTS:
        text = project.read_text()
        [urls] = re.findall(r"\[project\.urls\]\n((?:\w+ = .+\n)+)", text)
        assert urls.count("\n") == 5
        tables.add(urls)
        for minor in range(11, 15):
            assert f'"Programming Language :: Python :: 3.{minor}"' in text

    assert len(tables) == 1, "all distributions have the same URLs"


def test_workflows_pin_actions_and_grant_no_permissions():
    files = sorted((ROOT / ".github/workflows").glob("*.yml"))
    assert [f.stem for f in files] == ["docs", "nightly", "release", "tests"]
    for file in files:
        text = file.read_text()
        used = re.findall(r"uses: (\S+)", text)
        assert used
        assert [u for u in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", u)] == []
        assert "\npermissions: {}\n" in text
        for script in re.findall(r"(?:python |run: )((?:tools|\.ci)/[\w.]+)", text):
            assert (ROOT / script).exists(), script


def test_the_changelog_is_one_page_of_single_lines():
    text = (ROOT / "CHANGELOG.md").read_text()
    assert "\n## 0.1.0\n" in text
    release = text.partition("\n## 0.1.0\n")[2].partition("\n## ")[0]
    entries = [line for line in release.splitlines() if not line.startswith("#")]
    assert [line for line in entries if line.startswith((" ", "*"))] == []
    assert 0 < len([line for line in entries if line.startswith("- ")]) <= 40


@pytest.mark.slow
def test_archives_are_reproducible(tmp_path):
    code, said = run_release_tool("build", tmp_path, "--twice")
    assert code == 0, said
    assert said.endswith("both builds are equal\n"), said

    wheels = [*tmp_path.glob("*.whl")]
    assert len(wheels) == len(PROJECTS)
    assert len([*tmp_path.glob("*.tar.gz")]) == len(PROJECTS)
    assert all(
        any(n.endswith("licenses/LICENSE") for n in zipfile.ZipFile(w).namelist())
        for w in wheels
    )


@pytest.mark.slow
def test_built_wheels_install_and_lower_a_model(tmp_path):
    """Needs a network, for torch."""
    assert run_release_tool("build", tmp_path)[0] == 0
    code, said = run_release_tool("rehearse", tmp_path)
    assert code == 0, said
