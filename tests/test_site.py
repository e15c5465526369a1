"""The site: guides are there in pages, links lead somewhere, and public names and commands have their places."""

import importlib.util
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from delegraph.discovery.registry import Registry
from delegraph.plugin import CommandSpec

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def hooks():
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs/site/hooks.py")
    module = sys.modules["hooks"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    before = [*sys.path]
    yield module
    sys.path[:] = before


@pytest.fixture(scope="module")
def site(hooks):
    return hooks.made()


def places(nav):
    """All pages of a navigation."""
    if isinstance(nav, str):
        return [nav]
    return [place for entry in (nav.values() if isinstance(nav, dict) else nav) for place in places(entry)]


def test_every_link_leads_to_a_page_or_a_file(site):
    assert site.broken == []


def test_every_page_is_in_the_navigation_once(site):
    assert sorted(places(site.nav)) == sorted(site.pages)


def test_a_guide_is_cut_into_pages_without_a_loss(site, hooks):
    for source, (folder, _) in hooks.GUIDES.items():
        pages = [
            page.text for place, page in site.pages.items() if place.startswith(f"{folder}/") and page.source == source
        ]
        whole = hooks._page((ROOT / source).read_text(), source).text
        assert len(pages) == 1 + len([h for _, level, h in hooks.headings(whole) if level == 2])
        blocks = re.findall(r"^```.*?^```$", whole, re.MULTILINE | re.DOTALL)
        assert [b for page in pages for b in re.findall(r"^```.*?^```$", page, re.MULTILINE | re.DOTALL)] == blocks
        assert all(page.startswith("# ") and page.count("\n# ") <= page.count("```") for page in pages)


def test_the_reference_has_the_public_names_and_no_other(site, hooks):
    page = (ROOT / "docs/compatibility.md").read_text()
    listed = hooks.modules()
    assert all(f"`{name}`" in page for name in hooks.FLAT)
    for module, folder in listed.items():
        directives = re.findall(r"^::: (\S+)$", site.pages[f"reference/python/{module}.md"].text, re.MULTILINE)
        assert directives == [f"{module}.{name}" for name in hooks.public_names(module, folder)] != []


def test_every_command_has_its_help_there(site):
    shown = re.findall(r"^## delegraph (\S+)$", site.pages["reference/commands.md"].text, re.MULTILINE)
    ours = {
        spec.name for spec, record in Registry().declared(CommandSpec) if record.distribution.startswith("delegraph")
    }
    assert ours <= {*shown} and {"lower", "backends", "doctor", "completion"} <= {*shown}


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mkdocs") is None, reason="pip install -r docs/requirements.txt")
def test_it_builds_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "WARNING -" not in done.stderr, done.stderr
    assert (tmp_path / "search/search_index.js").exists()  # what search reads where there is no server
