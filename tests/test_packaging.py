"""Wheels build without a network, and work without the checkout."""

import email
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
DISTRIBUTIONS = (
    *(
        "core",
        "plugins/analysis",
        "plugins/coreai_backend",
        "plugins/demo_backend",
        "plugins/devkit",
        "plugins/dynamo",
    ),
    *(
        "plugins/engines",
        "plugins/ethosu_backend",
        "plugins/executorch_backend",
        "plugins/iree_backend",
    ),
    *(
        "plugins/onnx_backend",
        "plugins/openvino_backend",
        "programs",
        "plugins/quantize",
        "plugins/tosa_backend",
    ),
    *(
        "plugins/transformers",
        "plugins/vgf_backend",
        "plugins/vision",
        "plugins/workers",
    ),
)
"""In the order of their names."""
# tests of what it makes
TEMPLATES = re.compile("delegraph_devkit/scaffold/(tosa_)?(device_)?template/tests/")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheels")
    sources = [str(ROOT / d) for d in DISTRIBUTIONS]
    pip(
        "wheel",
        "--no-build-isolation",
        "--no-deps",
        "--wheel-dir",
        str(folder),
        *sources,
    )
    return sorted(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def sdists(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sdists")
    for d in DISTRIBUTIONS:
        command = [
            sys.executable,
            "-m",
            "build",
            "--sdist",
            "--no-isolation",
            "--outdir",
            str(folder),
            str(ROOT / d),
        ]
        subprocess.run(command, check=True, capture_output=True, text=True)
    return sorted(folder.glob("*.tar.gz"))


@pytest.fixture(scope="module")
def installed(wheels, tmp_path_factory):
    folder = tmp_path_factory.mktemp("installed")
    pip(
        "install",
        "--no-deps",
        "--no-index",
        "--no-compile",
        "--target",
        str(folder),
        *map(str, wheels),
    )
    return folder


def pip(*arguments):
    command = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "-q",
        *arguments,
    ]
    subprocess.run(command, check=True, capture_output=True, text=True)


def run_delegraph(installed, *arguments):
    """Run the command with the wheels first on the path, in an empty folder."""
    return run_python(installed, "-m", "delegraph", *arguments)


def run_python(installed, *arguments):
    environ = {k: v for k, v in os.environ.items() if not k.startswith("DELEGRAPH")} | {
        "PYTHONPATH": str(installed)
    }
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=environ, cwd=installed.parent, capture_output=True, text=True
    )


IMPORTING = """
import json
from delegraph_devkit.doctor.probe import target_faults
from delegraph.discovery.registry import Registry

rows = []
for record in Registry().plugins():
    faults = [fault.error for fault in target_faults(record) if fault.status != "ok"]
    rows.append([record.location, faults if record.status in ("ok", "unavailable") else [record.error, *faults]])
print(json.dumps(rows))
"""
"""The place of each plugin, and what keeps its targets from being imported."""


def test_the_wheels_are_pure_and_typed(wheels):
    names = [w.name.split("-")[0] for w in wheels]
    plugins = (
        "analysis",
        "coreai",
        "demo",
        "devkit",
        "dynamo",
        "engines",
        "ethosu",
        "executorch",
        "iree",
        "onnx",
        "openvino",
        "programs",
        "quantize",
        "tosa",
        "transformers",
        "vgf",
        "vision",
    )
    of_plugins = [f"delegraph_{name}" for name in (*plugins, "workers")]

    assert names == ["delegraph", *of_plugins]
    for wheel, package in zip(wheels, names, strict=True):
        assert wheel.name.endswith("-py3-none-any.whl")
        files = zipfile.ZipFile(wheel).namelist()
        assert f"{package}/py.typed" in files
        assert not [
            f for f in files if "tests/" in TEMPLATES.sub("", f) or f.endswith(".pyc")
        ]
        assert {f.split("/")[0].split("-")[0] for f in files} == {package}


def contents_of_archive(archive):
    """Return the bytes of each file. The first folder of an sdist is removed from
    paths.
    """
    if archive.suffix == ".whl":
        wheel = zipfile.ZipFile(archive)
        return {name: wheel.read(name) for name in wheel.namelist()}
    with tarfile.open(archive) as sdist:
        return {
            m.name.partition("/")[2]: sdist.extractfile(m).read()
            for m in sdist.getmembers()
            if m.isfile()
        }


@pytest.mark.parametrize(
    "kind", ["wheels", pytest.param("sdists", marks=pytest.mark.slow)]
)
def test_archives_have_the_readme_license_and_classifiers(kind, request):
    archives = request.getfixturevalue(kind)
    assert len(archives) == len(DISTRIBUTIONS)
    for archive, folder in zip(archives, DISTRIBUTIONS, strict=True):
        files = contents_of_archive(archive)
        [name] = [f for f in files if f.endswith(("dist-info/METADATA", "PKG-INFO"))]
        metadata = email.message_from_bytes(files[name])
        assert metadata["Description-Content-Type"] == "text/markdown"
        assert (
            metadata.get_payload(decode=True).decode()
            == (ROOT / folder / "README.md").read_text()
        )
        assert metadata["Author"] == "The delegraph authors"
        assert metadata["License-Expression"] == "BSD-3-Clause"
        assert "pytorch" in metadata["Keywords"].split(",")
        assert {"Typing :: Typed", "Operating System :: POSIX :: Linux"} <= set(
            metadata.get_all("Classifier")
        )
        assert metadata.get_all("License-File") == ["LICENSE", "NOTICE"]
        for document in ("LICENSE", "NOTICE"):
            [packed] = [
                f for f in files if f.endswith(f"licenses/{document}") or f == document
            ]
            assert files[packed] == (ROOT / document).read_bytes()


@pytest.mark.slow
def test_sdists_contain_all_sources_and_test_files(sdists):
    """.gitignore names some test files by their suffix."""
    for archive, folder in zip(sdists, DISTRIBUTIONS, strict=True):
        parts = (ROOT / folder / part for part in ("src", "tests"))
        there = {
            p.relative_to(ROOT / folder)
            for part in parts
            for p in part.rglob("*")
            if p.is_file()
        }
        kept = {
            p.as_posix()
            for p in there
            if not any(d.startswith((".", "__pycache__")) for d in p.parent.parts)
        }
        assert kept - contents_of_archive(archive).keys() == set()


def test_allowed_torch_releases_equal_the_tested_ones():
    [declared] = re.findall(
        r'"(torch[<>=]+.+?)"', (ROOT / "core" / "pyproject.toml").read_text()
    )
    page = (ROOT / "docs" / "compatibility.md").read_text()
    tried = re.findall(r"^\| ([\d.]+) \|", page, flags=re.MULTILINE)
    assert f"`{declared}`" in page
    assert [Requirement(declared).specifier.contains(release) for release in tried] == [
        True
    ] * len(tried)

    first, last = re.findall(r"\d+\.(\d+)", declared)
    assert [int(release.split(".")[1]) for release in tried] == [
        *range(int(first), int(last))
    ]


def test_install_commands_name_the_version_of_torch():
    """Otherwise pip takes the newest one, with gigabytes of CUDA libraries."""
    assert "\ntorch==2.13.0\n" in (ROOT / "requirements-dev.txt").read_text()
    pages = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("programs/*.md"),
        *ROOT.glob("core/*.md"),
        ROOT / ".ci" / "run",
    ]
    lines = [
        line
        for page in pages
        for line in page.read_text().splitlines()
        if "pip install" in line
    ]
    bringing = [
        line
        for line in lines
        if re.search(r"pip install\b.*( delegraph| [^ ]*/core)\b(?!-)", line)
    ]

    assert bringing
    assert [
        line
        for line in bringing
        if not re.search(r"pip install (-q )?torch==2\.13\.0 ", line)
    ] == []


def test_both_plugins_are_listed_from_the_wheels(installed):
    completed = run_delegraph(installed, "backends", "--json")
    assert completed.returncode == 0, completed.stderr

    found = {b["name"]: b for b in json.loads(completed.stdout)["backends"]}
    usable = dict.fromkeys(["compiler-demo", "demo", "tosa"], "ok")
    expected = {
        "xnnpack": ["executorch"],
        "vulkan": ["executorch"],
        "coreml": ["executorch", "coremltools"],
        "iree": ["iree"],
        "vgf": ["model_converter"],
        "ethosu": ["ethosu"],
        "openvino": ["openvino"],
        "onnx": ["onnx", "onnxscript", "onnxruntime"],
        "coreai": ["coreai", "coreai_torch"],
    }
    bridged = {
        name: "ok" if all(map(find_spec, needs)) else "unavailable"
        for name, needs in expected.items()
    }
    assert {n: b["status"] for n, b in found.items()} == usable | bridged

    for name, row in ((name, found[name]) for name in usable):
        package = f"delegraph_{name.removeprefix('compiler-')}"
        assert row["location"] == str(installed / package / "plugin.py")


def test_everything_that_the_wheels_declare_can_be_imported(installed):
    """``doctor`` does the same in a process for each; one process imports torch once."""
    completed = run_python(installed, "-c", IMPORTING)
    assert completed.returncode == 0, completed.stderr
    rows = json.loads(completed.stdout.splitlines()[-1])
    assert len(rows) > 10
    assert all(place.startswith(str(installed)) for place, _ in rows)
    assert [fault for _, faults in rows for fault in faults] == []


def test_the_package_knows_its_version(installed):
    metadata = next(installed.glob("delegraph-*.dist-info"))
    assert run_delegraph(installed, "--version").stdout.split() == [
        "delegraph",
        metadata.name.split("-")[1][: -len(".dist")],
    ]


def test_the_wheel_can_write_a_new_backend(installed, tmp_path):
    completed = run_delegraph(
        installed, "new-backend", "my-npu", str(tmp_path / "my-npu"), "--json"
    )
    assert completed.returncode == 0, completed.stderr

    written = {
        str(p.relative_to(tmp_path / "my-npu"))
        for p in (tmp_path / "my-npu").rglob("*")
        if p.is_file()
    }
    assert written == set(json.loads(completed.stdout)["files"])
    assert {
        ".gitignore",
        "pyproject.toml",
        "src/my_npu/py.typed",
        "tests/test_contract.py",
    } < written
