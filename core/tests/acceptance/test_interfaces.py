"""Tests of ExecuTorch's delegation interfaces that have no file of their own."""

import re

import delegraph
import pytest
import torch
from delegraph.backend import (
    BackendDetails,
    CompileSpec,
    PreprocessResult,
    enforcedmethod,
)
from delegraph.errors import (
    BackendNotFound,
    ContractViolation,
    InputError,
    PluginConflict,
)
from delegraph.runtime import BackendRuntime
from delegraph_executorch.edge import (
    LoweredBackendModule,
    MethodProgramsPartitionerSpec,
    to_backend,
    to_edge,
    to_edge_transform_and_lower,
)
from torch.utils import _pytree as pytree

from . import backends
from .backends import (
    CALL,
    assert_close,
    aten,
    call_targets,
    export,
    export_wrapped,
    lowered_modules,
    partitioner_for,
    partitioner_for_all,
    run_on_host,
)

X = torch.randn(3)


@pytest.fixture(autouse=True)
def installed():
    with backends.installed():
        yield


def sine(s, x):
    return torch.sin(x)


def recording_backend(preprocess=lambda program, specs: PreprocessResult(b"blob")):
    """Return a backend, its runtime, and lists of the arguments that both received."""
    given = []
    loaded = []

    class RecordingBackend(BackendDetails):
        @staticmethod
        def preprocess(edge_program, compile_specs):
            given.append((edge_program, compile_specs))
            return preprocess(edge_program, compile_specs)

    class RecordingRuntime(BackendRuntime):
        @staticmethod
        def load(processed_bytes, compile_specs, named_data):
            loaded.append((processed_bytes, compile_specs, named_data))
            return lambda *args: tuple(torch.zeros_like(a) for a in args)

    return RecordingBackend, RecordingRuntime, given, loaded


# --- CompileSpec, PreprocessResult, BackendDetails ------------------------------------


def test_compile_specs_reach_the_backend_unchanged():
    backend, runtime, given, loaded = recording_backend()
    specs = [CompileSpec("b", b"1"), CompileSpec("a", b""), CompileSpec("b", b"1")]
    with delegraph.register(backend, runtime=runtime):
        lowered = to_backend("RecordingBackend", export(sine, X), specs)
        run_on_host(export_wrapped(lowered, X), X)
    assert given[0][1] == specs == lowered.compile_specs == list(loaded[0][1])

    given[0][1].clear()
    assert lowered.compile_specs == specs


def test_results_of_preprocess_reach_module_and_runtime():
    facts = {"speed": 3}
    result = PreprocessResult(b"blob", {0: (1,)}, None, facts)
    backend, runtime, _, loaded = recording_backend(lambda program, specs: result)
    with delegraph.register(backend, runtime=runtime):
        lowered = to_backend("RecordingBackend", export(sine, X), [])
        run_on_host(export_wrapped(lowered, X), X)

    assert lowered.processed_bytes == b"blob"
    assert lowered.meta["debug_handle_map"] == {0: (1,)}
    assert lowered.meta["_delegate_info_meta"] == facts
    assert loaded == [(b"blob", [], {})]
    assert PreprocessResult() == PreprocessResult(b"", None, None, None)


@pytest.mark.parametrize("wrong", [None, b"blob", PreprocessResult("text")])
def test_other_results_of_preprocess_are_refused(wrong):
    backend, _, _, _ = recording_backend(lambda program, specs: wrong)
    with (
        delegraph.register(backend),
        pytest.raises(ContractViolation, match="RecordingBackend.preprocess returned"),
    ):
        to_backend("RecordingBackend", export(sine, X), [])


def test_a_backend_class_needs_preprocess_unless_abstract():
    class Base(BackendDetails, abstract=True):
        @staticmethod
        @enforcedmethod
        def compile(program):
            raise NotImplementedError

        @classmethod
        def preprocess(cls, edge_program, compile_specs):
            return PreprocessResult(cls.compile(edge_program))

    class Finished(Base):
        @staticmethod
        def compile(program):
            return b"finished"

    with delegraph.register(Finished):
        lowered = to_backend("Finished", export(sine, X), [])
    assert lowered.backend_id == "Finished"
    assert lowered.processed_bytes == b"finished"
    with pytest.raises(
        ContractViolation, match="backend Unfinished does not define compile"
    ):
        type("Unfinished", (Base,), {})


def test_a_backend_may_rewrite_the_graph_that_it_gets():
    def rewriting(program, specs):
        for node in program.graph.nodes:
            if node.target is aten.sin.default:
                node.target = aten.cos.default
        return PreprocessResult(b"blob")

    source = export(sine, X)
    backend, _, _, _ = recording_backend(rewriting)
    with delegraph.register(backend):
        for lowered in (
            to_backend("RecordingBackend", source, []),
            *lowered_modules(
                to_backend(source, partitioner_for_all("RecordingBackend"))
            ),
        ):
            assert call_targets(lowered.original_module) == [aten.sin.default]

    assert call_targets(source) == [aten.sin.default]


def test_backends_get_the_weights_of_the_model_by_reference():
    layer = torch.nn.Linear(3, 3)
    source = export(lambda s, x: s.layer(x), X, layer=layer)
    backend, _, given, _ = recording_backend()
    with delegraph.register(backend):
        to_backend("RecordingBackend", source, [])
        to_backend(source, partitioner_for_all("RecordingBackend"))
        to_edge(source).to_backend(partitioner_for_all("RecordingBackend"))
    for program, _ in given:
        assert program.state_dict["layer.weight"].data_ptr() == layer.weight.data_ptr()


# --- look-up --------------------------------------------------------------------------


def test_missing_backend_is_refused_by_name():
    source = export(sine, X)
    for call in (
        lambda: to_backend("AbsentBackend", source, []),
        lambda: to_backend(source, partitioner_for_all("AbsentBackend")),
        lambda: to_backend(
            MethodProgramsPartitionerSpec(
                {"a": source}, {"a": partitioner_for_all("AbsentBackend")}
            )
        ),
    ):
        with pytest.raises(NotImplementedError, match="'AbsentBackend'") as caught:
            call()
        assert isinstance(caught.value, BackendNotFound)
        assert caught.value.code == "backend-not-found"


def test_two_backends_of_one_name_are_refused():
    """In ExecuTorch, the second backend replaces the first without an error."""
    first = recording_backend()[0]
    second = recording_backend()[0]
    with delegraph.register(first):
        with (
            pytest.raises(PluginConflict, match="RecordingBackend"),
            delegraph.register(second),
        ):
            to_backend("RecordingBackend", export(sine, X), [])
        lowered = to_backend("RecordingBackend", export(sine, X), [])
        assert lowered.processed_bytes == b"blob"


def test_a_backend_exists_while_it_is_registered():
    """In ExecuTorch, every class that is defined is a backend."""
    backend, _, _, _ = recording_backend()
    with pytest.raises(BackendNotFound):
        to_backend("RecordingBackend", export(sine, X), [])
    with delegraph.register(backend):
        to_backend("RecordingBackend", export(sine, X), [])
    with pytest.raises(BackendNotFound):
        to_backend("RecordingBackend", export(sine, X), [])


# --- to_backend -----------------------------------------------------------------------


def test_all_forms_of_to_backend_make_equal_blobs():
    source = to_edge(export(sine, X)).exported_program()
    whole = to_backend("CompilerBackend", source, [])
    one = to_backend(source, partitioner_for_all())
    [several] = to_backend(
        MethodProgramsPartitionerSpec({"a": source}, {"a": partitioner_for_all()})
    ).values()
    assert isinstance(whole, LoweredBackendModule)

    blobs = [
        m.processed_bytes
        for m in (whole, *lowered_modules(one), *lowered_modules(several))
    ]
    assert len(blobs) == 3
    assert len({*blobs}) == 1
    assert CALL not in call_targets(source)


def test_partitions_are_compiled_in_the_order_of_the_graph():
    backend, _, given, _ = recording_backend()
    source = export(lambda s, x: torch.cos(torch.sin(x).neg()), X)
    with delegraph.register(backend):
        to_backend(
            source,
            partitioner_for(
                aten.sin.default, aten.cos.default, backend="RecordingBackend"
            ),
        )

    assert [call_targets(p) for p, _ in given] == [
        [aten.sin.default],
        [aten.cos.default],
    ]


@pytest.mark.parametrize(
    "arguments",
    [(3,), (), (None,), ("CompilerBackend", 3), ("CompilerBackend",), (3, 4)],
)
def test_wrong_arguments_of_to_backend_are_refused(arguments):
    with pytest.raises((InputError, TypeError), match="to_backend"):
        to_backend(*arguments)


# --- the operator that calls a delegate -----------------------------------------------


def test_delegates_are_called_by_the_operator_of_torch():
    inner = to_backend("CompilerBackend", export(sine, X), [])
    assert type(inner).__name__ == "LoweredBackendModule"
    assert not hasattr(inner, "module_name")
    assert CALL.name() == "executorch_call_delegate"

    needs_gradient = X.clone().requires_grad_()
    [result] = CALL(inner, needs_gradient)
    assert_close(result, torch.sin(X))

    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        [fake] = CALL(inner, mode.from_tensor(X))
    assert isinstance(fake, torch._subclasses.FakeTensor)
    assert fake.shape == X.shape


def test_delegates_are_opaque_to_later_partitioners():
    source = export(lambda s, x: torch.sin(torch.cos(x)), X)
    first = to_edge(source).to_backend(partitioner_for(aten.sin.default))
    second = first.to_backend(partitioner_for_all("ExecutorBackend")).exported_program()

    assert [m.backend_id for m in lowered_modules(second)] == [
        "ExecutorBackend",
        "CompilerBackend",
    ]
    assert lowered_modules(second)[1] is lowered_modules(first.exported_program())[0]
    assert_close(run_on_host(second, X), torch.sin(torch.cos(X)))


class Lying(BackendRuntime):
    """Computes the cosine instead of the sine, as a wrongly compiled blob might."""

    @staticmethod
    def load(processed_bytes, compile_specs, named_data):
        return lambda x: (torch.cos(x),)


def test_verify_detects_a_wrongly_compiled_blob():
    """In ExecuTorch, a call in Python runs the original program and hides the fault."""
    backend, _, _, _ = recording_backend()
    with delegraph.register(backend, runtime=Lying):
        lowered = delegraph.lower(
            export(sine, X), backends=[partitioner_for_all("RecordingBackend")]
        )
        assert_close(lowered(X), torch.cos(X))
        assert lowered.verify(X).relative_error > 1e-3
        assert_close(
            lowered.exported_program().module(check_guards=False)(X), torch.sin(X)
        )


def test_delegates_in_branches_own_their_weights():
    """In ExecuTorch, the weights of branches are inputs at run time."""
    layers = {"a": torch.nn.Linear(3, 3), "b": torch.nn.Linear(3, 3)}
    source = export(
        lambda s, x: torch.cond(x.sum() > 0, lambda x: s.a(x), lambda x: s.b(x), [x]),
        X,
        **layers,
    )
    program = to_backend(
        source, partitioner_for(aten.linear.default, backend="ExecutorBackend")
    )
    modules = lowered_modules(program)

    assert [sorted(m.original_module.state_dict) for m in modules] == [
        [f"{n}.bias", f"{n}.weight"] for n in "ab"
    ]
    assert [len(m.inputs) for m in modules] == [1, 1]
    assert not program.state_dict
    for x in (X.abs(), -X.abs()):
        assert_close(run_on_host(program, x), source.module(check_guards=False)(x))


def test_loop_bodies_have_delegates():
    def function(s, k, x):
        return torch._higher_order_ops.while_loop(
            lambda k, x: k > 0, lambda k, x: (k - 1, torch.sin(x)), (k, x)
        )

    source = export(function, torch.tensor(2), X)
    program = to_backend(source, partitioner_for(aten.sin.default))
    assert [call_targets(m.original_module) for m in lowered_modules(program)] == [
        [aten.sin.default]
    ]
    assert_close(
        run_on_host(program, torch.tensor(2), X),
        (torch.tensor(0), torch.sin(torch.sin(X))),
    )


def test_kept_operators_stay_whole_in_nested_branches():
    def inner(s, x):
        return torch.cond(x.sum() > 1, lambda x: s.layer(x), lambda x: x * 2, [x])

    layer = torch.nn.Linear(3, 3)
    source = export(
        lambda s, x: torch.cond(x.sum() > 0, lambda x: inner(s, x), lambda x: -x, [x]),
        X,
        layer=layer,
    )
    keeper = partitioner_for(aten.linear.default, backend="ExecutorBackend")
    program = to_edge_transform_and_lower(
        source, partitioner=[keeper]
    ).exported_program()

    assert [call_targets(m.original_module) for m in lowered_modules(program)] == [
        [aten.linear.default]
    ]
    assert_close(run_on_host(program, torch.ones(3)), layer(torch.ones(3)))


def test_keeping_an_operator_whole_registers_no_operator():
    before = set(torch._C._dispatch_get_all_op_names())
    source = export(lambda s, x: s.layer(x), X, layer=torch.nn.Linear(3, 3))
    to_edge_transform_and_lower(
        source,
        partitioner=[partitioner_for(aten.linear.default, backend="ExecutorBackend")],
    )
    assert set(torch._C._dispatch_get_all_op_names()) == before


def test_the_report_names_the_producer_of_a_blob():
    lowered = delegraph.lower(export(sine, X), backends=[partitioner_for_all()])
    assert [row.producer for row in lowered.report.delegates] == ["in-process"]


# --- the calling convention -----------------------------------------------------------


def test_a_delegate_records_names_and_types_of_its_inputs():
    source = export(
        lambda s, a, b: (torch.mm(a, b) + s.c, b * 2),
        torch.ones(2, 3),
        torch.ones(3, 2),
        c=torch.ones(2),
    )
    [inner] = lowered_modules(
        to_backend(source, partitioner_for_all("ExecutorBackend"))
    )

    assert [str(value) for value in inner.inputs] == [
        "inputs_0: float32[2, 3]",
        "inputs_1: float32[3, 2]",
    ]
    assert [str(output) for output in inner.outputs] == [
        "add: float32[2, 2]",
        "mul: float32[3, 2]",
    ]


def backend_that_edits_inputs(change):
    """Return a backend that changes the placeholders of its graph before it compiles."""

    def preprocess(program, specs):
        change(
            program.graph,
            [node for node in program.graph.nodes if node.op == "placeholder"],
        )
        return PreprocessResult(b"blob")

    return recording_backend(preprocess)[0]


def drop(graph, nodes):
    """Remove the last input, as a dead-code pass does after its last use is folded."""
    nodes[-1].replace_all_uses_with(nodes[-2])
    graph.erase_node(nodes[-1])


def reorder(graph, nodes):
    nodes[-1].append(nodes[-2])


@pytest.mark.parametrize(
    ("change", "inputs"),
    [(drop, "['inputs_0']"), (reorder, "['inputs_1', 'inputs_0']")],
    ids=["dropped", "reordered"],
)
def test_backends_that_drop_or_reorder_inputs_are_refused(change, inputs):
    """In ExecuTorch, the blob reads its arguments in the wrong order."""
    source = export(
        lambda s, a, b: (a - s.c) * b, torch.ones(2), torch.zeros(2), c=torch.ones(2)
    )
    text = re.escape("its inputs are ['inputs_0', 'inputs_1'], and " + inputs)
    with (
        delegraph.register(backend_that_edits_inputs(change)),
        pytest.raises(ContractViolation, match=text),
    ):
        to_backend(source, partitioner_for_all("RecordingBackend"))


def test_a_backend_may_fold_its_constants():
    def fold(graph, nodes):
        assert nodes[0].name == "b_c"
        nodes[0].replace_all_uses_with(nodes[1])
        graph.erase_node(nodes[0])

    source = export(lambda s, a: a - s.c, torch.ones(2), c=torch.ones(2))
    with delegraph.register(backend_that_edits_inputs(fold)):
        [inner] = lowered_modules(
            to_backend(source, partitioner_for_all("RecordingBackend"))
        )

    assert list(inner.original_module.state_dict) == ["c"]


def test_programs_of_backends_have_no_delegation_tags():
    """A backend may therefore partition its program itself."""
    backend, _, given, _ = recording_backend()
    with delegraph.register(backend):
        to_backend(
            export(lambda s, x: torch.sin(x) + s.c, X, c=torch.ones(3)),
            partitioner_for_all("RecordingBackend"),
        )

    assert all(
        "delegation_tag" not in n.meta
        for program, _ in given
        for n in program.graph.nodes
    )


def test_two_threads_may_lower_at_once():
    from concurrent.futures import ThreadPoolExecutor

    sources = [export(lambda s, x, k=k: torch.sin(x) * k, X) for k in range(4)]

    def blob(source):
        return lowered_modules(to_backend(source, partitioner_for_all()))[
            0
        ].processed_bytes

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(blob, sources)) == [blob(s) for s in sources]


def test_lowered_module_returns_the_structure_of_the_program():
    source = export(lambda s, x: {"a": [x + 1, x * 2], "b": (torch.sin(x),)}, X)
    lowered = to_backend("CompilerBackend", source, [])
    actual = lowered(X)
    expected = source.module(check_guards=False)(X)
    assert pytree.tree_structure(actual) == pytree.tree_structure(expected)
    assert_close(actual, expected)
    assert_close(run_on_host(export_wrapped(lowered, X), X), expected)
