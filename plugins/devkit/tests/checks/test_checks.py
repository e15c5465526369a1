"""A good backend passes all checks, and each check finds its bad backends."""

import sys

import delegraph_devkit as devkit
import pytest
from delegraph_devkit.check import Status
from delegraph_devkit.opinfo import call_names
from delegraph_devkit.special_values import special_programs
from delegraph_devkit.trial import try_program

from ..support import bad_backends as backends
from ..support.kit import backend_under_test, failed_checks, failure_of


@pytest.mark.slow  # TestGood in test_contract.py runs the same checks by default
def test_the_good_backend_passes_all_that_apply():
    report = devkit.run_checks(backend_under_test(backends.register_good))
    assert report.passed, str(report)
    skipped = {
        result.name: result.message
        for result in report.results
        if result.status is Status.SKIPPED
    }
    assert list(skipped) == ["light_declaration"]
    assert "no light module" in skipped["light_declaration"]
    figures = {result.name: result.figures for result in report.results}
    assert figures["numerics"]["programs"] > 5
    assert figures["numerics"]["largest_error"] < 1e-5
    assert figures["settings_and_data_delivered"]["named_data"] > 0
    assert figures["damaged_blob"]["truncations"] > 100
    assert figures["damaged_blob"]["changed"] > 100
    assert figures["deterministic"]["bytes"] > 1000


SAYS = {
    "order_of_a_set": (
        "another hash seed gave another result: the blob of delegate 0 differs from"
        " byte 4"
    ),
    "counter": "the second time in one process",
    "module_stacks": (
        "lowering changed meta['nn_module_stack'] of linear of the caller's program"
    ),
    "metadata": (
        "the partitioner changed meta['stack_trace'] of sort (aten.sort.default)"
    ),
    "graph": "it may only set meta['delegation_tag']",
    "accepts_too_much": (
        "preprocess raised Unsupported: layer_norm.default cannot be compiled"
    ),
    "no_reason": "the partitioner refused aten.sort.default with the reason ''",
    "raises": "the partitioner raised PluginFailed: partition of ChangedPartitioner",
    "crashes": "the process that lowered and ran it was ended by SIGABRT",
    "wrong_relu": "the results differ from eager by more than 0.0001",
    "relu_loses_nan": "on program special values: torch.relu(x):",
    "clamp_loses_nan": "on program special values: torch.clamp(x, -1.0, 1.0):",
    "amax_loses_nan": "on program special values, matrix: torch.amax(x, 1):",
    "max_pool_loses_nan": "on program special values, image: F.max_pool2d(x, 2):",
    "maximum_loses_nan": "on program special values, two: torch.maximum(x, y):",
    "softmax_of_infinity": "on program special values, matrix: torch.softmax(x, 1):",
    "int64_add_cut": "on program special values, int64: x + y:",
    "int64_mul_cut": "on program special values, int64: x * y:",
    "int8_saturates": "on program special values, int8: x + y:",
    "uint8_saturates": "on program special values, uint8: x + y:",
    "ignores_strides": "the results are right for inputs in C order",
    "writes_inputs": "a delegate changed its input 0",
    "runtime_raises": "the runtime raised ",
    "level_two": "with the option level=2: the partitioner raised ",
    "needs_a_call": "lowering failed: PluginFailed: partition of NeedsACall",
    "crashes_without_calls": (
        "preprocess of a program without calls was ended by SIGABRT"
    ),
    "crashes_in_branches": "on program branches:",
    "crashes_at_symbolic_sizes": (
        "n = torch.export.Dim('n', min=1, max=8)  # for every first dimension"
    ),
    "crashes_in_threads": (
        "compiling all samples by 4 threads, the process was ended by SIGABRT"
    ),
    "symbolic_sizes": (
        "n = torch.export.Dim('n', min=1, max=8)  # for every first dimension"
    ),
    "expects_schemas": "'CondOp' object has no attribute '_schema'",
    "one_at_a_time": "preprocess, called for 4 threads, raised ",
    "shares_a_dict": "calls returned other results than in one thread",
    "shares_a_result": "calls returned other results than in one thread",
    "raises_in_threads": "a call raised RuntimeError: not in this thread",
    "aborts_in_threads": (
        "calling delegates in 4 threads, the process was ended by SIGABRT"
    ),
    "reads_sizes": "lowering fixed a dynamic size of the caller's program to 3",
    "unchecked": "option level=-1 raised PluginFailed: constructor of UncheckedLevel",
    "refuses_a_choice": (
        "option level is declared as one of 1, 2, but 2 raised OptionError"
    ),
    "trusting": "loading the first 0 of",
    "crashing": "was ended by SIGABRT",
    "greedy": "raised MemoryError",
    "variable": ("environment variables changed (new: ('GOOD_BACKEND_WAS_HERE', '1'))"),
    "dtype": "changed torch's default dtype from torch.float32 to torch.float64",
    "draws": "torch's random state changed",
    "starts_threads": " more threads than after the first program",
    "opens_files": " more open files than after the first program",
    "keeps_programs": "but its lowering left program mlp in memory",
    "takes_its_data": "the runtime's load changed the named data",
    "tells_tensors": "returned Tensor for ",
    "tells_by_number": (
        "observe returned values for 0, but for no key of a debug handle map"
    ),
    "observes_others": "outputs of observe differ from outputs of load",
    "times_by_number": (
        "profile returned times for 0, but for no key of a debug handle map"
    ),
    "profiles_others": "outputs of profile differ from outputs of load",
    "knows_no_version": (
        "compatible returned 'cannot' for a blob that runs on this host: of version 0"
    ),
    "reads_beyond": (
        "compatible raised IndexError: index out of range; the header: 0 bytes"
    ),
    "stranger": "no node of the partition has it",
}
"""Bad backend -> part of the message of its one failure."""


OPERATORS = {
    "relu_loses_nan": "relu",
    "maximum_loses_nan": "aten.maximum.default",
    "clamp_loses_nan": "clamp",
    "max_pool_loses_nan": "nn.functional.max_pool2d",
    "softmax_of_infinity": "softmax",
    "int64_add_cut": "add",
    "int64_mul_cut": "mul",
    "int8_saturates": "add",
    "uint8_saturates": "aten.add.Tensor",
}
"""Backend that is right for ordinary values -> a name of the operator."""


@pytest.mark.parametrize("name", OPERATORS)
def test_chosen_operators_are_tried_on_special_values(name):
    one = backend_under_test(backends.BAD["numerics"][name])
    special = list(special_programs(call_names([OPERATORS[name]])))
    wrong = [o.program for p in special for o in try_program(p, one) if o.faults]
    assert SAYS[name] in [f"on program {program}:" for program in wrong]
    assert len(special) <= 24, "other operators are not tried"


@pytest.mark.slow
@pytest.mark.parametrize("name, operator", [*OPERATORS.items(), ("wrong_relu", "relu")])
def test_checks_of_one_operator_find_its_fault(name, operator):
    one = backend_under_test(backends.BAD["numerics"][name], operators=(operator,))
    results = [
        devkit.run_check(devkit.CHECKS[check], one)
        for check in ("accepted_compiles", "numerics")
    ]
    assert [r.status for r in results] == [Status.PASSED, Status.FAILED]
    assert SAYS[name] in results[1].message


ALIKE = {*OPERATORS} - {"relu_loses_nan", "int64_mul_cut"}
"""Bad backends for ``slow`` only: another test tries their operator alone."""


FAILS_LIKE = {
    "counter": "order_of_a_set",
    "raises": "no_reason",
    "relu_loses_nan": "ignores_strides",
    "amax_loses_nan": "ignores_strides",
    "int64_mul_cut": "ignores_strides",
    "runtime_raises": "ignores_strides",
    "writes_inputs": "ignores_strides",
    "crashes_at_symbolic_sizes": "symbolic_sizes",
    "crashes_in_branches": "expects_schemas",
    "crashes_in_threads": "one_at_a_time",
    "aborts_in_threads": "raises_in_threads",
    "crashes_without_calls": "needs_a_call",
}
"""Bad backends for ``slow`` only -> a fast one that fails the same check."""


def parameters_for(names, slow):
    return [
        pytest.param(name, marks=pytest.mark.slow) if name in slow else name
        for name in names
    ]


@pytest.mark.parametrize(
    "name", parameters_for(SAYS, slow={*ALIKE, *FAILS_LIKE, "crashes"})
)
def test_a_bad_backend_fails_its_check(name):
    check = next(c for c, named in backends.BAD.items() if name in named)
    failed = str(failure_of(name, check))
    assert SAYS[name] in failed
    assert "hint: " in failed
    if check not in (
        "options_validated",
        "unregistering_leaves_no_trace",
        "thread_safety",
    ):
        assert "(torch.nn.Module):" in failed, "the program is shown"


@pytest.mark.slow
@pytest.mark.parametrize("name", SAYS)
def test_faulty_backends_fail_only_their_check(name):
    check = next(c for c, named in backends.BAD.items() if name in named)
    assert set(
        failed_checks(devkit.run_checks(backend_under_test(backends.BAD[check][name])))
    ) == {check}


def test_printing_backends_get_a_warning_with_the_line():
    one = backend_under_test(backends.register_talking)
    result = devkit.run_check(devkit.CHECKS["unregistering_leaves_no_trace"], one)
    assert result.status is Status.PASSED
    [warning] = result.warnings
    line = 1 + backends.__loader__.get_source(backends.__name__).split("\n").index(
        '    print("compiling", len(program.graph.nodes), "nodes")'
    )
    assert (
        f"prints 'compiling' at {backends.__file__}:{line}; a library must" in warning
    )


def test_declared_deviations_are_excused():
    """Backends without the declaration fail: see BAD["numerics"]."""
    result = devkit.run_check(
        devkit.CHECKS["numerics"], backend_under_test(backends.register_excused)
    )
    assert result.status is Status.PASSED, result.message
    assert result.figures["excused"] == 1


def test_a_delegate_that_hangs_is_ended():
    register = backends.WORSE["hanging"][1]
    result = devkit.run_check(
        devkit.CHECKS["damaged_blob"], backend_under_test(register)
    )
    assert "loading the first 0 of" in result.message
    assert "did not end in time" in result.message


@pytest.mark.slow
@pytest.mark.parametrize("name", ["arrays", "weights", "shared_store"])
def test_a_worse_backend_fails_several_checks(name):
    checks, register = backends.WORSE[name]
    assert checks <= set(failed_checks(devkit.run_checks(backend_under_test(register))))


def test_every_check_has_a_bad_backend():
    assert {*backends.BAD, "light_declaration"} == set(devkit.CHECKS)
    assert {name for named in backends.BAD.values() for name in named} == set(SAYS)
    check_of = {name: check for check, named in backends.BAD.items() for name in named}
    assert all(check_of[name] == check_of[other] for name, other in FAILS_LIKE.items())
    assert not {*FAILS_LIKE.values()} & {
        *FAILS_LIKE,
        *ALIKE,
    }, "they are tried by default"


def test_backends_that_accept_nothing_fail_with_their_reasons():
    one = devkit.BackendUnderTest(
        "n", register=backends.register_that_takes_nothing, gate=0
    )
    named = ("accepted_compiles", "numerics", "debug_handles")
    results = {name: devkit.run_check(devkit.CHECKS[name], one) for name in named}
    assert "accepted no operator of 37 programs" in results["accepted_compiles"].message
    assert " x no\n" in results["accepted_compiles"].message
    assert "--example path.py:function" in results["accepted_compiles"].message
    assert (
        results["numerics"].message
        == "backend 'n' has no runtime on this host, so no delegate can run"
    )
    assert results["debug_handles"].status is Status.SKIPPED


def test_backends_that_cannot_be_imported_are_tried_in_process():
    """Checks that need another process are skipped."""

    def register(registry):
        return backends.register_that_takes_nothing(registry)

    one = devkit.BackendUnderTest("n", register=register, randoms=0)
    one.__dict__["programs"] = one.programs[:1]
    assert [o.program for o in one.rehearsal] == [one.programs[0].name]
    result = devkit.run_check(devkit.CHECKS["deterministic"], one)
    assert result.status is Status.SKIPPED
    assert "another process cannot import it" in result.message


def test_profiling_is_not_checked_without_delegraph_analysis(monkeypatch):
    monkeypatch.setitem(sys.modules, "delegraph_analysis", None)
    one = backend_under_test(backends.register_good)
    one.__dict__["programs"] = one.programs[:1]
    result = devkit.run_check(devkit.CHECKS["profiled_times"], one)
    assert result.status is Status.SKIPPED
    assert "delegraph-analysis, which is not installed" in result.message
