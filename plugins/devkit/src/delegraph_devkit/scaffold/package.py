"""Write the package of a new backend, whole or not at all."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from delegraph.errors import WriteError

from .names import Names

_HERE = Path(__file__).parent
TEMPLATE = _HERE / "template"
DEVICE_TEMPLATE = _HERE / "device_template"
TOSA_TEMPLATE = _HERE / "tosa_template"
TOSA_DEVICE_TEMPLATE = _HERE / "tosa_device_template"
FILES = (
    ".gitignore",
    "README.md",
    "example.py",
    "pyproject.toml",
    *(
        f"src/acme_npu/{name}.py"
        for name in ("__init__", "backend", "blob", "instructions")
    ),
    *(f"src/acme_npu/{name}.py" for name in ("partitioner", "plugin", "runtime")),
    "src/acme_npu/py.typed",
    "tests/test_contract.py",
    "tests/test_numerics.py",
)
"""The template's files; its folder may also contain files of Python, pip and linters."""
DEVICE_FILES = (
    "README.md",
    "pyproject.toml",
    "src/acme_npu/runtime.py",
    "tests/test_device.py",
    "src/acme_npu/device/acme_npu.cpp",
    "src/acme_npu/device/CMakeLists.txt",
)
"""Files of a package that has a device half; three replace files of the template."""
TOSA_FILES = (
    "README.md",
    "pyproject.toml",
    "tests/test_contract.py",
    "tests/test_numerics.py",
    *(
        f"src/acme_npu/{name}.py"
        for name in ("backend", "instructions", "partitioner", "plugin", "runtime")
    ),
)
"""Files of a package for a device that reads TOSA; they replace the template's."""
TOSA_DEVICE_FILES = (
    "README.md",
    "pyproject.toml",
    "tests/test_device.py",
    "src/acme_npu/device/acme_npu.cpp",
    *(
        f"src/acme_npu/{name}.py"
        for name in ("backend", "blob", "instructions", "runtime")
    ),
)
"""Files of a package with TOSA and a device half; they replace files of both."""


def generate(
    names: Names, folder: Path, device: bool = False, tosa: bool = False
) -> list[str]:
    """Write the package to a new or empty ``folder``; return the paths of its files.

    With ``device``, it has a device half for ExecuTorch's runtime. With ``tosa``, its
    compiler reads TOSA. Raises WriteError, and then leaves no file.
    """
    sources = {path: TEMPLATE for path in FILES}
    if device:
        sources |= {path: DEVICE_TEMPLATE for path in DEVICE_FILES}
    if tosa:
        sources |= {path: TOSA_TEMPLATE for path in TOSA_FILES}
    if tosa and device:
        sources |= {path: TOSA_DEVICE_TEMPLATE for path in TOSA_DEVICE_FILES}
    elif tosa:
        del sources["src/acme_npu/blob.py"]
    try:
        target = folder.resolve()
        _check_place(folder, target)
        with tempfile.TemporaryDirectory(
            dir=target.parent, prefix=f".{target.name}."
        ) as temporary:
            made = Path(temporary, target.name)
            paths = [
                _write(template, path, made, names)
                for path, template in sources.items()
            ]
            # replaces an empty folder; fails for any other
            os.rename(made, target)
    except WriteError:
        raise
    except OSError as e:
        raise WriteError(
            "write-failed", f"cannot write {folder}: {e.strerror or e}"
        ) from e
    return paths


def _check_place(folder: Path, target: Path) -> None:
    why = None
    if target.exists() and not target.is_dir():
        why = "it is a file"
    elif target.is_dir() and any(target.iterdir()):
        why = "the folder is not empty"
    elif target == Path.cwd():
        why = "it is the current folder; name a new one"
    elif not target.parent.is_dir():
        why = f"there is no folder {target.parent}"
    if why is not None:
        raise WriteError("write-failed", f"cannot write {folder}: {why}")


def _write(template: Path, path: str, folder: Path, names: Names) -> str:
    renamed = _rename(path, names)
    target = folder / renamed
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(_rename((template / path).read_text("utf-8"), names).encode())
    return renamed


def _rename(text: str, names: Names) -> str:
    """Replace the template's four names in one pass: a new name may contain one of
    them.
    """
    new = {
        "acme-npu-plugin": names.distribution,
        "acme-npu": names.backend,
        "acme_npu": names.package,
        "AcmeNpu": names.prefix,
    }
    return re.sub("|".join(new), lambda found: new[found[0]], text)
