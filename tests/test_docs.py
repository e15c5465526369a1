"""The documents are true: generated pages are current, links lead somewhere, and what
the guides show runs.

A guide is executed from top to bottom in an empty folder. What is done with a fenced
block, its first line says:

    python            runs; all such blocks of a page share one namespace
    python file=PATH  (also toml) becomes a file
    python compiled   is only compiled: it needs a package that the tests do not have
    python in=PATH    (also toml) is an excerpt: the file has these lines
    diff              is applied to the files that it names
    sh                runs in a virtual environment of its own, laid over the one that runs the tests; without network
    sh slow           runs only with -m slow: in an empty environment, with network; of a tutorial with its other blocks
    text              is what the block before it prints, errors included; ... stands for what differs from run to run

``pytest --refresh-docs tests/test_docs.py`` writes what is printed into the blocks of
text that say something else, and keeps the ... of lines that still fit; with ``-m
slow``, those behind blocks of ``sh slow``.
"""

import contextlib
import doctest
import importlib.util
import io
import json
import linecache
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from delegraph import errors

from tests.support.environment import layered
from tests.support.pages import DISTRIBUTIONS, GUIDES, PAGES, TUTORIALS

pytest_plugins = ("pytester",)
ROOT = Path(__file__).parent.parent
COMMANDS = (
    "delegraph",
    "python3?",
    "pip",
    "pytest",
    "cd",
    "cat",
    r"eval .\$\(delegraph completion bash\)",
)
"""What a shell block may call."""
FIRST = "## A first backend in ten minutes\n"
"""The section whose commands test_scaffold_end_to_end.py runs; what comes after it goes
on with its package.
"""
EXAMINED = {
    "docs/guide/backends.md": "tosa,demo,devkit",
    "docs/backend-authors.md": "my-npu,devkit",
}
"""The plugins that a page's ``delegraph doctor`` examines."""
BEFORE = {
    "docs/backend-authors.md": (
        "delegraph new-backend my-npu",
        "pip install -q -e ./my-npu",
    ),
}
KINDS = re.compile(
    r"python|python compiled|(python|toml) file=\S+|(python|toml|cpp) in=\S+|diff|sh|sh"
    r" slow|text"
)


class Block(NamedTuple):
    """A fenced block: its first line without the fence, its text, and the number of the
    text's first line.
    """

    kind: str
    text: str
    line: int


def blocks_of(page):
    """The fenced blocks of a page, in order."""
    text = (ROOT / page).read_text()
    found = re.finditer(
        r"^```(?P<kind>.+)\n(?P<text>(?s:.*?))^```$", text, flags=re.MULTILINE
    )
    return [
        Block(m["kind"], m["text"], text.count("\n", 0, m.start()) + 2) for m in found
    ]


# --- generated pages, links, facts ----------------------------------------------------


def generator():
    spec = importlib.util.spec_from_file_location(
        "generate", ROOT / "docs" / "generate.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["backend-reference.md", "errors.md", "op-support.md"])
def test_a_generated_page_is_current(name):
    assert (ROOT / "docs" / name).read_text() == generator().PAGES[name](), (
        "run python docs/generate.py"
    )


def test_refusals_recorded_before_a_rule_are_not_shown(tmp_path, monkeypatch):
    pages = generator()
    record = json.loads(pages.SUPPORT.read_text())
    refused = {"rule": False} | {target: {pages.NO_RULE: 9} for target in pages.TARGETS}
    record["functions"]["aten.relu.default"] = refused
    (tmp_path / "support.json").write_text(json.dumps(record))
    monkeypatch.setattr(pages, "SUPPORT", tmp_path / "support.json")
    [row] = [
        line
        for line in pages.support_page().splitlines()
        if line.startswith("| `aten.relu.default`")
    ]

    assert row.startswith("| `aten.relu.default` | yes |")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_relative_links_lead_to_files(page):
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [t for t in targets if not (page.parent / t).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_within_a_page_lead_to_headings(page):
    text = page.read_text()
    headings = {_anchor(h) for h in re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)}
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= headings


def _anchor(heading):
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("document", ["LICENSE", "NOTICE"])
def test_each_distribution_carries_the_licence(distribution, document):
    assert (ROOT / distribution / document).read_bytes() == (
        ROOT / document
    ).read_bytes()


def test_the_distributions_share_one_version():
    versions = set()
    for distribution in DISTRIBUTIONS:
        text = (ROOT / distribution / "pyproject.toml").read_text()
        match = re.search(r'^version = "(.+)"$', text, flags=re.MULTILINE)
        versions.add(match[1])
    assert len(versions) == 1


def test_every_error_code_has_advice():
    assert sorted(generator().ADVICE) == sorted(errors.CODES)


# --- the guides -----------------------------------------------------------------------


@pytest.mark.parametrize("page", GUIDES)
def test_every_code_block_of_a_guide_is_tested(page):
    assert [b for b in blocks_of(page) if not KINDS.fullmatch(b.kind)] == []

    outside = re.sub(
        r"^```.+?^```$", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL
    )
    assert "```" not in outside

    outside = re.sub(
        rf"^{FIRST}.+?^(?=## )", "", outside, flags=re.MULTILINE | re.DOTALL
    )
    assert re.findall(r"\n\n    .+", outside) == [], (
        "an indented block, which nothing would test"
    )


SLOW = (
    "docs/examples/commands.md",
    "docs/guide/command-line.md",
    "docs/language-models.md",
    "docs/tutorials/first-backend.md",
)
"""Pages whose blocks take 10 to 20 s; fast tests of the plugins cover what they show."""
NEEDED = {"plugins/coreai_backend/README.md": "coreai_torch"}
"""Packages that a page uses and that requirements-dev.txt does not install."""


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow) if page in SLOW else page
        for page in GUIDES
    ],
)
def test_guide_blocks_run_and_print_the_output_shown(
    page, tmp_path, monkeypatch, refreshing
):
    if page in NEEDED:
        pytest.importorskip(NEEDED[page])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    # it looks into the folder of the page before
    monkeypatch.delitem(sys.path_importer_cache, ".", raising=False)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    # sizes that differ from those of the page before would be dynamic
    torch.compiler.reset()
    guide = Guide(page, layered(tmp_path / ".environment"), tmp_path, refreshing)
    for command in BEFORE.get(page, ()):
        guide.command(command)
    for block in blocks_of(page):
        guide.run(block)


def test_continuous_integration_runs_the_command_for_contributors():
    [command] = [b.text for b in blocks_of("CONTRIBUTING.md") if b.kind == "sh ci"]
    assert f"\n{command.strip()}\n" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "page", [p for p in TUTORIALS if any(b.kind == "sh slow" for b in blocks_of(p))]
)
def test_a_tutorial_runs_with_the_commands_that_take_long(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.path_importer_cache, ".", raising=False)
    guide = Guide(page, layered(tmp_path / ".environment"), tmp_path)
    for block in blocks_of(page):
        guide.run(block._replace(kind="sh") if block.kind == "sh slow" else block)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        p
        for p in GUIDES
        if p not in TUTORIALS and any(b.kind == "sh slow" for b in blocks_of(p))
    ],
)
def test_the_blocks_that_set_up_environments_run(page, tmp_path, refreshing):
    checkout = copy_checkout(tmp_path)
    guide = Guide(page, bare_environment(tmp_path), checkout, refreshing)
    listed = blocks_of(page)
    for block, following in zip(listed, [*listed[1:], None], strict=True):
        if block.kind == "sh slow":
            guide.command(block.text)
            if following is not None and following.kind == "text":
                guide.run(following)


@pytest.mark.slow
def test_the_first_section_for_authors_runs_from_a_checkout(tmp_path):
    checkout = copy_checkout(tmp_path)
    folder = tmp_path / "new"
    folder.mkdir()
    [install] = [b.text for b in blocks_of("README.md") if b.kind == "sh slow"]
    guide = (ROOT / "docs" / "backend-authors.md").read_text()
    _, _, after_heading = guide.partition(FIRST)
    section, _, _ = after_heading.partition("\n## ")
    indented_block = re.search(r"^((?:    \S.*\n)+)", section, flags=re.MULTILINE)
    commands = indented_block[1].replace("~/delegraph", str(checkout))
    script = f"cd {checkout}\n{install}cd {folder}\n{commands}"
    shell = ["bash", "-e", "-c", script]
    completed = subprocess.run(
        shell,
        cwd=folder,
        env=bare_environment(tmp_path),
        capture_output=True,
        text=True,
    )

    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert [w.name for w in (folder / "my-npu" / "dist").glob("*.whl")] == [
        "my_npu-0.1.0-py3-none-any.whl"
    ]


def copy_checkout(folder):
    """A copy of the checkout, as a user has it."""
    ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache")
    return shutil.copytree(ROOT, folder / "delegraph", ignore=ignored)


def bare_environment(folder):
    """The variables of an environment with nothing but Python, and with network."""
    kept = {
        k: v
        for k, v in os.environ.items()
        if k in ("HOME", "LANG") or k.startswith("PIP")
    }
    path = os.pathsep.join(
        [os.path.dirname(os.path.realpath(sys.executable)), os.defpath]
    )
    return {
        **kept,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PATH": path,
        "FOLDER": str(folder / "folder"),
    }


class Guide:
    """A page on its way from top to bottom: what its Python has defined, its shell's
    folder, what was printed last.
    """

    def __init__(self, page, environment, folder, refreshing=None):
        self.page = page
        self.environment = environment
        self.folder = folder
        self.refreshing = refreshing
        self.names = {"__name__": "__main__"}
        self.printed = None

    def run(self, block):
        """Do with a block what its kind says."""
        kind, _, argument = block.kind.partition(" ")
        how, _, path = argument.partition("=")
        {
            "python": self._python,
            "python file": self._file,
            "toml file": self._file,
            "python compiled": self._compiled,
            "python in": self._excerpt,
            "toml in": self._excerpt,
            "cpp in": self._excerpt,
            "diff": self._diff,
            "sh": self._shell,
            "sh slow": self._elsewhere,
            "text": self._text,
        }[f"{kind} {how}".strip()](block, self.folder / path)

    def _python(self, block, _):
        name = f"{self.page}:{block.line}"
        linecache.cache[name] = (
            len(block.text),
            None,
            block.text.splitlines(keepends=True),
            name,
        )
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(block.text, name, "exec", dont_inherit=True), self.names)
        self.printed = printed.getvalue()

    def _compiled(self, block, _):
        compile(block.text, f"{self.page}:{block.line}", "exec", dont_inherit=True)
        self.printed = None

    def _file(self, block, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text)

    def _excerpt(self, block, path):
        given = path if path.exists() else ROOT / path.relative_to(self.folder)
        assert block.text in given.read_text(), (
            f"{self.page}:{block.line}: {path} has other lines"
        )

    def _diff(self, block, _):
        apply = ["git", "apply", "-p0", "-"]
        completed = subprocess.run(
            apply, input=block.text, cwd=self.folder, capture_output=True, text=True
        )
        assert completed.returncode == 0, (
            f"{self.page}:{block.line}: {completed.stderr}"
        )

    def _elsewhere(self, block, _):
        self.printed = None

    def _shell(self, block, _):
        """Each line has to end well, unless a comment behind it says with which exit
        code it ends.
        """
        self.printed = ""
        for line in re.sub(r" *\\\n *", " ", block.text).splitlines():
            command, _, comment = line.partition("  #")
            if command.strip():
                self.command(
                    command, int((re.search(r"exit code (\d)", comment) or [0, 0])[1])
                )

    def command(self, line, code=0):
        """Run one line of shell, which has to end with ``code``, and take over the
        folder that it ends in.
        """
        allowed = "|".join(COMMANDS)
        assert re.match(rf"(\w+=\S+ )*({allowed})(?!\w)", line.strip()), (
            f"{self.page} calls {line.strip()!r}"
        )
        # it imports torch for each plugin: here for the one that counts
        if line.strip() == "delegraph doctor":
            line = f"DELEGRAPH_PLUGINS={EXAMINED[self.page]} {line}"
        script = f"{line}\nended=$?\npwd >{self.environment['FOLDER']}\nexit $ended"
        completed = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
        )
        assert completed.returncode == code, (
            f"{self.page}: {line}\n{completed.stdout}{completed.stderr}"
        )
        self.folder = Path(Path(self.environment["FOLDER"]).read_text().strip())
        self.printed = (
            (self.printed or "") + completed.stdout + (completed.stderr if code else "")
        )

    def _text(self, block, _):
        if self.printed is None:
            return
        if matches_with_gaps(block.text, self.printed):
            return
        wrong = (
            f"{self.page}:{block.line} says\n{block.text}and what is printed"
            f" is\n{self.printed}"
        )
        assert self.refreshing is not None, (
            f"{wrong}if the change is wanted: pytest --refresh-docs tests/test_docs.py"
        )
        self.refreshing[self.page, block] = refresh_text(block.text, self.printed)


# --- refreshing what they show --------------------------------------------------------


@pytest.fixture
def refreshing(request):
    """New texts of blocks, (page, block) -> text, to be written when the test ends;
    None without --refresh-docs.
    """
    if not request.config.getoption("refresh_docs"):
        yield None
        return
    texts = {}
    yield texts
    for (page, block), text in sorted(texts.items(), key=lambda item: -item[0][1].line):
        lines = (ROOT / page).read_text().splitlines(keepends=True)
        lines[block.line - 1 : block.line - 1 + block.text.count("\n")] = [text]
        (ROOT / page).write_text("".join(lines))


def matches_with_gaps(text, printed):
    """Whether ``text``, in which ... stands for anything, is what was printed."""
    return doctest.OutputChecker().check_output(
        text, printed, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    )


def refresh_text(text, printed):
    """What was printed, with the ... of ``text`` where lines, and words of changed
    lines, are as they were.
    """

    def line(old, new):
        words = (re.findall(r"\s*\S+", one) for one in (old, new))
        return "".join(merge_texts(*words, lambda old, new: new))

    new = "\n".join(
        [*merge_texts(text.splitlines(), printed.rstrip().splitlines(), line), ""]
    )
    return new if matches_with_gaps(new, printed) else printed.rstrip() + "\n"


def merge_texts(old, new, change):
    """``new``, in which what ``old`` says too is as it is there.

    Between two such, entries take the place of others, ``change(old, new)``, if they
    are as many; around a ... that stands alone, as many as there were before and after
    it.
    """
    result = []
    i = 0
    j = 0
    for a, b in [*in_common(old, new), (len(old), len(new))]:
        before = old[i:a]
        after = new[j:b]
        dots = [k for k, one in enumerate(before) if one.strip() == "..."]
        if dots:
            first = dots[0]
            last = len(before) - 1 - dots[-1]
            if first + last > len(after):
                first = last = 0
            end = len(after) - last
            result += map(change, before[:first], after[:first])
            result.append(before[dots[0]])
            result += map(change, before[dots[-1] + 1 :], after[end:])
        else:
            result += map(change, before, after) if len(before) == len(after) else after
        result += old[a : a + 1]
        i = a + 1
        j = b + 1
    return result


def in_common(old, new):
    """The longest list of places, in both ascending, where ``old`` says what stands in
    ``new``.
    """
    best = {(a, b): [] for a in range(len(old) + 1) for b in range(len(new) + 1)}
    for a in reversed(range(len(old))):
        for b in reversed(range(len(new))):
            best[a, b] = max(best[a + 1, b], best[a, b + 1], key=len)
            if old[a].strip() != "..." and matches_with_gaps(old[a], new[b]):
                best[a, b] = max(best[a, b], [(a, b), *best[a + 1, b + 1]], key=len)
    return best[0, 0]


SAID = """9 of 9 operators delegated
time: export ... ms, compile ... ms
...
compared with eager: error ...e-07
wrote model.tosa (13... bytes)
"""


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (("9 of 9", "10 of 10"), SAID.replace("9 of 9", "10 of 10")),
        (
            ("time: export", "seconds: lower"),
            SAID.replace("time: export", "seconds: lower"),
        ),
        (("one\ntwo\n", "one\ntwo\nthree\n"), SAID),
        (("wrote", "and\nwrote"), SAID.replace("wrote", "and\nwrote")),
        (
            ("9 of 9 operators delegated\n", ""),
            SAID.replace("9 of 9 operators delegated\n", ""),
        ),
        (
            ("wrote model", "wrote another"),
            SAID.replace(
                "wrote model.tosa (13... bytes)", "wrote another.tosa (13... bytes)"
            ),
        ),
    ],
)
def test_refreshing_a_block_keeps_placeholders_of_varying_text(change, wanted):
    printed = re.sub(r"^\.\.\.$", "one\ntwo", SAID, flags=re.MULTILINE)
    printed = (
        printed.replace("export ...", "export 2")
        .replace("compile ...", "compile 3")
        .replace("...", "2")
    )
    assert matches_with_gaps(SAID, printed)

    new = printed.replace(*change)
    assert new != printed
    assert refresh_text(SAID, new) == wanted


def test_refreshing_replaces_blocks_in_the_page(pytester, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tests")
    pytester.makeconftest((ROOT / "conftest.py").read_text())
    (pytester.path / "guide.md").write_text(GUIDE.format(2, 12))
    pytester.makepyfile("""
        import test_docs as docs
        from test_docs import Path, refreshing

        def test_it(monkeypatch, refreshing):
            monkeypatch.setattr(docs, "ROOT", Path(__file__).parent)
            guide = docs.Guide("guide.md", {}, docs.ROOT, refreshing)
            for block in docs.blocks_of("guide.md"):
                guide.run(block)
    """)

    def outcome(*options):
        return pytester.runpytest_inprocess("-q", "-p", "no:cacheprovider", *options)

    outcome().assert_outcomes(failed=1)
    outcome("--refresh-docs").assert_outcomes(passed=1)
    assert (pytester.path / "guide.md").read_text() == GUIDE.format("2\n3", "13")
    outcome().assert_outcomes(passed=1)


GUIDE = """# Guide
```python
print(1 + 1)
print(3)
```
between
```text
{}
```
```python
print("thirteen", 13)
```
```text
thirteen {}
```
"""
