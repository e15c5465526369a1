"""The documentation site: pages, links, references, examples and notebooks."""

import ast
import importlib
import importlib.util
import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from delegraph.discovery.registry import Registry
from delegraph.plugin import CommandSpec

from tests.support.environment import layered
from tests.support.pages import GUIDES

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
    """Return all pages of a navigation."""
    if isinstance(nav, str):
        return [nav]
    return [
        place
        for entry in (nav.values() if isinstance(nav, dict) else nav)
        for place in places(entry)
    ]


def test_every_link_leads_to_a_page_or_a_file(site):
    assert site.broken == []


def test_the_site_reads_the_sources_of_each_documented_package(hooks):
    configuration = (ROOT / "mkdocs.yml").read_text()
    paths = re.search(r"paths: \[(.*)\]", configuration).group(1).split(", ")

    assert set(hooks.PACKAGES.values()) <= set(paths)


def test_every_page_is_in_the_navigation_once(site):
    assert sorted(places(site.nav)) == sorted(site.pages)


def test_pages_of_a_guide_contain_all_of_its_text(site, hooks):
    for source, (folder, _) in hooks.GUIDES.items():
        pages = [
            page.text
            for place, page in site.pages.items()
            if place.startswith(f"{folder}/") and page.source == source
        ]
        whole = hooks._page((ROOT / source).read_text(), source).text
        sections = [h for _, level, h in hooks.headings(whole) if level == 2]
        introduction = 1
        assert len(pages) == introduction + len(sections)

        block = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
        blocks_of_pages = []
        for page in pages:
            blocks_of_pages.extend(block.findall(page))
            assert page.startswith("# ")
            # further lines of this kind are comments in code blocks
            assert page.count("\n# ") <= page.count("```")
        assert blocks_of_pages == block.findall(whole)


def test_the_reference_has_exactly_the_public_names(site, hooks):
    page = (ROOT / "docs/compatibility.md").read_text()
    listed = hooks.modules()
    assert all(f"`{name}`" in page for name in hooks.FLAT)
    for module, folder in listed.items():
        directives = re.findall(
            r"^::: (\S+)$",
            site.pages[f"reference/python/{module}.md"].text,
            re.MULTILINE,
        )
        public = [f"{module}.{name}" for name in hooks.public_names(module, folder)]
        assert public
        assert directives == public


def code_of(hooks, page):
    """Return the code blocks of a guide, without the blocks of output."""
    found = re.findall(
        r"^```(\S+).*\n((?s:.*?))^```$", (ROOT / page).read_text(), re.MULTILINE
    )
    return "\n".join(body for kind, body in found if kind != "text")


def named(page):
    """Return the dotted names that the Python blocks of a guide import or use."""
    blocks = re.findall(
        r"^```python(?! (?:in|compiled)).*\n((?s:.*?))^```$",
        (ROOT / page).read_text(),
        re.MULTILINE,
    )
    trees = [ast.parse(block) for block in blocks]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    # name on the page -> all that it is there, since a later block may import another
    # of that name
    imports = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                imports.setdefault(alias.asname or alias.name, set()).add(
                    f"{node.module}.{alias.name}"
                )
        elif isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.partition(".")[0]
                imports.setdefault(alias.asname or name, set()).add(name)
    chains = [
        ast.unparse(node).split(".", 1)
        for node in nodes
        if isinstance(node, ast.Attribute)
    ]
    reached = {
        f"{there}.{rest}" for first, rest in chains for there in imports.get(first, ())
    }
    return reached.union(*imports.values())


def test_every_public_name_has_an_example(hooks):
    """An example of one name of an object counts for all of its names."""
    names = [
        f"{m}.{n}"
        for m, folder in hooks.modules().items()
        for n in hooks.public_names(m, folder)
    ]
    shown = {name for page in GUIDES for name in named(page)} & {*names}

    def value(name):
        module, _, attribute = name.rpartition(".")
        return getattr(importlib.import_module(module), attribute)

    shown_objects = {id(value(name)) for name in shown if callable(value(name))}
    without_example = [
        name
        for name in names
        if name not in shown and id(value(name)) not in shown_objects
    ]

    assert without_example == []


def test_every_module_and_command_page_has_its_examples(site, hooks):
    examples = hooks._examples()
    assert {*examples} <= {*hooks.modules(), "Commands"}

    for title, text in examples.items():
        place = (
            "reference/commands.md"
            if title == "Commands"
            else f"reference/python/{title}.md"
        )
        assert site.pages[place].text.endswith(text)
        assert "```" in text
    code = "\n".join(code_of(hooks, page) for page in GUIDES)
    # eval "$(delegraph completion bash)"
    shown = {*re.findall(r"\bdelegraph ([\w-]+)", code)} | {"completion"}
    commands = {
        *re.findall(
            r"^## delegraph (\S+)$",
            site.pages["reference/commands.md"].text,
            re.MULTILINE,
        )
    }
    assert commands - shown == set()


def test_site_has_the_help_of_every_command(site):
    shown = re.findall(
        r"^## delegraph (\S+)$", site.pages["reference/commands.md"].text, re.MULTILINE
    )
    ours = {
        spec.name
        for spec, record in Registry().declared(CommandSpec)
        if record.distribution.startswith("delegraph")
    }

    assert ours <= {*shown}
    assert {"lower", "backends", "doctor", "completion"} <= {*shown}


def test_every_tutorial_has_a_notebook_of_its_blocks(site, hooks):
    pages = {p.stem for p in (ROOT / "docs/tutorials").glob("*.md")}
    assert {f"tutorials/{name}.ipynb" for name in pages} == {*site.notebooks}
    for name in pages:
        assert f"]({name}.ipynb)" in site.pages[f"tutorials/{name}.md"].text
        notebook = json.loads(site.notebooks[f"tutorials/{name}.ipynb"])
        page = (ROOT / f"docs/tutorials/{name}.md").read_text()
        shown = "".join("".join([*cell["source"], "\n"]) for cell in notebook["cells"])
        printed = [
            o["text"] for cell in notebook["cells"] for o in cell.get("outputs", [])
        ]
        for kind, body in re.findall(
            r"^```(\S+).*\n((?s:.*?))^```$", page, re.MULTILINE
        ):
            assert body in shown or body.splitlines(keepends=True) in printed, (
                name,
                kind,
            )
        assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
        assert (
            re.findall(
                r"\]\((?!https:)",
                re.sub(r"```.*?```|`[^`]*`", "", _prose(notebook), flags=re.DOTALL),
            )
            == []
        )


def _prose(notebook):
    return "\n".join(
        "".join(cell["source"])
        for cell in notebook["cells"]
        if cell["cell_type"] == "markdown"
    )


def test_each_kind_of_block_becomes_its_notebook_cell(hooks):
    blocks = (
        ("python file=a.py", "x = 1"),
        ("sh", "ls"),
        ("text", "a.py"),
        ("toml in=a", "k = 1"),
    )
    text = "\n".join(
        ["# Title", *(f"\n```{kind}\n{body}\n```" for kind, body in blocks), "end"]
    )
    cells = hooks.notebook(text)["cells"]

    assert [(c["cell_type"], "".join(c["source"])) for c in cells] == [
        ("markdown", "# Title"),
        ("code", "%%writefile a.py\nx = 1"),
        ("code", "%%bash -e\nls"),
        ("markdown", "```toml\nk = 1\n```"),
        ("markdown", "end"),
    ]
    assert cells[2]["outputs"] == [
        {"output_type": "stream", "name": "stdout", "text": ["a.py\n"]}
    ]


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("nbclient") is None, reason="pip install nbclient ipykernel"
)
@pytest.mark.parametrize(
    "name", sorted(p.stem for p in (ROOT / "docs/tutorials").glob("*.md"))
)
def test_a_notebook_runs_in_jupyter(name, site, tmp_path, monkeypatch):
    import nbformat
    from nbclient import NotebookClient

    # what a cell installs goes there
    for variable, value in layered(tmp_path / "environment").items():
        monkeypatch.setenv(variable, value)
    notebook = nbformat.reads(site.notebooks[f"tutorials/{name}.ipynb"], as_version=4)
    nbformat.validate(notebook)
    folder = tmp_path / "work"
    folder.mkdir()
    NotebookClient(
        notebook, timeout=900, resources={"metadata": {"path": str(folder)}}
    ).execute()


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("mkdocs") is None, reason="pip install -r docs/requirements.txt"
)
def test_site_builds_without_a_warning(tmp_path):
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "-q",
        "-d",
        str(tmp_path),
    ]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    assert completed.returncode == 0, completed.stderr
    assert "WARNING -" not in completed.stderr, completed.stderr
    # what search reads where there is no server
    assert (tmp_path / "search/search_index.js").exists()
