"""Failures of Arm's compiler Vela become reasons in the report, wrong settings errors."""

import re

import delegraph
import pytest
import torch
from delegraph.errors import OptionError
from delegraph_ethosu.partitioner import user_arguments

INPUTS = (torch.randn(1, 3, 8, 8),)
FAKE_VELAS = {
    "crash": ("import os\nos.abort()\n", "Vela crashed with signal 6"),
    "hang": ("import time\ntime.sleep(60)\n", "Vela took more than 1 seconds"),
    "processor": (
        "print('CPU operators = 2 (10.0%)')\n",
        "Vela cannot put 2 operators of the delegate on the NPU",
    ),
    "nothing": ("print('fine')\n", "Vela wrote 0 command streams"),
    "operator": (
        (
            "raise RuntimeError('Non-passthrough operation (Conv2D) could not run on"
            " NPU')\n"
        ),
        r"Vela: Non-passthrough operation \(Conv2D\) could not run on NPU",
    ),
}
"""Failure -> the source of a module that fails so, and the reason in the report."""


@pytest.fixture(scope="module")
def program():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()).eval()
    return delegraph.quantize(model, [INPUTS], backend="ethosu")


def lower(program, **options):
    return delegraph.lower(program, backends=["ethosu"], options={"ethosu": options})


@pytest.mark.parametrize("kind", FAKE_VELAS)
def test_a_vela_that_does_not_compile_gives_the_partition_back(
    kind, program, tmp_path, monkeypatch, capfd
):
    source, reason = FAKE_VELAS[kind]
    (tmp_path / "ethosu").mkdir()
    (tmp_path / "ethosu/vela.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    lowered = lower(program, seconds=1 if kind == "hang" else 60)

    assert not lowered.delegates
    [row] = lowered.report.given_back
    assert re.search(reason, row.reason)
    if kind == "operator":
        assert str(row.source) == "module 0 (Conv2d)"
    expected = program.module(check_guards=False)(*INPUTS)
    torch.testing.assert_close(lowered(*INPUTS), expected)
    # the compiler's output is not printed
    assert capfd.readouterr() == ("", "")


WRONG_SETTINGS = {
    "unclosed": ({"flags": "--arena-cache-size '3"}, "No closing quotation"),
    "ours": ({"flags": "--system-config=Other"}, "set it by the option system_config"),
    "shortened": ({"flags": "--sys=Other"}, "set it by the option system_config"),
    "output": ({"flags": "--output-dir=/tmp"}, "--output-dir is not allowed here"),
    "unknown": ({"flags": "--no-such-flag"}, "unrecognized arguments: --no-such-flag"),
    "section": ({"memory_mode": "Other"}, "Memory_Mode.Other not found"),
    "file": ({"config": "other.ini"}, "File not found"),
    "tag": ({"weights_tag": "../weights"}, "a tag must consist of letters"),
    "seconds": ({"seconds": 0}, "a positive number"),
    "accelerator": ({"accelerator": "ethos-u55-512"}, "ethos-u55-512"),
}


@pytest.mark.parametrize("kind", WRONG_SETTINGS)
def test_a_wrong_setting_is_an_error(kind, program):
    options, message = WRONG_SETTINGS[kind]

    with pytest.raises(OptionError, match=message):
        lower(program, **options)


def test_vela_flags_are_split_as_in_a_shell():
    flags = "--arena-cache-size 4096 '--tensor-allocator=Greedy'"

    assert user_arguments(flags) == [
        "--arena-cache-size",
        "4096",
        "--tensor-allocator=Greedy",
    ]


def test_vela_prints_nothing_into_the_report_by_default(program):
    [delegate] = lower(program).report.delegates

    assert delegate.output == ""


def test_the_output_for_vela_flags_is_in_the_report(program):
    [delegate] = lower(program, flags="--verbose-performance").report.delegates

    assert "Performance for NPU" in delegate.output


def test_estimates_of_a_delegate_are_in_the_report(program):
    [delegate] = lower(program).report.delegates

    assert delegate.facts["estimated SRAM"].endswith(" KiB")
    assert "channels_last_borders" in delegate.facts["hint"]
    assert delegate.figures.keys() == {"estimated cycles", "estimated bytes moved"}


def test_estimates_are_attributed_to_lines(program):
    report = lower(program).report

    [delegate] = report.delegates
    cycles = delegate.figures["estimated cycles"]
    assert cycles > 0
    assert sum(row.figures["estimated cycles"] for row in report.figures) == cycles


def test_a_vela_up_to_4_2_gets_tosa_0_80(program, monkeypatch):
    monkeypatch.setattr("delegraph_ethosu.vela.version", lambda name: "4.2.0")
    partitioner = delegraph.get_partitioner("ethosu", accelerator="ethos-u55-64")

    [partition] = partitioner(program).partition_tags.values()

    specs = {spec.key: spec.value for spec in partition.compile_specs}
    assert specs["tosa_spec"] == b"TOSA-0.80+BI+u55"
