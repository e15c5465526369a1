"""Tests of ``delegraph.lower`` with a backend that runs the original program."""

import copy
import gc
import json
import operator
import pickle

import delegraph.api as api
import pytest
import torch
from delegraph import errors
from delegraph.backend import BackendDetails, CompileSpec, PreprocessResult
from delegraph.discovery.registry import Registry
from delegraph.partitioner import (
    CapabilityPartitioner,
    DelegationSpec,
    Partitioner,
    PartitionResult,
)
from delegraph.partitioner.capability_partitioner import Predicate
from delegraph.report.left_on_host import host_calls
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._higher_order_ops.while_loop import while_loop

from .conftest import EchoBackend, EchoRuntime

aten = torch.ops.aten


def echo_partitioner(refuse=lambda node: False, **options):
    return CapabilityPartitioner(
        lambda n: "refused here" if refuse(n) else None, "EchoBackend", **options
    )


class Middle(nn.Module):
    """Two linear layers around a sort, which stays on the host in these tests."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 2)

    def forward(self, x):
        y = self.a(x).relu()
        s = torch.sort(y)[0]
        return self.b(s), y


class Cache(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x):
        self.total.add_(x)
        return self.total * 2


class OtherEcho(EchoBackend):
    """A second backend."""


def is_sort(node):
    return node.target is aten.sort.default


class BuiltinNames(nn.Module):
    """Inputs with the names of Python's builtins, which fx would rename."""

    def forward(self, input, input_1, abs):
        input.add_(1)
        return (input * input_1).sort()[0] + abs


def test_inputs_keep_names_that_python_has_too(registry):
    module = BuiltinNames().eval()
    inputs = (torch.ones(3), torch.arange(3.0), torch.ones(3))
    lowered = api.lower(
        module, inputs, backends=[echo_partitioner(is_sort)], registry=registry
    )
    assert [node.name for node in lowered.exported_program().graph.nodes][:3] == [
        "input",
        "input_1",
        "abs",
    ]
    assert lowered.verify(*inputs).relative_error == 0

    passed = [torch.ones(3) for _ in inputs]
    lowered(*passed)
    assert passed[0].tolist() == [2, 2, 2]


def test_two_partitions_around_a_host_operator(registry):
    module = Middle().eval()
    x = torch.randn(3, 4)
    lowered = api.lower(
        module, (x,), backends=[echo_partitioner(is_sort)], registry=registry
    )
    assert [delegate.name for delegate in lowered.delegates] == [
        "lowered_module_0",
        "lowered_module_1",
    ]
    assert lowered.report.host == {"forward": {"aten.sort.default": 1}}
    torch.testing.assert_close(lowered(x), module(x), rtol=0, atol=0)
    assert lowered.verify(x).relative_error == 0

    program = lowered.exported_program()
    assert program.state_dict == {}, "weights went with their delegates"

    calls = [
        node
        for node in program.graph.nodes
        if node.target is torch.ops.higher_order.executorch_call_delegate
    ]
    assert len(calls) == 2
    assert all("debug_handle" in n.meta for n in calls)
    torch.testing.assert_close(program.module(check_guards=False)(x), module(x))


def test_delegates_share_weights_by_reference(registry):
    module = Middle().eval()
    lowered = api.lower(
        module,
        (torch.randn(3, 4),),
        backends=[echo_partitioner(is_sort)],
        registry=registry,
    )
    addresses = {}
    for delegate in lowered.delegates:
        for name, weight in delegate.module.original_module.state_dict.items():
            addresses[name] = weight.data_ptr()

    assert addresses == {k: v.data_ptr() for k, v in module.state_dict().items()}


def test_reports_name_backend_reason_and_source_line(registry):
    lowered = api.lower(
        Middle().eval(),
        (torch.randn(3, 4),),
        backends=[echo_partitioner(is_sort)],
        registry=registry,
    )
    text = str(lowered.report)
    assert "1 x aten.sort.default  CapabilityPartitioner: refused here" in text
    assert "in forward: s = torch.sort(y)[0]" in text

    data = json.loads(json.dumps(lowered.report.to_json()))
    assert data["schema"] == "delegraph.report/1"
    assert data["host_operators"] == 1
    assert data["refusals"][0]["source"]["code"] == "s = torch.sort(y)[0]"


def test_require_full_lists_the_operators_on_the_host(registry):
    with pytest.raises(errors.NotFullyDelegated) as e:
        api.lower(
            Middle().eval(),
            (torch.randn(3, 4),),
            backends=[echo_partitioner(is_sort)],
            require_full=True,
            registry=registry,
        )
    assert e.value.code == "not-fully-delegated"
    for part in ("aten.sort.default", "refused here", "test_api.py", "torch.sort(y)"):
        assert part in str(e.value)


def test_program_without_backends_runs_on_the_host(registry):
    module = Middle().eval()
    x = torch.randn(3, 4)
    lowered = api.lower(module, (x,), backends=[], registry=registry)
    assert lowered.delegates == []
    assert lowered.report.delegated_operators == 0
    assert "left to the host: 4 operators; no backend was asked" in str(lowered.report)
    torch.testing.assert_close(lowered(x), module(x))


def test_lower_uses_the_only_backend_by_default():
    registry = Registry(discover=False)
    registry.register(
        EchoBackend,
        partitioner=echo_partitioner(is_sort),
        runtime=EchoRuntime,
        name="first",
    )
    given = Middle().eval(), torch.randn(3, 4)
    lowered = api.lower(*given, registry=registry)
    assert lowered.report.notes == ["no backend was named; first is the only one"]
    assert len(lowered.delegates) == 2

    lowered = api.lower(*given, backends=["first"], registry=registry)
    assert lowered.report.notes == []


def test_several_backends_need_a_name_or_options():
    registry = Registry(discover=False)
    registry.register(
        EchoBackend,
        partitioner=echo_partitioner(is_sort),
        runtime=EchoRuntime,
        name="first",
    )
    other = CapabilityPartitioner(lambda n: "no" if is_sort(n) else None, "OtherEcho")
    registry.register(OtherEcho, partitioner=other, name="second")
    given = Middle().eval(), torch.randn(3, 4)

    with pytest.raises(errors.OptionError, match="there are several: first, second"):
        api.lower(*given, registry=registry)

    optioned = api.lower(*given, options={"second": {}}, registry=registry)
    assert optioned.report.notes == ["no backend was named; the options are for second"]
    assert {delegate.backend_id for delegate in optioned.delegates} == {"OtherEcho"}


def test_inputs_may_differ_from_the_examples_in_strides(registry):
    """``reshape`` reaches the host as the ``view`` that the examples' strides allow."""

    class Flat(nn.Module):
        def forward(self, x):
            return x.reshape(2, -1) * 2

    x = torch.randn(2, 3, 4, 4)
    lowered = api.lower(Flat().eval(), (x,), backends=[], registry=registry)
    assert lowered.verify(x.to(memory_format=torch.channels_last)).relative_error == 0


def test_two_methods_share_weights(registry):
    module = Middle().eval()
    x = torch.randn(3, 4)
    whole = torch.export.export(module, (x,))
    lowered = api.lower(
        {"forward": module, "again": whole},
        {"forward": (x,)},
        backends=[echo_partitioner()],
        registry=registry,
    )
    assert lowered.methods == ["forward", "again"]
    torch.testing.assert_close(lowered.method("again")(x), module(x))
    torch.testing.assert_close(lowered(x), module(x))
    assert lowered.verify(x, method="again").relative_error == 0

    first, second = (d.module.original_module.state_dict for d in lowered.delegates)
    assert list(first) == list(second)

    for name in first:
        assert first[name].data_ptr() == second[name].data_ptr()


def test_an_unknown_method_is_named(registry):
    lowered = api.lower(
        Middle().eval(), (torch.randn(3, 4),), backends=[], registry=registry
    )
    with pytest.raises(errors.InputError, match="no method 'nothing'"):
        lowered.method("nothing")


def test_the_second_partitioner_gets_the_remaining_operators(registry):
    module = Middle().eval()
    x = torch.randn(3, 4)
    first = echo_partitioner(lambda n: n.target is not aten.linear.default)
    lowered = api.lower(
        module, (x,), backends=[first, echo_partitioner(is_sort)], registry=registry
    )

    assert lowered.report.host_operators == 1
    assert len(lowered.delegates) == 3
    torch.testing.assert_close(lowered(x), module(x))


def test_state_is_kept_between_calls_and_not_shared(registry):
    module = Cache().eval()
    x = torch.ones(3)
    reference = copy.deepcopy(module)
    lowered = api.lower(module, (x,), backends=[echo_partitioner()], registry=registry)
    for _ in range(3):
        torch.testing.assert_close(lowered(x), reference(x))

    assert lowered.verify(x).relative_error == 0
    assert module.total.abs().sum() == 0, "the caller's buffer was written"


class Casting(Partitioner):
    """Delegates the embedding, and passes its int64 indices as int32."""

    def partition(self, exported_program):
        for node in exported_program.graph.nodes:
            if node.op == "call_function" or node.name.startswith("p_"):
                node.meta["delegation_tag"] = "t0"
        types = {"ids": torch.int32}
        return PartitionResult(
            exported_program,
            {"t0": DelegationSpec("EchoBackend")},
            boundary_types=types,
        )


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(10, 4)

    def forward(self, ids):
        return self.e(ids + 1), ids * 2


def test_boundary_types_are_cast_outside(registry):
    module = Tokens().eval()
    ids = torch.tensor([1, 2, 3])
    lowered = api.lower(module, (ids,), backends=[Casting()], registry=registry)
    assert [str(value) for value in lowered.delegates[0].inputs] == ["ids: int32[3]"]
    torch.testing.assert_close(lowered(ids), module(ids))
    assert lowered.report.host_operators == 0

    calls = [
        node
        for node in lowered.delegates[0].module.original_module.graph.nodes
        if node.op == "call_function"
    ]
    # the cast has a handle as well, because some backends map every call
    assert all("debug_handle" in n.meta for n in calls)


class Bad(Partitioner):
    def __init__(self, act):
        super().__init__()
        self.act = act

    def ops_to_not_decompose(self, exported_program):
        return [aten.linear.default], None

    def partition(self, exported_program):
        return self.act(exported_program) or PartitionResult(
            exported_program, {"t": DelegationSpec("EchoBackend")}
        )


def tag_nodes(program, wanted):
    for node in program.graph.nodes:
        if wanted(node):
            node.meta["delegation_tag"] = "t"


def rewrite(program):
    next(
        node for node in program.graph.nodes if node.target is aten.relu.default
    ).target = aten.sin.default


def change_literal(program):
    node = next(
        node for node in program.graph.nodes if node.target is aten.sort.default
    )
    node.args = (node.args[0], 0)


CONTRACT = {
    "changed the graph": rewrite,
    "changed the graph; it may only": change_literal,
    "output node output should not be tagged": lambda p: tag_nodes(
        p, lambda n: n.op == "output"
    ),
    "should not be tagged: x": lambda p: tag_nodes(p, lambda n: n.name == "x"),
    "depend on themselves: partition t -> .*sort.* -> partition t": lambda p: tag_nodes(
        p, lambda n: n.target in (aten.linear.default, aten.relu.default)
    ),
    "takes an item of sort, so it must have its tags": lambda p: tag_nodes(
        p, lambda n: n.name.startswith("getitem")
    ),
    "partition_tags": lambda p: PartitionResult(p, None),
    "returned another program": lambda p: PartitionResult(copy.deepcopy(p), {}),
    "returned int": lambda p: 3,
    "'u' of relu is not in partition_tags": (
        lambda p: next(
            node for node in p.graph.nodes if node.target is aten.relu.default
        ).meta.update(delegation_tag="u")
    ),
}


@pytest.mark.parametrize("message", CONTRACT)
def test_broken_contracts_of_partitioners_are_refused(message, registry):
    with pytest.raises(errors.ContractViolation, match=message):
        api.lower(
            Middle().eval(),
            (torch.randn(3, 4),),
            backends=[Bad(CONTRACT[message])],
            registry=registry,
        )


def test_untagged_constants_arrive_at_run_time(registry):
    module = Middle().eval()
    x = torch.randn(3, 4)
    only_linear = Bad(lambda p: tag_nodes(p, lambda n: n.name == "linear"))
    lowered = api.lower(module, (x,), backends=[only_linear], registry=registry)

    assert [value.name for value in lowered.delegates[0].inputs] == [
        "x",
        "p_a_weight",
        "p_a_bias",
    ]
    torch.testing.assert_close(lowered(x), module(x))


class SharedConstant(nn.Module):
    """Backend and host both need a computed constant, through another one."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.arange(12.0).reshape(3, 4))

    def forward(self, x):
        table = self.w.exp()
        deep = table * 2
        y = x + deep
        return torch.sort(y + table)[0] + y, torch.sort(deep)[0]


def test_host_and_delegate_both_compute_a_shared_constant(registry, no_folding):
    module = SharedConstant().eval()
    x = torch.randn(3, 4)
    lowered = api.lower(
        module, (x,), backends=[echo_partitioner(is_sort)], registry=registry
    )
    torch.testing.assert_close(lowered(x), module(x))

    first, *others = lowered.delegates
    assert {str(node.target) for node in first.nodes} >= {
        "aten.exp.default",
        "aten.mul.Tensor",
    }
    assert [output.name for output in first.outputs] == ["add", "add_1"]
    assert not others[1:]
    assert lowered.report.host["forward"] == {
        "aten.exp.default": 1,
        "aten.mul.Tensor": 1,
        "aten.sort.default": 2,
    }

    why = {refusal.operator: refusal.reason for refusal in lowered.report.refusals}
    assert (
        why["aten.exp.default"]
        == "the host needs this constant too and computes it itself"
    )


def test_pieces_of_a_constant_go_together(registry, no_folding):
    """One piece of a split is used by two partitions and the host, the other by one
    partition.
    """

    class Split(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(3, 8))

        def forward(self, x):
            sine, cosine = self.w.exp().split(4, 1)
            return torch.sort(x * sine + cosine)[0] * sine, torch.sort(sine)[0]

    module = Split().eval()
    x = torch.randn(3, 4)
    lowered = api.lower(
        module, (x,), backends=[echo_partitioner(is_sort)], registry=registry
    )

    torch.testing.assert_close(lowered(x), module(x))
    assert len(lowered.delegates) == 2
    assert lowered.report.host["forward"]["aten.sort.default"] == 2


def test_a_constant_that_only_the_host_needs_is_delegated(registry, no_folding):
    class Only(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(3, 4))

        def forward(self, x):
            return torch.sort(self.w.exp())[0] + x, self.w * 2

    module = Only().eval()
    x = torch.randn(3, 4)
    lowered = api.lower(
        module, (x,), backends=[echo_partitioner(is_sort)], registry=registry
    )

    torch.testing.assert_close(lowered(x), module(x))
    assert lowered.report.host["forward"] == {"aten.sort.default": 1}


def test_a_zeros_like_of_a_host_value_runs_after_it(registry):
    """The zeros are constant, but their shape comes from the sort on the host."""

    class Known(Predicate):
        def is_constant(self, node):
            return node.target is aten.zeros_like.default

    class Zeros(nn.Module):
        def forward(self, x):
            return torch.zeros_like(torch.sort(x + 1)[0]) + x

    module = Zeros().eval()
    x = torch.randn(3, 4)
    partitioner = CapabilityPartitioner(
        Known(lambda n: "refused here" if is_sort(n) else None), "EchoBackend"
    )
    lowered = api.lower(module, (x,), backends=[partitioner], registry=registry)

    torch.testing.assert_close(lowered(x), module(x))
    assert len(lowered.delegates) == 2


def test_no_copy_refuses_to_share(registry):
    def share(program):
        for node in program.graph.nodes:
            node.meta.update(no_copy=True) if node.op == "placeholder" else None
            if node.name in ("p_w", "add"):
                node.meta["delegation_tag"] = "t"

    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return (x + self.w) * self.w

    with pytest.raises(
        errors.ContractViolation, match="p_w is tagged with t but has user mul"
    ):
        api.lower(
            Shared().eval(), (torch.randn(3),), backends=[Bad(share)], registry=registry
        )


def backend_with_preprocess(preprocess, **members):
    return type(
        "OddBackend",
        (BackendDetails,),
        {"preprocess": staticmethod(preprocess), **members},
    )


def lower_with_backend(backend):
    registry = Registry(discover=False)
    registry.register(backend)
    partitioner = CapabilityPartitioner(
        lambda n: None, "OddBackend", [CompileSpec("k", b"v")]
    )
    return api.lower(
        Middle().eval(), (torch.randn(3, 4),), backends=[partitioner], registry=registry
    )


def test_backend_results_are_checked():
    with pytest.raises(errors.ContractViolation, match="a PreprocessResult with bytes"):
        lower_with_backend(backend_with_preprocess(lambda program, specs: b"blob"))
    few = backend_with_preprocess(
        lambda p, s: None,
        preprocess_multimethod=classmethod(lambda cls, p, s: {"forward": []}),
    )

    with pytest.raises(
        errors.ContractViolation, match="returned {'forward': 0} results"
    ):
        lower_with_backend(few)


def test_backend_may_rewrite_its_program_but_not_the_weights():
    def swaps(program, specs):
        for node in program.graph.nodes:
            node.target = (
                aten.sin.default if node.target is aten.relu.default else node.target
            )
        return PreprocessResult(b"blob")

    lowered = lower_with_backend(backend_with_preprocess(swaps))
    x = torch.randn(3, 4)
    module = Middle().eval()
    torch.testing.assert_close(
        lowered.exported_program().module(check_guards=False)(x), module(x)
    )

    def writes(program, specs):
        next(iter(program.state_dict.values())).data.zero_()
        program.state_dict["a.weight"].detach().add_(1)
        return PreprocessResult(b"blob")

    with pytest.raises(errors.ContractViolation, match="changed weights"):
        lower_with_backend(backend_with_preprocess(writes))


class TwoInputs(nn.Module):
    def forward(self, x, y):
        return x + y, x - 1


def drops(program):
    """Remove an input, as a dead-code pass does."""
    node = next(node for node in program.graph.nodes if node.name == "y")
    node.replace_all_uses_with(
        next(node for node in program.graph.nodes if node.name == "x")
    )
    program.graph.erase_node(node)


def swaps(program):
    x, y = [node for node in program.graph.nodes if node.op == "placeholder"]
    y.append(x)


def returns_less(program):
    output = program.graph.output_node()
    output.args = (output.args[0][:1],)


def returns_another_type(program):
    output = program.graph.output_node()
    first, second = output.args[0]
    with program.graph.inserting_before(output):
        made = program.graph.call_function(aten.to.dtype, (first, torch.float64))
    made.meta["val"] = first.meta["val"].double()
    output.args = ((made, second),)


@pytest.mark.parametrize(
    "change, lists",
    {
        drops: "its inputs are ['x', 'y'], and ['x'] in",
        swaps: "its inputs are ['x', 'y'], and ['y', 'x'] in",
        returns_less: (
            "its outputs are ['float32[3]', 'float32[3]'], and ['float32[3]'] in"
        ),
        returns_another_type: (
            "its outputs are ['float32[3]', 'float32[3]'], and ['float64[3]',"
            " 'float32[3]'] in"
        ),
    }.items(),
)
def test_backends_that_change_their_signature_are_refused(change, lists):
    def compiles(program, specs):
        change(program)
        return PreprocessResult(b"blob")

    registry = Registry(discover=False)
    registry.register(backend_with_preprocess(compiles))
    partitioner = CapabilityPartitioner(lambda n: None, "OddBackend")

    with pytest.raises(errors.ContractViolation) as error:
        api.lower(
            TwoInputs().eval(),
            (torch.ones(3), torch.ones(3)),
            backends=[partitioner],
            registry=registry,
        )
    assert lists in str(error.value)
    assert "OddBackend.preprocess" in str(error.value)


def test_garbage_collection_resumes_after_an_error_of_a_backend():
    def exits(program, specs):
        raise SystemExit("OddBackend exits")

    assert gc.isenabled()
    with pytest.raises(RuntimeError, match="OddBackend exits"):
        lower_with_backend(backend_with_preprocess(exits))
    assert gc.isenabled()


def lower_with_changed_result(change):
    """Lower Middle with a symbolic first size and a runtime that returns
    ``change(results)``.
    """

    class Runtime(EchoRuntime):
        @staticmethod
        def load(processed_bytes, compile_specs, named_data):
            run = EchoRuntime.load(processed_bytes, compile_specs, named_data)
            return lambda *args: change(run(*args))

    registry = Registry(discover=False)
    registry.register(EchoBackend, runtime=Runtime)
    sizes = ({0: torch.export.Dim.AUTO},)
    inputs = (torch.randn(3, 4),)
    program = torch.export.export(Middle().eval(), inputs, dynamic_shapes=sizes)
    return api.lower(program, backends=[echo_partitioner(is_sort)], registry=registry)


def test_running_at_one_size_does_not_fix_a_symbolic_size():
    lowered = lower_with_changed_result(lambda results: results)
    for size in (3, 2, 5):
        assert lowered.verify(torch.randn(size, 4)).relative_error == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda results: results[:-1],
        lambda results: results[0],
        lambda results: tuple(r.double() for r in results),
        lambda results: tuple(r[:, :1] for r in results),
    ],
    ids=["one missing", "no tuple", "another type", "another static size"],
)
def test_results_of_runtimes_must_match_known_shapes(change):
    with pytest.raises(
        errors.ContractViolation, match="runtime of EchoBackend returned"
    ):
        lower_with_changed_result(change)(torch.randn(3, 4))


def test_a_missing_runtime_is_an_error_unless_eager_replaces_it():
    lowered = lower_with_backend(
        backend_with_preprocess(lambda p, s: PreprocessResult(b"blob"))
    )
    with pytest.raises(errors.NoRuntime, match="oddbackend.* declares no runtime"):
        lowered(torch.randn(3, 4))

    registry = Registry(discover=False)
    registry.register(backend_with_preprocess(lambda p, s: PreprocessResult(b"blob")))
    partitioner = CapabilityPartitioner(lambda n: None, "OddBackend")
    x = torch.randn(3, 4)
    module = Middle().eval()
    eager = api.lower(
        module, (x,), backends=[partitioner], registry=registry
    ).with_missing_runtime("eager")
    torch.testing.assert_close(eager(x), module(x))
    assert any("eager" in note for note in eager.report.notes)
    with pytest.raises(
        errors.OptionError, match="takes 'error' or 'eager', not 'host'"
    ):
        eager.with_missing_runtime("host")
    with pytest.raises(errors.NoRuntime):
        eager.with_missing_runtime("error")(x)


class Signatures(nn.Module):
    def forward(self, x):
        return torch.nn.functional.conv2d(x, "weight")


class Breaks(nn.Module):
    def forward(self, x):
        return x.numpy()


class Turning(nn.Module):
    def forward(self, x):
        return while_loop(lambda x: x.sum() > 0, lambda x: ((x - 1).mT,), (x,))[0]


class Strides(nn.Module):
    def forward(self, x):
        return torch.cond(
            x.sum() > 0,
            lambda x: (x + 1)[1:],
            lambda x: x[:-1] + 0,
            (x,),
        )


BAD_PROGRAMS = {
    "no_examples": (
        lambda: (Middle().eval(), None),
        "input-invalid",
        "example_inputs are needed",
    ),
    "training": (
        lambda: (nn.Dropout(), (torch.randn(3, 4),)),
        "training-mode",
        "training mode",
    ),
    "not_a_module": (
        lambda: (lambda x: x, (torch.randn(3),)),
        "input-invalid",
        "an nn.Module or an ExportedProgram",
    ),
    "class": (
        lambda: (Middle, (torch.randn(3, 4),)),
        "input-invalid",
        r"not the class Middle(.|\n)*make one of it",
    ),
    "number_as_examples": (
        lambda: (Middle().eval(), 3),
        "input-invalid",
        "must be a tuple",
    ),
    "not_exportable": (
        lambda: (Breaks().eval(), (torch.randn(3),)),
        "export-failed",
        "could not export Breaks",
    ),
    "no_such_signature": (
        lambda: (Signatures().eval(), (torch.randn(3),)),
        "export-failed",
        r"invalid combination of arguments - got [^\n]*\)\n  at ",
    ),
    "branches_that_differ": (
        lambda: (Strides().eval(), (torch.randn(3),)),
        "export-failed",
        (
            r"expected same storage_offset but got 1 and 0[^\n]*\n  at"
            r" [^\n]*test_api.py[^\n]*torch.cond\("
        ),
    ),
    "a_loop_that_changes_strides": (
        lambda: (Turning().eval(), (torch.randn(3, 3),)),
        "export-failed",
        r"same metadata but found: pair\[0\] differ in 'stride",
    ),
    "no_methods": (lambda: ({}, None), "input-invalid", "no method to lower"),
    "numbered_method": (
        lambda: ({1: Middle().eval()}, None),
        "input-invalid",
        "name of a method must be a str, not 1",
    ),
    "one_tuple_for_several": (
        lambda: ({"a": Middle().eval()}, (torch.randn(3, 4),)),
        "input-invalid",
        "example_inputs of several methods is {method: value}, not tuple",
    ),
    "misspelt_method": (
        lambda: (
            {"a": Middle().eval()},
            {"a": (torch.randn(3, 4),), "aa": (torch.randn(3, 4),)},
        ),
        "input-invalid",
        (
            "example_inputs has the method 'aa', which the program does not have\n "
            " hint: its methods: a$"
        ),
    ),
    "missing_argument": (
        lambda: (Middle().eval(), ()),
        "export-failed",
        r"missing a required argument: 'x'$",
    ),
}


@pytest.mark.parametrize("case", BAD_PROGRAMS)
def test_wrong_programs_are_refused_with_a_message(case, registry, caplog):
    make, code, message = BAD_PROGRAMS[case]
    program, inputs = make()
    with pytest.raises(errors.DelegraphError, match=message) as e:
        api.lower(program, inputs, backends=[echo_partitioner()], registry=registry)
    assert e.value.code == code
    # the error says it all
    assert not [record for record in caplog.records if record.levelname != "DEBUG"]


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"backends": "tosa"}, r"a list of names: backends=\['tosa'\]"),
        ({"backends": echo_partitioner()}, r"a list of names: backends=\[<"),
        ({"backends": 3}, r"a list of names: backends=\[3\]"),
        (
            {"backends": [CapabilityPartitioner]},
            r"not <class '.*CapabilityPartitioner'>\n  hint: make an object of the class: Cap",
        ),
        ({"backends": [None]}, "a backend is a name or a Partitioner, not None"),
        (
            {"options": {"spec": "X"}},
            r"options is {backend name: {option: value}}, not {'spec': 'X'}",
        ),
        (
            {"options": {"EchoBackend": {3: 4}}},
            r"options is {backend name: {option: value}}, not",
        ),
        (
            {"options": "spec"},
            r"options is {backend name: {option: value}}, not 'spec'",
        ),
        ({"transforms": [3]}, r"transforms is a list of functions, not \[3\]"),
        ({"transforms": len}, r"transforms is a list of functions, not <built-in"),
    ],
)
def test_wrong_options_are_refused_with_a_message(choices, message, registry):
    with pytest.raises(errors.OptionError, match=message):
        api.lower(
            Middle().eval(),
            (torch.randn(3, 4),),
            **{"backends": [], "registry": registry, **choices},
        )


def test_backends_may_come_from_a_generator(registry):
    lowered = api.lower(
        Middle().eval(),
        (torch.randn(3, 4),),
        backends=(b for b in [echo_partitioner()]),
        registry=registry,
    )
    assert lowered.delegates


BAD_CALLS = [
    (
        (torch.randn(2, 4),),
        {},
        (
            r"input x must be torch.float32 of shape \[3, 4\]; it is torch.float32 of"
            r" shape \[2, 4\]"
        ),
    ),
    ((torch.randn(3, 4).double(),), {}, "it is torch.float64"),
    ((3,), {}, "it is 3"),
    ((), {}, r"the program takes \(x\); it was given \(\): x not given"),
    (
        (torch.randn(3, 4), 2, "a"),
        {},
        r"the program takes \(x\); it was given \(Tensor, int, str\)$",
    ),
    (
        (torch.randn(3, 4),),
        {"y": 1},
        (
            r"unknown keyword argument 'y'; the program takes \(x\); it was given"
            r" \(Tensor, y=int\)"
        ),
    ),
]


@pytest.mark.parametrize("args, kwargs, message", BAD_CALLS)
def test_wrong_inputs_are_refused_with_a_message(args, kwargs, message, registry):
    lowered = api.lower(
        Middle().eval(),
        (torch.randn(3, 4),),
        backends=[echo_partitioner()],
        registry=registry,
    )

    with pytest.raises(errors.InputError, match=message):
        lowered(*args, **kwargs)


def test_lowered_programs_cannot_be_saved_by_torch(registry, tmp_path):
    lowered = api.lower(
        Middle().eval(),
        (torch.randn(3, 4),),
        backends=[echo_partitioner()],
        registry=registry,
    )

    with pytest.raises(Exception, match="module_name"):
        torch.export.save(lowered.exported_program(), tmp_path / "p.pt2")


def test_transforms_run_on_the_normalized_program(registry):
    def relu_to_sin(program):
        for node in program.graph.nodes:
            node.target = (
                aten.sin.default if node.target is aten.relu.default else node.target
            )
        return program

    module = Middle().eval()
    x = torch.randn(3, 4)
    lowered = api.lower(
        module,
        (x,),
        backends=[echo_partitioner()],
        transforms=[relu_to_sin],
        registry=registry,
    )

    torch.testing.assert_close(lowered(x)[1], module.a(x).sin())
    with pytest.raises(
        errors.ContractViolation, match="transform <lambda> returned NoneType"
    ):
        api.lower(
            module,
            (x,),
            backends=[echo_partitioner()],
            transforms=[lambda p: None],
            registry=registry,
        )


def test_transforms_that_return_invalid_programs_are_named(registry):
    def call_python(program):
        next(
            node for node in program.graph.nodes if node.target is aten.relu.default
        ).target = abs
        return program

    torch_says = (
        "transform call_python returned a program that torch does not take for valid:"
        " .*built-in function abs"
    )

    with pytest.raises(errors.ContractViolation, match=torch_says):
        api.lower(
            Middle().eval(),
            (torch.ones(3, 4),),
            backends=[echo_partitioner()],
            transforms=[call_python],
            registry=registry,
        )


@st.composite
def programs(draw):
    """Draw random programs: lists of steps on a pool of values."""
    names = ["sin", "add", "split", "relu_", "view", "weight", "constant", "mul_"]
    return draw(
        st.lists(
            st.tuples(st.sampled_from(names), st.integers(0, 9), st.integers(0, 9)),
            min_size=1,
            max_size=14,
        )
    )


class Random(nn.Module):
    def __init__(self, steps):
        super().__init__()
        self.steps = steps
        self.w = nn.Parameter(torch.arange(6.0).reshape(2, 3) / 6)

    def forward(self, x):
        pool = [x + 0]
        for name, i, j in self.steps:
            self._step(pool, name, pool[i % len(pool)], pool[j % len(pool)])
        return tuple(pool[-3:])

    def _step(self, pool, name, a, b):
        if name == "split":
            pool.extend(c.repeat(2, 1) for c in torch.split(a, 1))
        elif name == "relu_":
            pool.append(torch.relu_(a.clone()))
        elif name == "mul_":
            a.mul_(1.5)
        elif name == "view":
            pool.append(a.reshape(3, 2).t())
        elif name == "weight":
            pool.append(a * self.w)
        elif name == "constant":
            pool.append(a + torch.sin(self.w))
        else:
            pool.append(torch.sin(a) if name == "sin" else a + b)


@given(programs(), st.integers(0, 2**40))
@settings(max_examples=25, deadline=None)
def test_random_support_on_random_programs(echo_registry, steps, mask):
    module = Random(steps).eval()
    x = torch.randn(2, 3)
    refuse = lambda n: bool(mask >> (n.meta["debug_handle"] % 41) & 1)
    lowered = api.lower(
        module,
        (x.clone(),),
        backends=[echo_partitioner(refuse)],
        registry=echo_registry,
    )
    torch.testing.assert_close(lowered(x.clone()), module(x.clone()), rtol=0, atol=0)

    calls = host_calls(lowered.exported_program().graph.nodes)
    left = {n.meta["debug_handle"] for n in calls if n.target is not operator.getitem}
    assert all(mask >> (h % 41) & 1 for h in left), (
        "an accepted call stayed on the host"
    )


class Draws(nn.Module):
    """The first random number needs a delegate; the second could be drawn before it."""

    def forward(self, x):
        first = torch.bernoulli(torch.sigmoid(torch.sort(x)[0] + 1))
        return first + torch.rand(3), torch.rand(3) * 2


@pytest.mark.parametrize("kept", [True, False])
def test_the_host_draws_random_numbers_in_eagers_order(kept, registry):
    taken = (aten.add.Tensor, aten.sigmoid.default if kept else aten.mul.Tensor)
    partitioner = CapabilityPartitioner(
        lambda n: None if n.target in taken else "unknown", "EchoBackend"
    )
    x = torch.arange(3.0)
    lowered = api.lower(Draws().eval(), (x,), backends=[partitioner], registry=registry)
    torch.manual_seed(7)
    expected = Draws()(x)
    torch.manual_seed(7)
    assert torch.equal(lowered(x)[0], expected[0]) is kept

    said = (
        "forward draws random numbers in another order than eager: a seed does not give"
        " those of eager"
    )
    assert lowered.report.notes == ([] if kept else [said])


def test_delegates_that_draw_random_numbers_are_noted(registry):
    everything = CapabilityPartitioner(
        lambda n: None if "rand" in str(n.target) else "unknown", "EchoBackend"
    )
    lowered = api.lower(
        Draws().eval(), (torch.arange(3.0),), backends=[everything], registry=registry
    )
    (note,) = lowered.report.notes

    assert (
        note
        == "lowered_module_0 of forward draws random numbers by itself: a seed does not"
        " give those of eager"
    )


@pytest.mark.parametrize(
    "quiet",
    [
        lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x),
        lambda x: torch.nn.functional.rrelu(x),
        lambda x: torch.ops.aten.native_dropout(x, 0.5, False)[0],
        lambda x: torch.ops.aten.native_dropout(x, 0.0, True)[0],
    ],
)
def test_random_operators_that_draw_nothing_are_not_noted(registry, quiet):
    class Quiet(torch.nn.Module):
        def forward(self, x):
            return quiet(x) + 1

    everything = CapabilityPartitioner(lambda node: None, "EchoBackend")
    lowered = api.lower(
        Quiet().eval(),
        (torch.randn(1, 3, 4),),
        backends=[everything],
        registry=registry,
    )

    assert lowered.report.notes == []


class Wrapped(torch.Tensor):
    """A tensor subclass with a dispatch of its own, which may have no memory."""

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise AssertionError("never asked")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (torch.eye(3).to_sparse(), "sparse_coo torch.float32 of shape"),
        (torch.eye(3, device="meta"), "torch.float32 of shape .* on meta"),
        (torch.eye(3).as_subclass(Wrapped), "Wrapped of torch.float32"),
        ([1.0], "input must be a single value, such as a tensor; it is a list of 1"),
        (3.0, "it is 3.0"),
    ],
)
@pytest.mark.parametrize("backends", [[], ["EchoBackend"]])
def test_inputs_that_are_no_plain_tensors_are_refused(registry, given, text, backends):
    chosen = [CapabilityPartitioner(lambda node: None, b) for b in backends]
    lowered = api.lower(
        torch.nn.ReLU().eval(), (torch.eye(3),), backends=chosen, registry=registry
    )
    with pytest.raises(errors.InputError, match=text):
        lowered(given)
    assert torch.equal(lowered(torch.nn.Parameter(torch.eye(3))), torch.eye(3))


def test_assignments_to_data_are_refused(registry):
    class Assigned(nn.Module):
        def forward(self, x):
            y = x + 1
            y.data = x * 2
            return y

    with pytest.raises(
        errors.InputError, match=r"^add\.data is assigned; torch.export drops"
    ) as raised:
        api.lower(Assigned().eval(), torch.ones(3), backends=[], registry=registry)
    assert raised.value.source.code == "y.data = x * 2"
    assert "x.copy_(other)" in raised.value.hint


def test_a_backend_is_named_once(registry):
    with pytest.raises(
        errors.OptionError, match=r"(?s)^backends names 'tosa' twice.*get_partitioner"
    ):
        api.lower(
            Middle().eval(),
            torch.randn(3, 4),
            backends=["tosa", "tosa"],
            registry=registry,
        )


def test_example_inputs_may_be_a_tensor_list_or_tuple(registry):
    x = torch.randn(3, 4)
    given = [
        api.lower(
            Middle().eval(), inputs, backends=[echo_partitioner()], registry=registry
        )
        for inputs in (x, [x], (x,))
    ]
    assert len({str(lowered.exported_program().graph) for lowered in given}) == 1

    lowered = given[0]
    assert repr(lowered) == f"<LoweredProgram forward: {lowered.report.summary()}>"
    assert repr(lowered.report) == f"<Report: {lowered.report.summary()}>"
    assert "\n" not in repr(lowered.verify(x))

    shown = lowered._repr_html_()
    assert shown.startswith(f"<pre>{lowered.report.summary()}\n")
    assert shown.endswith("</pre>")
    assert lowered.verify(x)._repr_html_().startswith("<pre>compared with eager")


def test_an_assertion_about_values_is_kept():
    class Bounded(nn.Module):
        def forward(self, x):
            torch._assert_async(x.sum() > 0)
            return x * 2

    bounded = api.lower(Bounded().eval(), (torch.ones(2),), backends=[])
    with pytest.raises(RuntimeError, match="nonzero value"):
        bounded(-torch.ones(2))


def test_a_lowered_program_is_not_pickled():
    program = api.lower(nn.ReLU().eval(), (torch.ones(2),), backends=[])
    with pytest.raises(errors.InputError, match=r"(?s)is not pickled.*lowered\.save"):
        pickle.dumps(program)
    assert torch.equal(copy.copy(program)(-torch.ones(2)), torch.zeros(2))
