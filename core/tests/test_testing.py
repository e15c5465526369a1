"""The conformance kit: a good backend passes, and for every check there is a backend that fails that one."""

import functools
import importlib.util
import itertools
import json
import subprocess
import sys
from pathlib import Path

import delegraph_devkit as testing
import pytest
import torch
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.cli import main
from delegraph.discovery.registry import Registry
from delegraph.partitioner import CapabilityPartitioner
from delegraph.plugin import BackendSpec
from delegraph.program.verify import compare
from delegraph_devkit.check import Status
from delegraph_devkit.checks.malformed_blobs import _copies
from delegraph_devkit.lowering_attempt import random_calls
from delegraph_devkit.opinfo import operator_programs
from delegraph_devkit.programs import NOTHING, PROGRAMS
from delegraph_devkit.random_programs import random_program
from delegraph_devkit.reproduce import listing
from delegraph_devkit.subprocesses import worker
from delegraph_devkit.trial import disagreement, other_party
from torch.utils import _pytree as pytree

FILE = Path(__file__).parent / "contract_backends.py"
SPEC = importlib.util.spec_from_file_location("contract_backends", FILE)
backends = sys.modules["contract_backends"] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(backends)


def subject(register, **fields):
    return testing.Subject("good", register=register, **{"gate": 0, "randoms": 2, **fields})


def failures(report):
    return {r.name: r.message for r in report.results if r.status is Status.FAILED}


class TestGood(testing.BackendContract):
    backend = "good"
    gate = 40
    register = staticmethod(backends.register_good)

    @staticmethod
    def example():
        return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Sigmoid()).eval(), (torch.ones(2, 3),)


def test_the_class_has_one_method_for_each_check():
    methods = [name.removeprefix("test_") for name in dir(testing.BackendContract) if name.startswith("test_")]
    assert sorted(methods) == sorted(testing.CHECKS)
    assert all(check.purpose for check in testing.CHECKS.values())


def test_the_good_backend_passes_all_that_apply():
    report = testing.run_checks(subject(backends.register_good))
    assert report.passed, str(report)
    skipped = {r.name: r.message for r in report.results if r.status is Status.SKIPPED}
    assert list(skipped) == ["light_declaration"] and "no light module" in skipped["light_declaration"]
    figures = {r.name: r.figures for r in report.results}
    assert figures["numerics"]["programs"] > 5 and figures["numerics"]["largest_error"] < 1e-5
    assert figures["settings_and_data_delivered"]["named_data"] > 0
    assert figures["damaged_blob"]["truncations"] > 100 and figures["damaged_blob"]["changed"] > 100
    assert figures["deterministic"]["bytes"] > 1000


SAYS = {
    "order_of_a_set": "another hash seed gave something else: the blob of delegate 0 differs from byte 4",
    "counter": "the second time in one process",
    "module_stacks": "lowering changed meta['nn_module_stack'] of linear of the caller's program",
    "metadata": "the partitioner changed meta['stack_trace'] of sort (aten.sort.default)",
    "graph": "it may only set meta['delegation_tag']",
    "accepts_too_much": "preprocess raised Unsupported: layer_norm.default cannot be compiled",
    "no_reason": "aten.sort.default was left to the host with the reason ''",
    "raises": "the partitioner raised PluginFailed: partition of ChangedPartitioner",
    "crashes": "the process in which it was lowered and run was ended by SIGABRT",
    "wrong_relu": "the results differ from eager by more than 0.0001",
    "relu_loses_nan": "on program special values: torch.relu(x):",
    "clamp_loses_nan": "on program special values: torch.clamp(x, -1.0, 1.0):",
    "amax_loses_nan": "on program special values, matrix: torch.amax(x, 1):",
    "max_pool_loses_nan": "on program special values, image: F.max_pool2d(x, 2):",
    "int64_cut": "on program special values, int64: x + y:",
    "int8_saturates": "on program special values, int8: x + y:",
    "shares_buffers": "output 0 of the first call changed when the program was called again",
    "ignores_strides": "in another layout:",
    "runtime_raises": "the runtime raised ",
    "level_two": "with the option level=2: the partitioner raised ",
    "needs_a_call": "lowering failed: PluginFailed: partition of NeedsACall",
    "symbolic_sizes": "# exported with Dim.AUTO for every first dimension",
    "expects_schemas": "'CondOp' object has no attribute '_schema'",
    "one_at_a_time": "4 threads",
    "reads_sizes": "lowering fixed a dynamic size of the caller's program to 3",
    "unchecked": "option level=-1 raised PluginFailed: constructor of UncheckedLevel",
    "refuses_a_choice": "option level is declared as one of 1, 2, but 2 raised OptionError",
    "trusting": "loading the first 0 of",
    "crashing": "was ended by SIGABRT",
    "greedy": "raised MemoryError",
    "variable": "environment variables other than before (new: ('GOOD_BACKEND_WAS_HERE', '1'))",
    "keeps_programs": "a lowering left program mlp in memory",
    "takes_its_data": "the runtime's load changed the named data",
    "stranger": "which no node of the partition has",
}
"""Bad backend -> part of what its one failure says."""


ALSO = {"refuses_a_choice": {"options_run"}, "runtime_raises": {"control_flow"}}
"""Bad backend -> other checks that meet the same fault on their way."""


@pytest.mark.parametrize("name", SAYS)
def test_a_bad_backend_fails_exactly_its_check(name):
    check = next(c for c, named in backends.BAD.items() if name in named)
    failed = failures(testing.run_checks(subject(backends.BAD[check][name])))
    assert set(failed) == {check} | ALSO.get(name, set()), failed
    assert SAYS[name] in failed[check]
    assert "what to do: " in failed[check]
    if check not in ("options_validated", "unregistering_leaves_no_trace", "thread_safety"):
        assert "(torch.nn.Module):" in failed[check], "the program is shown"


# --- a failure as others see it


def failure(name, check, **fields):
    with pytest.raises(testing.CheckFailed) as caught:
        testing.CHECKS[check].run(subject(backends.BAD[check][name], **fields))
    return caught.value


@pytest.mark.parametrize(
    ("name", "check", "shows"),
    [
        ("max_pool_loses_nan", "numerics", "elements differ in being finite"),
        ("int64_cut", "numerics", "ratio 1"),
        ("no_reason", "accepted_compiles", "1 x aten.sort.default"),
    ],
)
def test_a_failure_is_shown_as_a_script_that_shows_it_again(name, check, shows, tmp_path):
    script = tmp_path / "again.py"
    script.write_text(failure(name, check).script)
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert shows in done.stdout, done.stdout


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_operator_of_opinfo_is_shown_without_opinfo(tmp_path):
    """As calls of operators on tensors that are written out, strides included."""
    seen = 0
    for program in itertools.islice(operator_programs(), 0, 60, 4):
        scope = {}
        text = listing(program)
        module, inputs = program.make(3)
        results = pytree.tree_leaves(module(*inputs))
        if text.startswith("# ") or any(getattr(r, "is_sparse", False) for r in results):
            continue
        exec(text, scope)
        found = compare(scope["model"](*scope["inputs"]), module(*inputs))
        assert random_calls(program.kept()[0]) or found.relative_error == 0, text
        assert [i.stride() for i in scope["inputs"]] == [i.stride() for i in inputs]
        assert "opinfo" not in text
        seen += 1
    assert seen > 8


def test_a_crash_costs_one_program_and_is_named():
    one = subject(backends.BAD["accepted_compiles"]["crashes"], operators=("tanh", "abs"))
    outcomes = {o.program: o for o in one.sweep.outcomes}
    fatal = [name for name, o in outcomes.items() if o.faults]
    assert "tanh, float32, sample 0" in fatal and all(name.startswith("tanh") for name in fatal)
    assert any(name.startswith("abs") and o.compared for name, o in outcomes.items())
    advice = failure("crashes", "accepted_compiles", operators=("tanh",)).advice
    assert "native code" in advice


def test_the_fault_of_torch_is_not_the_backend_s():
    """An exported masked_select believes that the result is no longer than the input, which it broadcasts."""
    one = subject(backends.register_good, operators=("masked_select",))
    programs = [p for p in operator_programs(("masked_select",)) if p.name == "masked_select, float32, sample 3"]
    [tried] = [one.attempt(p, p.exported()) for p in programs]
    assert "Runtime assertion failed" in disagreement(tried, one)[1].text
    assert other_party(tried, one).startswith("torch: the exported program raises RuntimeError")


def test_the_same_programs_are_tried_whatever_the_time():
    def tried():
        return [o.program for o in subject(backends.register_good, gate=8).sweep.outcomes]

    first = tried()
    assert first == tried() and len(first) == len(set(first)) == 14 + 9 + 5 + 8


def test_what_a_backend_declares_is_excused():
    """Only for the operator that it names, and only on unusual values."""

    def register(registry, known):
        spec = BackendSpec(
            *("good", "contract_backends:GoodBackend", "GoodBackend"),
            api=1,
            known_differences=known,
        )
        return registry.register(spec, partitioner=backends.GoodPartitioner, runtime=backends.LosesNaN)

    for known, status in (((("aten.relu.default", "loses NaN"),), Status.PASSED), ((), Status.FAILED)):
        one = subject(functools.partial(register, known=known))
        one.elsewhere = lambda *args, **kwargs: (_ for _ in ()).throw(testing.CheckSkipped("here"))
        result = testing.run_check(testing.CHECKS["numerics"], one)
        assert result.status is status, result.message
        assert result.figures.get("excused", 1) == 1


def test_no_byte_is_changed_without_a_checksum():
    module = subject(backends.register_good).lowered[0].lowered.delegates[0].module
    tried = [what for _, what, *_ in _copies(module, checksum=False)]
    assert any("without named data" in t for t in tried) and any("the first 8 of" in t for t in tried)
    assert not any(t.startswith("a copy with byte") for t in tried)


def test_a_slow_or_talking_light_module_is_a_warning(installed):
    installed("import time\nprint('welcome to good')\ntime.sleep(0.6)")
    report = testing.run_checks(testing.Subject("good", gate=0), ["light_declaration"])
    printed, slow = report.results[0].warnings
    assert report.passed
    assert "prints: 'welcome to good'" in printed and "takes 0." in slow
    assert "light_declaration: warning: reading the declarations of good-plugin takes" in str(report)


def test_one_operator_on_the_command_line(installed, capsys):
    installed()
    assert main(["check", "good", "--operator", "aten.relu.default", "--operator", "sin", "--verbose"]) == 0
    out = capsys.readouterr().out
    assert "ok      nn_functional_relu, float32, sample 0" in out
    assert "-       sin, float64, sample" in out and "only float32 tensors are computed" in out
    assert "good: 2 passed; " in out and "2 of 2 operators delegated at least once" in out


def test_a_delegate_that_hangs_is_ended():
    register = backends.WORSE["hanging"][1]
    result = testing.run_check(testing.CHECKS["damaged_blob"], subject(register))
    assert "loading the first 0 of" in result.message and "did not come to an end in time" in result.message


@pytest.mark.parametrize("name", ["arrays", "weights", "shared_store"])
def test_a_worse_backend_fails_several_checks(name):
    checks, register = backends.WORSE[name]
    assert checks <= set(failures(testing.run_checks(subject(register))))


def test_there_is_a_bad_backend_for_every_check():
    assert {*backends.BAD, "light_declaration"} == set(testing.CHECKS)
    assert {name for named in backends.BAD.values() for name in named} == set(SAYS)


PLUGIN = """
{heavy}
from delegraph.plugin import BackendSpec, PartitionerSpec, RuntimeSpec, hookimpl

@hookimpl
def delegraph_backends():
    return [BackendSpec(name="good", backend_id="GoodBackend", target="contract_backends:GoodBackend", api=1)]

@hookimpl
def delegraph_partitioners():
    return [PartitionerSpec("good", backend="good", target="contract_backends:GoodPartitioner", default=True)]

@hookimpl
def delegraph_runtimes():
    return [RuntimeSpec("good", target="contract_backends:GoodRuntime")]
"""


@pytest.fixture
def installed(site, monkeypatch):
    """Installs the good backend; its light module begins with the text that is given."""

    def install(heavy=""):
        site.plugin("good-plugin", PLUGIN.format(heavy=heavy))
        (site.folder / "contract_backends.py").write_text(FILE.read_text())
        made = Registry()
        monkeypatch.setattr("delegraph.discovery.registry._default", made)
        return made

    return install


def test_an_installed_backend_with_a_heavy_declaration_fails_exactly_that(installed):
    installed("import json\nimport numpy")
    failed = failures(testing.run_checks(testing.Subject("good", gate=0, randoms=2)))
    assert list(failed) == ["light_declaration"]
    assert "declarations of good-plugin imports numpy (imported at" in failed["light_declaration"]
    assert "good_plugin.py:3)" in failed["light_declaration"]


def test_the_command_line_runs_the_same_checks(installed, capsys, monkeypatch):
    installed()
    monkeypatch.setattr(testing, "QUICK_GATE", 0)
    assert main(["check", "good", "--quick", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "delegraph.check/1" and found["passed"] and found["backend"] == "good"
    assert [c["name"] for c in found["checks"]] == list(testing.CHECKS)
    assert {c["name"]: c["status"] for c in found["checks"] if c["status"] != "passed"} == {"options_run": "skipped"}


def test_the_command_line_shows_a_table_and_fails(installed, capsys):
    installed("import numpy")
    assert main(["check", "good", "--only", "light_declaration", "--only", "options_validated"]) == 1
    out = capsys.readouterr().out
    assert "light_declaration  failed   reading the declarations of good-plugin imports numpy" in out
    assert "good: 1 passed, 1 failed" in out


def test_the_command_line_takes_an_example(installed, capsys, tmp_path):
    installed()
    model = tmp_path / "model.py"
    model.write_text("import torch\ndef model():\n    return torch.nn.Linear(2, 2).eval(), (torch.ones(1, 2),)\n")
    code = main(["check", "good", "--only", "deterministic", "--example", str(model), "--json"])
    [result] = json.loads(capsys.readouterr().out)["checks"]
    assert code == 0, result
    assert result["figures"]["programs"] == 23


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["nothing"], "no installed plugin offers a backend 'nothing'"),
        (["good", "--operator", "no_such"], "torch's table of operators has no 'no_such'"),
        (["good", "--only", "luck"], "there is no check 'luck'; checks: light_declaration"),
        (["good", "--option", "size=1"], "has no option 'size'"),
        (["good", "--example", "missing.py"], "there is no file missing.py"),
    ],
)
def test_wrong_usage(arguments, said, installed, capsys):
    installed()
    assert main(["check", *arguments]) == 2
    assert said in capsys.readouterr().err


class NothingBackend(BackendDetails):
    @staticmethod
    def preprocess(edge_program, compile_specs):
        return PreprocessResult(b"")


def test_a_backend_that_takes_nothing_is_told_so():
    refuse = CapabilityPartitioner(lambda node: "no", "NothingBackend")
    made = testing.Subject("n", register=lambda r: r.register(NothingBackend, partitioner=refuse, name="n"), gate=0)
    results = {r.name: r for r in testing.run_checks(made).results}
    assert "took nothing of 36 programs" in results["accepted_compiles"].message
    assert "give an example" in results["accepted_compiles"].message
    assert results["numerics"].message == "backend 'n' has no runtime on this host, so nothing can be run"
    assert "another process cannot import it" in results["deterministic"].message
    assert results["debug_handles"].status is Status.SKIPPED


@pytest.mark.parametrize("program", [*PROGRAMS, *NOTHING], ids=lambda p: p.name)
def test_the_programs_run_and_export(program):
    module, inputs = program.make(3)
    module(*inputs)
    assert program.exported() is not None
    assert not program.batched or program.exported(dynamic=True) is not None


def test_random_programs_are_reproducible_and_have_what_they_are_for():
    programs = [random_program(seed) for seed in range(60)]
    assert [p.source for p in programs] == [random_program(seed).source for seed in range(60)]
    texts = "\n".join(p.source for p in programs)
    assert all(form in texts for form in (".split(", ".transpose(", ".narrow(", "torch.cat(", "_()", "Parameter"))
    for program in programs[:20]:
        module, inputs = program.make(3)
        before = [i.clone() for i in inputs]
        module(*inputs)
        assert all(torch.equal(a, b) for a, b in zip(before, inputs, strict=True)), "inputs are not written"


def test_operator_programs_keep_torch_as_it_is():
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    stream = operator_programs()
    first = [next(stream) for _ in range(30)]
    assert len({p.name for p in first}) == 30
    assert sum(p.exported() is not None for p in first) >= 25
    assert torch.equal(state, torch.get_rng_state()) and threads == torch.get_num_threads()
    torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark  # OpInfo's import forbids that; it is undone
    assert "expecttest" not in sys.modules or importlib.util.find_spec("expecttest")


def test_a_worker_tells_how_a_job_ended():
    run = worker(1).run
    assert "raised TypeError" in run("os:times", 3, seconds=20).failure
    assert "raised ModuleNotFoundError" in run("no_such_module:f", seconds=20).failure
    assert run("builtins:max", 3, seconds=20).failure.startswith("raised TypeError")
    assert run("contextlib:nullcontext", seconds=20).failure.startswith("raised")
