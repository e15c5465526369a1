"""Programs with several methods: a backend compiles all partitions in one call.

A row names the test of ExecuTorch that a test here repeats.
"""

from typing import ClassVar

import delegraph
import pytest
import torch
from delegraph.backend import BackendDetails, CompileSpec, PreprocessResult
from delegraph.errors import ContractViolation, InputError
from delegraph_executorch.edge import MethodProgramsPartitionerSpec, to_backend, to_edge
from torch import nn

from . import backends
from .backends import (
    CALL,
    Placed,
    assert_close,
    aten,
    export,
    lowered_modules,
    partitioner_for,
    partitioner_for_all,
)

FIRST = ("FirstBackend", [CompileSpec("max_value", b"1")])
SECOND = ("SecondBackend", [CompileSpec("max_value", b"2")])
X = torch.randn(3)


class Joint(BackendDetails, abstract=True):
    """Its blobs are ``class#operators of all methods#own operators#settings``."""

    seen: ClassVar[list] = []

    @classmethod
    def preprocess_multimethod(cls, edge_programs, compile_specs):
        cls.seen.append({m: len(listed) for m, listed in edge_programs.items()})
        total = sum(
            len(operator_names(p)) for listed in edge_programs.values() for p in listed
        )
        return {
            m: [
                cls.blob(p, s, total)
                for p, s in zip(listed, compile_specs[m], strict=True)
            ]
            for m, listed in edge_programs.items()
        }

    @classmethod
    def blob(cls, program, specs, total):
        given = ",".join(f"{s.key}:{s.value.decode()}" for s in specs)
        return PreprocessResult(
            f"{cls.__name__}#{total}#{','.join(operator_names(program))}#{given}".encode()
        )


def operator_names(program):
    return [
        str(node.target) for node in program.graph.nodes if node.op == "call_function"
    ]


class FirstBackend(Joint):
    seen: ClassVar[list] = []

    @staticmethod
    def preprocess(edge_program, compile_specs):
        raise AssertionError("all methods are compiled together")


class SecondBackend(FirstBackend):
    seen: ClassVar[list] = []


@pytest.fixture(autouse=True)
def installed():
    FirstBackend.seen = []
    SecondBackend.seen = []
    with backends.installed(FirstBackend, SecondBackend, backends.CompilerBackend):
        yield


def sine(s, x):
    return torch.sin(x)


def cosine(s, x):
    return torch.cos(x)


def sine_neg_cosine(s, x):
    # no partitioner takes ``neg``, so sine and cosine are two partitions
    return torch.cos(torch.sin(x).neg())


def cosine_then_sine(s, x):
    return torch.sin(torch.cos(x).neg())


def lower_methods(functions, partitioners):
    """Export each function with one vector, and lower all of them together."""
    programs = {
        m: to_edge(export(f, X)).exported_program() for m, f in functions.items()
    }
    return to_backend(MethodProgramsPartitionerSpec(programs, partitioners))


def blobs_of(program):
    return [m.processed_bytes.decode() for m in lowered_modules(program)]


def test_joint_backend_compiles_a_single_method():
    """Row: multi_method.single_method"""
    lowered = lower_methods({"forward": sine}, {"forward": partitioner_for_all(*FIRST)})
    assert blobs_of(lowered["forward"]) == [
        "FirstBackend#1#aten.sin.default#max_value:1"
    ]


def test_two_methods_are_compiled_in_one_call():
    """Row: multi_method.two_methods"""
    lowered = lower_methods(
        {"a": sine, "b": cosine},
        {"a": partitioner_for_all(*FIRST), "b": partitioner_for_all(*FIRST)},
    )
    assert blobs_of(lowered["a"]) == ["FirstBackend#2#aten.sin.default#max_value:1"]
    assert blobs_of(lowered["b"]) == ["FirstBackend#2#aten.cos.default#max_value:1"]
    assert FirstBackend.seen == [{"a": 1, "b": 1}]


def test_partitions_of_a_method_keep_their_order():
    """Row: multi_method.two_methods_multiple_partitions"""
    places = Placed({aten.sin.default: FIRST, aten.cos.default: FIRST})
    lowered = lower_methods(
        {"a": sine_neg_cosine, "b": sine_neg_cosine}, {"a": places, "b": places}
    )
    expected = [
        f"FirstBackend#4#aten.{op}.default#max_value:1" for op in ("sin", "cos")
    ]

    assert blobs_of(lowered["a"]) == expected == blobs_of(lowered["b"])
    assert FirstBackend.seen == [{"a": 2, "b": 2}]


def test_each_partition_gets_its_own_compile_specs():
    """Row: multi_method.two_methods_different_partitions"""
    places = Placed(
        {
            aten.sin.default: ("FirstBackend", [CompileSpec("max_value", b"sin")]),
            aten.cos.default: ("FirstBackend", [CompileSpec("max_value", b"cos")]),
        }
    )
    lowered = lower_methods(
        {"a": sine_neg_cosine, "b": cosine_then_sine}, {"a": places, "b": places}
    )
    sin = "FirstBackend#4#aten.sin.default#max_value:sin"
    cos = "FirstBackend#4#aten.cos.default#max_value:cos"

    assert blobs_of(lowered["a"]) == [sin, cos]
    assert blobs_of(lowered["b"]) == [cos, sin]


def test_each_backend_is_called_once_for_all_methods():
    """Row: multi_method.two_methods_different_backends"""
    places = Placed({aten.sin.default: FIRST, aten.cos.default: SECOND})
    lowered = lower_methods(
        {"a": sine_neg_cosine, "b": cosine_then_sine}, {"a": places, "b": places}
    )
    sin = "FirstBackend#2#aten.sin.default#max_value:1"
    cos = "SecondBackend#2#aten.cos.default#max_value:2"

    assert blobs_of(lowered["a"]) == [sin, cos]
    assert blobs_of(lowered["b"]) == [cos, sin]
    assert FirstBackend.seen == SecondBackend.seen == [{"a": 1, "b": 1}]


def test_partitions_in_branches_are_compiled_in_the_same_call():
    """Row: multi_method.control_flow"""

    def first(s, x):
        return torch.cond(
            x.sum() > 0, lambda x: torch.sin(x + x), lambda x: torch.cos(x), [x]
        )

    def second(s, x):
        return torch.cond(
            x.sum() > 0, lambda x: torch.sin(x) * x, lambda x: (x + x) * x, [x]
        )

    programs = {m: export(f, X) for m, f in (("a", first), ("b", second))}
    ours = {aten.add.Tensor: FIRST, aten.sin.default: FIRST, aten.cos.default: SECOND}
    made = to_backend(
        MethodProgramsPartitionerSpec(programs, {m: Placed(ours) for m in programs})
    )
    total = "FirstBackend#4"

    assert blobs_of(made["a"]) == [
        f"{total}#aten.add.Tensor#max_value:1",
        f"{total}#aten.sin.default#max_value:1",
        "SecondBackend#1#aten.cos.default#max_value:2",
    ]
    assert blobs_of(made["b"]) == [
        f"{total}#aten.sin.default#max_value:1",
        f"{total}#aten.add.Tensor#max_value:1",
    ]
    assert FirstBackend.seen == [{"a": 2, "b": 2}]
    assert SecondBackend.seen == [{"a": 1}]
    for method, function in (("a", first), ("b", second)):
        for x in (X.abs(), -X.abs()):
            assert_close(made[method].module(check_guards=False)(x), function(None, x))


def test_second_delegate_reads_the_first_and_the_host():
    """Row: multi_method.sequential_delegates"""

    def function(s, x):
        y = torch.sin(x)
        return torch.cos(y) * torch.cos(y.neg())

    taken = (aten.sin.default, aten.cos.default, aten.mul.Tensor)
    partitioner = partitioner_for(*taken, backend="FirstBackend", specs=FIRST[1])
    spec = MethodProgramsPartitionerSpec(
        {"forward": export(function, X)}, {"forward": partitioner}
    )
    made = to_backend(spec)["forward"]

    first, second = [node for node in made.graph.nodes if node.target is CALL]
    inputs = second.args[1:]
    assert any(first in node.all_input_nodes for node in inputs)
    assert any(node.target is aten.neg.default for node in inputs)
    assert_close(made.module(check_guards=False)(X), function(None, X))


def test_parent_and_delegate_share_a_constant_and_its_name():
    """Row: multi_method.constants"""
    source = export(lambda s, x: (x + s.c) * s.c, X, c=torch.ones(3))
    made = to_backend(source, partitioner_for(aten.add.Tensor, backend="FirstBackend"))
    [inner] = lowered_modules(made)

    assert list(inner.original_module.state_dict) == ["c"] == list(made.state_dict)
    assert (
        inner.original_module.state_dict["c"].data_ptr()
        == made.state_dict["c"].data_ptr()
    )
    assert_close(made.module(check_guards=False)(X), X + 1)


def test_unknown_backend_is_refused_by_name():
    """Row: multi_method.not_found"""
    with pytest.raises(NotImplementedError, match="'Invalid'"):
        lower_methods({"forward": sine}, {"forward": partitioner_for_all("Invalid")})


def test_equal_methods_both_run():
    """Row: multi_method.end_to_end"""
    lowered = lower_methods(
        {"a": sine, "b": sine},
        {
            m: partitioner_for_all(specs=[CompileSpec("max_value", bytes([3]))])
            for m in "ab"
        },
    )
    [a] = lowered_modules(lowered["a"])
    [b] = lowered_modules(lowered["b"])

    assert a is not b
    assert a.processed_bytes == b.processed_bytes
    host = delegraph.lower(lowered, backends=[])
    for method in "ab":
        assert_close(host.method(method)(X), torch.sin(X))


def test_a_method_without_a_partitioner_stays_as_it_is():
    programs = {"a": export(sine, X), "b": export(cosine, X)}
    made = to_backend(
        MethodProgramsPartitionerSpec(programs, {"a": partitioner_for_all(*FIRST)})
    )

    assert made["b"] is programs["b"]
    assert blobs_of(made["a"])
    with pytest.raises(ContractViolation, match="'c'; methods: ") as caught:
        to_backend(
            MethodProgramsPartitionerSpec(programs, {"c": partitioner_for_all(*FIRST)})
        )
    assert isinstance(caught.value, InputError)


def test_methods_share_weights_in_all_delegates():
    layer = nn.Linear(3, 3)
    programs = {
        "a": export(lambda s, x: s.layer(x), X, layer=layer),
        "b": export(lambda s, x: s.layer(-x), X, layer=layer),
    }
    lowered = delegraph.lower(programs, backends=[partitioner_for_all("FirstBackend")])
    tensors = [
        delegate.module.original_module.state_dict["layer.weight"].data_ptr()
        for delegate in lowered.delegates
    ]

    assert tensors == [layer.weight.data_ptr()] * 2


# --- what goes wrong there in silence -------------------------------------------------


def backend_with_results(change):
    """Return a backend whose joint results went through ``change``."""

    class BrokenBackend(Joint):
        seen: ClassVar[list] = []

        @staticmethod
        def preprocess(edge_program, compile_specs):
            return PreprocessResult(b"")

        @classmethod
        def preprocess_multimethod(cls, edge_programs, compile_specs):
            return change(super().preprocess_multimethod(edge_programs, compile_specs))

    return BrokenBackend


@pytest.mark.parametrize(
    ("change", "given"),
    [
        (
            lambda made: {m: listed[:1] for m, listed in made.items()},
            r"{'a': 1, 'b': 1}",
        ),
        (
            lambda made: {m: listed * 2 for m, listed in made.items()},
            r"{'a': 4, 'b': 4}",
        ),
        (lambda made: {"a": made["a"]}, r"{'a': 2}"),
        (lambda made: {**made, "c": []}, r"{'a': 2, 'b': 2, 'c': 0}"),
        (lambda made: None, "None"),
    ],
    ids=["too_few", "too_many", "method_missing", "method_unknown", "nothing"],
)
def test_missing_or_additional_results_are_refused(change, given):
    places = Placed(
        {
            aten.sin.default: ("BrokenBackend", []),
            aten.cos.default: ("BrokenBackend", []),
        }
    )
    expected = (
        rf"BrokenBackend.preprocess_multimethod returned {given} results for"
        r" each method; .* {'a': 2, 'b': 2} programs"
    )
    with (
        backends.installed(backend_with_results(change)),
        pytest.raises(ContractViolation, match=expected),
    ):
        lower_methods(
            {"a": sine_neg_cosine, "b": sine_neg_cosine}, {"a": places, "b": places}
        )


@pytest.mark.parametrize("specs", [{}, {"a": []}, {"a": [[], []]}])
def test_each_program_needs_its_compile_specs(specs):
    with pytest.raises(
        ContractViolation,
        match="method 'a' has 1 partitions and . lists of compile specs",
    ):
        backends.CompilerBackend.preprocess_multimethod({"a": [export(sine, X)]}, specs)
