"""Pages of the site, made while it is built: guides cut into pages of one question
each, the reference, commands.

The guides stay whole in docs/, where tests run them from top to bottom; here each
section becomes a page, and links follow. Run by mkdocs (``hooks`` in mkdocs.yml), and
by tests/test_site.py, which needs no mkdocs.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = "https://github.com/delegraph/delegraph/blob/main/"
SITE = "https://delegraph.github.io/delegraph/"
GUIDES = {
    "docs/recipes.md": ("recipes", "Recipes"),
    "docs/backend-authors.md": ("backends", "Writing a backend"),
}
"""Guide that is cut into pages -> its folder on the site, and its title there."""
WHOLE = {
    "docs/README.md": "index.md",
    "docs/tutorial.md": "tutorial.md",
    "docs/extending.md": "backends/extending.md",
    "docs/from-executorch.md": "backends/from-executorch.md",
    "docs/backend-reference.md": "reference/declarations.md",
    "docs/architecture.md": "explanation/architecture.md",
    "docs/compatibility.md": "project/compatibility.md",
    "docs/promise.md": "project/promise.md",
    "docs/testing.md": "project/testing.md",
    "docs/style.md": "project/style.md",
    "docs/threat-model.md": "project/threat-model.md",
    "docs/errors.md": "reference/errors.md",
    "docs/language-models.md": "guide/language-models.md",
    "docs/ethos-u.md": "guide/ethos-u.md",
    "docs/snapdragon.md": "guide/snapdragon.md",
    "docs/coreai.md": "guide/coreai.md",
    "docs/op-support.md": "reference/operators.md",
    "docs/tosa-legality.md": "reference/tosa-types.md",
    "docs/tosa-rules.md": "reference/tosa-rules.md",
    "benchmarks/RESULTS.md": "project/results.md",
    "CHANGELOG.md": "project/changelog.md",
    "CODE_OF_CONDUCT.md": "project/conduct.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
}
"""File that is a page as it is -> its place on the site. A link ``site:PLACE`` leads to
a page that no file is.
"""
GUIDE = (
    "lowering",
    "report",
    "accuracy",
    "quantization",
    "files",
    "programs",
    "backends",
    "compilers",
    "command-line",
)
"""Pages of docs/guide in their order."""
TUTORIALS = (
    "cnn-to-tosa",
    "dynamic-transformer",
    "int8-to-an-npu",
    "accuracy",
    "comparing-engines",
    "first-backend",
    "tosa-to-bytes",
    "backend-in-cpp",
)
"""Pages of docs/tutorials in their order; each is offered as a notebook as well."""
PACKAGES = {
    "delegraph_programs": "programs/src",
    "delegraph": "core/src",
    **{
        f"delegraph.{name}": "core/src"
        for name in ("command", "delegates", "engine", "host", "partitioner", "report")
    },
    "delegraph_analysis": "plugins/analysis/src",
    "delegraph_analysis.drawing": "plugins/analysis/src",
    "delegraph_devkit": "plugins/devkit/src",
    "delegraph_engines": "plugins/engines/src",
    "delegraph_engines.flatbuffer": "plugins/engines/src",
    "delegraph_engines.flatbuffer_builder": "plugins/engines/src",
    "delegraph_executorch.edge": "plugins/executorch_backend/src",
    "delegraph_tosa": "plugins/tosa_backend/src",
    "delegraph_dynamo": "plugins/dynamo/src",
    "delegraph_workers": "plugins/workers/src",
}
"""Packages whose ``__all__`` is public (docs/compatibility.md) -> where they lie.
Modules of the core are found.
"""
FLAT = (
    "backend",
    "compiler",
    "errors",
    "formats",
    "named_data",
    "plugin",
    "runtime",
)
"""Public modules of the core."""
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(\]\()([^)\s]+)(\))")


@dataclass
class Page:
    """A page of the site. ``source``: the file that it is made of; links in its text
    are relative to that.
    """

    text: str
    source: str = ""
    anchors: dict[str, str] = field(default_factory=dict)
    """Anchor in the source -> anchor on the page."""


@dataclass
class Site:
    """All pages that are made, by their places, notebooks in the same way, and the
    navigation.
    """

    pages: dict[str, Page] = field(default_factory=dict)
    notebooks: dict[str, str] = field(default_factory=dict)
    nav: list[Any] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)


_site = Site()


def on_config(config: Any) -> Any:
    """Make all pages and the navigation."""
    global _site
    _site = made()
    config.nav = _site.nav
    return config


def on_files(files: Any, *, config: Any) -> Any:
    """Add the pages that were made."""
    from mkdocs.structure.files import File

    for place, page in _site.pages.items():
        files.append(File.generated(config, place, content=page.text))
    for place, notebook in _site.notebooks.items():
        files.append(File.generated(config, place, content=notebook))
    return files


def made() -> Site:
    """The pages with links between them, and the navigation."""
    site = Site()
    guides = {
        title: _cut(site, source, folder) for source, (folder, title) in GUIDES.items()
    }
    for source, place in WHOLE.items():
        site.pages[place] = _page(ROOT.joinpath(source).read_text("utf-8"), source)
    guide = [
        _add(site, ROOT / "docs/guide" / f"{name}.md", f"guide/{name}.md")
        for name in GUIDE
    ]
    tutorials = [
        _add(site, ROOT / "docs/tutorials" / f"{name}.md", f"tutorials/{name}.md")
        for name in TUTORIALS
    ]
    decisions = [
        _add(site, p, f"explanation/{p.name}")
        for p in sorted(ROOT.glob("docs/decisions/*.md"))
    ]
    readmes = [
        _add(site, p, f"distributions/{p.parent.name}.md")
        for p in sorted(ROOT.glob("plugins/*/README.md"))
    ]
    examples = _examples()
    reference = list(_reference(site, examples))
    site.pages["reference/commands.md"] = Page(_commands() + examples["Commands"])
    site.pages["reference/json.md"] = Page(_schemas())
    _link(site)
    _notebooks(site)
    site.nav = [
        {"Home": "index.md"},
        {"Tutorials": [{"Ten minutes": "tutorial.md"}, *tutorials]},
        {
            "User guide": [
                *guide,
                {"Language models": "guide/language-models.md"},
                {"On a device with an Ethos-U": "guide/ethos-u.md"},
                {"From a model to a Snapdragon": "guide/snapdragon.md"},
                {"From a model to an iPhone": "guide/coreai.md"},
            ]
        },
        {"Recipes": guides["Recipes"]},
        {
            "Writing a backend": [
                *guides["Writing a backend"],
                {"Extensions": "backends/extending.md"},
                {"Coming from ExecuTorch": "backends/from-executorch.md"},
            ]
        },
        {
            "Reference": [
                {"Commands": "reference/commands.md"},
                {"Errors": "reference/errors.md"},
                {"Declarations and checks": "reference/declarations.md"},
                {"JSON": "reference/json.md"},
                {"Operators": "reference/operators.md"},
                {"Types of TOSA operators": "reference/tosa-types.md"},
                {"Rules of TOSA graphs": "reference/tosa-rules.md"},
                {"Distributions": readmes},
                {"Python": reference},
            ]
        },
        {
            "Explanation": [
                {"Architecture": "explanation/architecture.md"},
                {"Decisions": decisions},
            ]
        },
        {
            "Project": [
                {"Stability": "project/promise.md"},
                {"Compatibility": "project/compatibility.md"},
                {"Changelog": "project/changelog.md"},
                {"Measurements": "project/results.md"},
                {"Contributing": "project/contributing.md"},
                {"Testing": "project/testing.md"},
                {"Style": "project/style.md"},
                {"Security": "project/security.md"},
                {"Threat model": "project/threat-model.md"},
                {"Code of conduct": "project/conduct.md"},
            ]
        },
    ]
    return site


# --- guides ---------------------------------------------------------------------------


def slug(heading: str, seen: Counter[str]) -> str:
    """The anchor that the forge gives a heading, and that the site gives it; ``seen``:
    those before it.
    """
    text = (
        re.sub(r"[^\w\- ]", "", re.sub(r"`|\*", "", heading).lower())
        .strip()
        .replace(" ", "-")
    )
    seen[text] += 1
    return text if seen[text] == 1 else f"{text}-{seen[text] - 1}"


def headings(text: str) -> Iterator[tuple[int, int, str]]:
    """Position, level and text of each heading outside of code."""
    code = [m.span() for m in FENCE.finditer(text)]
    for m in re.finditer(r"^(#+) (.+)$", text, re.MULTILINE):
        if not any(begin <= m.start() < end for begin, end in code):
            yield m.start(), len(m[1]), m[2]


def _cut(site: Site, source: str, folder: str) -> list[Any]:
    """A page for the beginning of a guide, and for each of its sections; returns their
    entries of the navigation.
    """
    text = ROOT.joinpath(source).read_text("utf-8")
    seen: Counter[str] = Counter()
    found = [
        (at, level, heading, slug(heading, seen))
        for at, level, heading in headings(text)
    ]
    starts = [
        (at, heading, anchor) for at, level, heading, anchor in found if level == 2
    ]
    pages = [(0, "", "index"), *starts]
    nav: list[Any] = []
    for (begin, title, name), end in zip(
        pages, [*(at for at, *_ in starts), len(text)], strict=True
    ):
        part = text[begin:end]
        if title:  # each heading goes up by one
            part = "".join(_raised(part))
        page = site.pages[f"{folder}/{name}.md"] = _page(part, source)
        here: Counter[str] = Counter()
        own = [slug(heading, here) for _, _, heading in headings(part)]
        theirs = [anchor for at, _, _, anchor in found if begin <= at < end]
        page.anchors = dict(zip(theirs, own, strict=True))
        nav.append({title: f"{folder}/{name}.md"} if title else f"{folder}/{name}.md")
    return nav


def _raised(text: str) -> Iterator[str]:
    last = 0
    for at, _, _ in headings(text):
        yield text[last:at]
        last = at + 1  # without one #
    yield text[last:]


def _add(site: Site, file: Path, place: str) -> Any:
    """Add a page; returns its entry of the navigation."""
    text = file.read_text("utf-8")
    site.pages[place] = _page(text, file.relative_to(ROOT).as_posix())
    return {next(headings(text))[2]: place}


def _page(text: str, source: str) -> Page:
    """A page of a text. What tests are told of a block of code becomes its title, or
    goes.
    """
    text = re.sub(
        r"^```(\w+) (?:file|in)=(\S+)$", r'```\1 title="\2"', text, flags=re.MULTILINE
    )
    text = re.sub(r"^```(\w+) (?!title=).*$", r"```\1", text, flags=re.MULTILINE)
    seen: Counter[str] = Counter()
    anchors = [slug(heading, seen) for _, _, heading in headings(text)]
    return Page(text, source, dict(zip(anchors, anchors, strict=True)))


# --- notebooks ------------------------------------------------------------------------


def _notebooks(site: Site) -> None:
    """Offer each tutorial as a notebook, made of the page's own blocks, which tests run
    as they stand.
    """
    for name in TUTORIALS:
        page = site.pages[f"tutorials/{name}.md"]
        cells = notebook(
            ROOT.joinpath(page.source).read_text("utf-8"),
            lambda t, s=page.source: _on_the_site(t, site, s),
        )
        place = f"tutorials/{name}.ipynb"
        site.notebooks[place] = json.dumps(cells, indent=1, ensure_ascii=False) + "\n"
        title, _, rest = page.text.partition("\n")
        page.text = (
            f'{title}\n\n[As a notebook]({name}.ipynb){{ download="{name}.ipynb"'
            f" }}\n{rest}"
        )


def _on_the_site(text: str, site: Site, source: str) -> str:
    """Markdown with links that lead to the site from anywhere."""
    places = {
        page.source: place
        for place, page in reversed(site.pages.items())
        if page.source
    }

    def new(m: re.Match[str]) -> str:
        path, _, anchor = m[2].partition("#")
        if re.match(r"\w+:", m[2]):
            return m[0]
        file = normpath(str(PurePosixPath(source).parent / path)) if path else source
        found = next(
            (
                p
                for p, page in site.pages.items()
                if page.source == file and anchor in page.anchors
            ),
            None,
        )
        place = found or places.get(file)
        if place is None:
            return m[1] + REPOSITORY + file + m[3]
        there = (
            ""
            if not anchor or found is None
            else f"#{site.pages[found].anchors[anchor]}"
        )
        return f"{m[1]}{SITE}{place.removesuffix('.md')}.html{there}{m[3]}"

    return _outside_code(text, lambda t: LINK.sub(new, t))


def notebook(text: str, relink: Callable[[str], str] = str) -> dict[str, Any]:
    """A page of blocks (tests/test_docs.py says which there are) as a Jupyter notebook,
    what they print as outputs.

    A block that becomes a file is a cell that writes it, one of shell a cell of bash.
    Excerpts stay text.
    """
    cells: list[dict[str, Any]] = []
    last = 0
    for m in [
        *re.finditer(r"^```(\w+) ?(.*)\n(?s:(.*?))^```$", text, re.MULTILINE),
        None,
    ]:
        prose = text[last : m.start() if m else len(text)].strip()
        if prose:
            _markdown(cells, relink(prose))
        if m is None:
            break
        last = m.end()
        kind = m[1]
        how = m[2]
        body = m[3].rstrip("\n")
        if kind == "text" and cells and cells[-1]["cell_type"] == "code":
            cells[-1]["outputs"] = [
                {"output_type": "stream", "name": "stdout", "text": _lines(body + "\n")}
            ]
        elif how.startswith("in=") or kind == "text":
            _markdown(cells, f"```{kind if kind != 'text' else ''}\n{body}\n```")
        else:
            begin = {"sh": "%%bash -e\n", "diff": "%%bash -e\npatch -p0 <<'END'\n"}.get(
                kind, ""
            )
            begin = (
                f"%%writefile {how.removeprefix('file=')}\n"
                if how.startswith("file=")
                else begin
            )
            source = begin + body + ("\nEND" if kind == "diff" else "")
            cell = {
                "cell_type": "code",
                "execution_count": None,
                "metadata": {},
                "outputs": [],
            }
            cells.append({**cell, "id": f"cell-{len(cells)}", "source": _lines(source)})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {
        "cells": cells,
        "metadata": {"kernelspec": kernel},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _markdown(cells: list[dict[str, Any]], text: str) -> None:
    cells.append(
        {
            "cell_type": "markdown",
            "id": f"cell-{len(cells)}",
            "metadata": {},
            "source": _lines(text),
        }
    )


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


# --- links ----------------------------------------------------------------------------


def _link(site: Site) -> None:
    """Let each link lead to the page that its target became, or else to the file in the
    repository.
    """
    by_source: dict[str, list[tuple[str, Page]]] = {}
    for place, page in site.pages.items():
        by_source.setdefault(page.source, []).append((place, page))

    def leads_to(target: str, place: str, source: str) -> str:
        if target.startswith("site:"):
            there = target.removeprefix("site:")
            if there not in site.pages:
                site.broken.append(f"{source}: {target}")
            return relpath(there, str(PurePosixPath(place).parent))
        path, _, anchor = target.partition("#")
        file = normpath(str(PurePosixPath(source).parent / path)) if path else source
        if file not in by_source:
            if not (ROOT / file).exists():
                site.broken.append(f"{source}: {target}")
            return REPOSITORY + file + (f"#{anchor}" if anchor else "")
        pages = by_source[file]
        there, page = next(
            ((p, page) for p, page in pages if anchor in page.anchors), pages[0]
        )
        if anchor and anchor not in page.anchors:
            site.broken.append(f"{source}: {target}")
        link = (
            relpath(there, str(PurePosixPath(place).parent)) if there != place else ""
        )
        return link + (f"#{page.anchors[anchor]}" if anchor in page.anchors else "")

    for place, page in site.pages.items():
        if page.source:
            page.text = _outside_code(
                page.text,
                lambda t, p=place, s=page.source: _relinked(t, leads_to, p, s),
            )


def _relinked(text: str, leads_to: Callable[..., str], place: str, source: str) -> str:
    def new(m: re.Match[str]) -> str:
        return (
            m[0]
            if re.match(r"(?!site:)\w+:", m[2])
            else m[1] + leads_to(m[2], place, source) + m[3]
        )

    return LINK.sub(new, text)


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    parts = []
    last = 0
    for m in FENCE.finditer(text):
        parts += [change(text[last : m.start()]), m[0]]
        last = m.end()
    return "".join([*parts, change(text[last:])])


# --- the reference --------------------------------------------------------------------


def public_names(module: str, folder: str) -> list[str]:
    """The names in ``__all__`` of a module, which is read and not imported."""
    path = ROOT / folder / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.parse(file.read_text("utf-8")).body:
        if (
            isinstance(node, ast.Assign)
            and getattr(node.targets[0], "id", "") == "__all__"
        ):
            return [
                name for name in ast.literal_eval(node.value) if name != "__version__"
            ]
    return []


def modules() -> dict[str, str]:
    """All public modules -> the folder of sources in which they lie."""
    io = sorted(p.stem for p in (ROOT / "core/src/delegraph/io").glob("[a-z]*.py"))
    core = {
        f"delegraph.{name}": "core/src"
        for name in (*FLAT, *(f"io.{name}" for name in io))
    }
    return dict(sorted({**PACKAGES, **core}.items()))


def _examples() -> dict[str, str]:
    """Module, or ``Commands`` -> its section of docs/examples, which tests run, as a
    section of its page.
    """
    sections = {}
    for file in sorted(ROOT.glob("docs/examples/*.md")):
        page = _page(file.read_text("utf-8"), file.relative_to(ROOT).as_posix())
        starts = [(at, title) for at, level, title in headings(page.text) if level == 2]
        ends = [*(at for at, _ in starts[1:]), len(page.text)]
        for (at, title), end in zip(starts, ends, strict=True):
            sections[title] = (
                "\n## Examples\n" + page.text[at + len(f"## {title}") : end]
            )
    return sections


def _reference(site: Site, examples: dict[str, str]) -> Iterator[Any]:
    """A page for each public module, with its public names and examples; yields its
    entry of the navigation.
    """
    for module, folder in modules().items():
        names = public_names(module, folder)
        lines = [
            f"# {module}",
            "",
            *(line for name in names for line in (f"::: {module}.{name}", "")),
        ]
        place = f"reference/python/{module}.md"
        site.pages[place] = Page("\n".join(lines) + examples.get(module, ""))
        yield {module: place}


def _commands() -> str:
    """All commands with their help, as argparse has it."""
    sys.path[:0] = [
        str(ROOT / "programs/src"),
        str(ROOT / "core/src"),
        *map(str, sorted(ROOT.glob("plugins/*/src"))),
    ]
    from delegraph.discovery.first_party import COMMANDS

    specs = list(COMMANDS)
    for light in sorted(ROOT.glob("plugins/*/src/*/plugin.py")):
        module = importlib.import_module(f"{light.parent.name}.plugin")
        specs += getattr(module, "delegraph_commands", list)()
    parts = [
        "# Commands",
        "",
        (
            "As `delegraph COMMAND --help` prints it. Each also takes `--json` and"
            " `--debug`."
        ),
        "",
    ]
    for spec in sorted(specs, key=lambda s: s.name):
        parser = argparse.ArgumentParser(
            f"delegraph {spec.name}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module, _, name = spec.target.partition(":")
        getattr(importlib.import_module(module), name).add_arguments(parser)
        parts += [
            f"## delegraph {spec.name}",
            "",
            f"{spec.summary[:1].upper()}{spec.summary[1:]}.",
            "",
        ]
        parts += ["```text", parser.format_help().rstrip(), "```", ""]
    return "\n".join(parts)


def _schemas() -> str:
    """The forms of what commands print with ``--json``."""
    schema = json.loads(ROOT.joinpath("docs/schema.json").read_text("utf-8"))
    text = [
        "# JSON",
        "",
        (
            "What commands print with `--json`, as a JSON schema. A form is stable"
            " within its `schema` field."
        ),
        "",
    ]
    forms = schema.get("$defs", {})
    for name, form in sorted(forms.items()):
        text += [f"## {name}", "", "```json", json.dumps(form, indent=2), "```", ""]
    rest = {key: value for key, value in schema.items() if key != "$defs"}
    return "\n".join(
        [*text, "## The whole", "", "```json", json.dumps(rest, indent=2), "```", ""]
    )
