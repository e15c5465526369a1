"""Python in a process of its own."""

import os
import subprocess
import sys


def run_python(*arguments, path=None, cwd=None, **variables):
    """Run Python with ``path`` at the front of its search path, and of delegraph's
    variables only those given.
    """
    environ = {
        k: v for k, v in os.environ.items() if not k.startswith("DELEGRAPH")
    } | variables
    if path is not None:
        environ["PYTHONPATH"] = os.pathsep.join(
            [str(path), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
    return subprocess.run(
        [sys.executable, *arguments],
        env=environ,
        cwd=cwd,
        capture_output=True,
        text=True,
    )
