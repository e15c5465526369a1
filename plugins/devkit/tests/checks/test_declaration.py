"""Light modules that import much, are slow, or print."""

import re

import delegraph_devkit as devkit
import pytest
from delegraph_devkit.check import Status

from ..support import bad_backends as backends
from ..support.kit import backend_under_test, failed_checks


def test_slow_or_printing_light_modules_are_warnings(installed):
    installed("import time\nprint('welcome to good')\ntime.sleep(0.6)")
    report = devkit.run_checks(
        devkit.BackendUnderTest("good", gate=0), ["light_declaration"]
    )
    printed, slow = report.results[0].warnings
    assert report.passed
    assert "prints: 'welcome to good'" in printed
    assert re.search(r"takes \d+\.\d s", slow)
    assert (
        "light_declaration: warning: reading the declarations of good-plugin takes"
        in str(report)
    )


def test_option_values_without_a_device_are_only_compiled():
    register = backends.registration_of(
        partitioner=backends.TellsTheLevel, runtime=backends.HasNoDeviceOfLevelTwo
    )
    result = devkit.run_check(
        devkit.CHECKS["options_run"], backend_under_test(register)
    )
    assert result.status is Status.PASSED, result.message
    assert result.figures == {"values": 1, "only_compiled": 1}


@pytest.mark.parametrize(
    "checks",
    [
        ["light_declaration", "options_validated"],
        pytest.param(None, marks=pytest.mark.slow),
    ],
    ids=["two", "all"],
)
def test_heavy_declarations_fail_only_light_declaration(installed, checks):
    installed("import json\nimport numpy")
    failed = failed_checks(
        devkit.run_checks(devkit.BackendUnderTest("good", gate=0, randoms=2), checks)
    )
    assert list(failed) == ["light_declaration"]
    assert (
        "declarations of good-plugin imports numpy (imported at"
        in failed["light_declaration"]
    )
    assert "good_plugin.py:3)" in failed["light_declaration"]
