"""Virtual environments on top of this one."""

import os
import shlex
import site
import sys
import venv


def layered(folder):
    """Return variables of an environment that has these packages and installs into
    ``folder``.
    """
    venv.create(folder, with_pip=False)
    [packages] = folder.glob("lib/*/site-packages")
    below = [
        p
        for p in [
            *os.environ.get("PYTHONPATH", "").split(os.pathsep),
            *site.getsitepackages(),
        ]
        if p
    ]
    (packages / "below.pth").write_text(
        f"import site; list(map(site.addsitedir, {below!r}))\n"
    )
    for name in ("delegraph", "pip", "pytest"):
        command = folder / "bin" / name
        python = f"{folder}/bin/python -m {name}"
        # which imports no torch, and asks Python what environment it is in
        if name != "pip":
            start = (
                f"import runpy, site, sys; site.addsitedir({str(packages)!r});"
                f" sys.executable = '{folder}/bin/python'"
            )
            start = (
                f"{start}; runpy.run_module({name!r}, run_name='__main__',"
                " alter_sys=True)"
            )
            python = f"{sys.executable} -c {shlex.quote(start)}"
        command.write_text(f'#!/bin/sh\nexec {python} "$@"\n')
        command.chmod(0o755)
    # pages show what goes to a pipe, of any width
    others = ("DELEGRAPH", "PYTEST", "PYTHON", "PIP", "COLUMNS")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(others)}
    path = os.pathsep.join([str(folder / "bin"), kept.get("PATH", os.defpath)])
    pip = {
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    return {
        **kept,
        **pip,
        "PATH": path,
        "OMP_NUM_THREADS": "1",
        "FOLDER": str(folder / "folder"),
    }
