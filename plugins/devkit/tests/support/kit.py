"""Run the kit on the backends of bad_backends.py, with few programs."""

import re

import delegraph_devkit as devkit
import pytest
from delegraph_devkit.check import Status

from . import bad_backends as backends


def backend_under_test(register, **fields):
    return devkit.BackendUnderTest(
        "good", register=register, **{"gate": 0, "randoms": 2, **fields}
    )


def failed_checks(report):
    return {
        result.name: result.message
        for result in report.results
        if result.status is Status.FAILED
    }


def failure_of(name, check, **fields):
    with pytest.raises(devkit.CheckFailed) as caught:
        devkit.CHECKS[check].run(
            backend_under_test(backends.BAD[check][name], **fields)
        )
    return caught.value


CACHES = re.compile(r"__pycache__|\.\w+_cache")


def contents_of_files(folder):
    """Return path -> text, without caches of Python and linters."""
    files = {str(p.relative_to(folder)): p for p in folder.rglob("*") if p.is_file()}
    return {path: p.read_text() for path, p in files.items() if not CACHES.search(path)}
