"""Partitions that a compiler refuses go to the next backend or to the host."""

import copy
import random
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import delegraph
import pytest
import torch
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.discovery.registry import Registry
from delegraph.engine.pipeline import Journal, Settings, Turn, lower_exported
from delegraph.engine.serial_compiler import Serial
from delegraph.errors import (
    ContractViolation,
    NotFullyDelegated,
    PluginFailed,
    Unsupported,
)
from delegraph.partitioner import (
    CapabilityPartitioner,
    DelegationSpec,
    Limits,
    Partitioner,
    PartitionResult,
    Reason,
)
from delegraph.runtime import BackendRuntime
from delegraph_engines import WrappingPartitioner, tag_constant_data, tag_mutated_buffer
from delegraph_executorch.edge import extract_partition, to_backend
from delegraph_workers import Compiler
from torch import nn

from core.tests.conftest import COMPILED, EchoRuntime
from programs.tests.support import aliasing_programs

aten = torch.ops.aten


def operator_names(program):
    return [
        node.target.overloadpacket.__name__
        for node in program.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload)
    ]


def make_backend(
    name, refuses=lambda names: None, joint=False, safe=False, rewrites=False
):
    """Return a backend whose runtime runs the original program.

    ``refuses(names of operators)`` returns a reason, an exception or None.
    """

    class Made(BackendDetails):
        thread_safe = safe
        seen: ClassVar = []

        @staticmethod
        def preprocess(edge_program, compile_specs):
            names = operator_names(edge_program)
            Made.seen.append(names)
            if rewrites:
                for node in edge_program.graph.nodes:
                    if node.target is aten.relu.default:
                        node.target = aten.abs.default
            why = refuses(names)
            if isinstance(why, Exception):
                raise why
            if why is not None:
                raise Unsupported("unsupported", why)
            blob = f"program {len(COMPILED)}".encode()
            COMPILED[blob] = edge_program
            return PreprocessResult(blob)

    if joint:

        def preprocess_multimethod(cls, edge_programs, compile_specs):
            return {
                m: [cls.preprocess(p, []) for p in programs]
                for m, programs in edge_programs.items()
            }

        Made.preprocess_multimethod = classmethod(preprocess_multimethod)
    Made.__name__ = Made.__qualname__ = name
    return Made


def partitioner_for(backend_id, *names, **more):
    def why_not(node):
        known = getattr(
            getattr(node.target, "overloadpacket", None), "__name__", str(node.target)
        )
        return None if not names or known in names else f"{backend_id} has no {known}"

    return CapabilityPartitioner(why_not, backend_id, **more)


def registry_with(*backends):
    registry = Registry(discover=False)
    for one in backends:
        registry.register(one, runtime=EchoRuntime)
    return registry


def lower_for(module, inputs, *pairs, **more):
    """Lower ``module`` with pairs of a backend and its partitioner."""
    registry = registry_with(*(b for b, _ in pairs))
    module = module.eval() if isinstance(module, nn.Module) else module
    return delegraph.lower(
        module, inputs, backends=[p for _, p in pairs], registry=registry, **more
    )


def assert_equals_eager(program, *inputs):
    for output in program.verify(*inputs).outputs:
        assert output.max_abs_error <= 1e-6, output
        assert not output.mismatched, output


class Thirds(nn.Module):
    """Nine layers, each followed by a sine (every third) or a cosine."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(9))

    def forward(self, x):
        for k, layer in enumerate(self.layers):
            x = layer(x).relu()
            x = x.sin() if k % 3 == 1 else x.cos()
        return x


def backend_refusing_sines():
    """Return a backend whose compiler refuses programs with a sine."""
    return make_backend(
        "FirstBackend",
        lambda names: "the sine table is full" if "sin" in names else None,
    )


FIRST = ("linear", "relu", "sin")


def test_one_partition_in_three_is_given_to_the_host():
    x = torch.randn(2, 4)
    first = backend_refusing_sines()
    program = lower_for(
        Thirds(),
        (x,),
        (first, partitioner_for("FirstBackend", *FIRST, limits=Limits(largest=3))),
    )
    assert len(first.seen) == 9
    assert len(program.delegates) == 6

    given = program.report.given_back
    assert len(given) == 3
    assert len({row.partition for row in given}) == 3

    expected = {"aten.linear.default": 1, "aten.relu.default": 1, "aten.sin.default": 1}
    text = str(program.report)
    for row in given:
        assert row.operators == expected
        assert row.reason == "the sine table is full"
        assert f"    {row.partition}  3 operators  " in text
        assert "test_refused.py" in row.source.file
    assert program.report.to_json()["given_back"][0]["operators"] == expected

    rows = [
        refusal
        for refusal in program.report.refusals
        if refusal.operator == "aten.linear.default"
    ]
    assert sum(r.count for r in rows) == 3
    assert all(
        "the sine table is full" in r.reason and "test_refused.py" in r.source.file
        for r in rows
    )
    assert_equals_eager(program, x)


def test_next_backend_gets_the_refused_part_and_its_neighbours():
    x = torch.randn(2, 4)
    first = backend_refusing_sines()
    second = make_backend("SecondBackend")
    pairs = (
        (first, partitioner_for("FirstBackend", *FIRST, limits=Limits(largest=3))),
        (second, partitioner_for("SecondBackend")),
    )
    program = lower_for(Thirds(), (x,), *pairs, require_full=True)
    # the cosine before was refused from the start
    assert ["cos", "linear", "relu", "sin"] in second.seen
    assert program.report.host_operators == 0

    text = str(program.report)
    assert len(program.report.given_back) == 3
    assert all(row.partition in text for row in program.report.given_back)
    assert_equals_eager(program, x)


def test_require_full_raises_for_operators_on_the_host():
    partitioner = partitioner_for(
        "FirstBackend", "linear", "relu", "sin", "cos", limits=Limits(largest=3)
    )
    pair = (backend_refusing_sines(), partitioner)
    text = "its compiler refused the partition: the sine table is full"
    with pytest.raises(NotFullyDelegated, match=text):
        lower_for(Thirds(), (torch.randn(2, 4),), pair, require_full=True)


def test_to_backend_raises_the_refusal():
    """It has no report, and raises as in ExecuTorch."""
    kind = make_backend("LoneBackend", lambda names: "too large")
    program = torch.export.export(nn.ReLU().eval(), (torch.ones(2),))
    with delegraph.register(kind, runtime=EchoRuntime):
        with pytest.raises(Unsupported, match="too large"):
            to_backend(program, partitioner_for("LoneBackend"))
        with pytest.raises(Unsupported, match="too large"):
            to_backend("LoneBackend", program, [])


def test_require_full_raises_if_the_compiler_raises():
    pair = (
        make_backend("SadBackend", lambda names: ValueError("a defect")),
        partitioner_for("SadBackend"),
    )

    with pytest.raises(
        NotFullyDelegated,
        match="its compiler failed on the partition: ValueError: a defect",
    ):
        lower_for(nn.ReLU(), (torch.ones(2),), pair, require_full=True)


def test_refusing_backend_must_not_write_weights():
    class WritingBackend(BackendDetails):
        @staticmethod
        def preprocess(edge_program, compile_specs):
            next(iter(edge_program.state_dict.values())).data.zero_()
            raise Unsupported("unsupported", "too late")

    with pytest.raises(ContractViolation, match="changed weights"):
        lower_for(
            nn.Linear(2, 2),
            (torch.ones(1, 2),),
            (WritingBackend, partitioner_for("WritingBackend")),
        )


class Two(nn.Module):
    def forward(self, x):
        return torch.sin(torch.relu(x).sum(0).tanh()) + 1


def test_a_joint_compiler_compiles_again_without_refused_partitions():
    class JointBackend(make_backend("Base")):
        @classmethod
        def preprocess_multimethod(cls, edge_programs, compile_specs):
            cls.seen.append({m: len(p) for m, p in edge_programs.items()})
            programs = [one for listed in edge_programs.values() for one in listed]
            nodes = [node for program in programs for node in program.graph.nodes]
            for node in nodes:
                if node.target is aten.sin.default:
                    raise Unsupported("unsupported", "no sine", node)
                if node.target is aten.relu.default:
                    # each repeated call gets fresh copies, so this change has no effect
                    # on the next one
                    node.target = aten.abs.default
            return super().preprocess_multimethod(edge_programs, compile_specs)

    JointBackend.seen = []
    pair = JointBackend, partitioner_for("JointBackend", "relu", "sin")
    x = torch.randn(3, 2)
    program = lower_for(
        {"a": Two().eval(), "b": Two().eval()}, {"a": (x,), "b": (x,)}, pair
    )

    assert JointBackend.seen == [{"a": 2, "b": 2}, {"a": 1, "b": 2}, {"a": 1, "b": 1}]
    assert [(row.method, row.operators) for row in program.report.given_back] == [
        ("a", {"aten.sin.default": 1}),
        ("b", {"aten.sin.default": 1}),
    ]
    assert [delegate.method for delegate in program.delegates] == ["a", "b"]
    # abs in place of relu
    torch.testing.assert_close(program.method("b")(-x.abs()), Two()(x.abs()))


def test_a_joint_refusal_without_a_node_refuses_all_partitions():
    pair = (
        make_backend("AllBackend", lambda names: "no memory", joint=True),
        partitioner_for("AllBackend", "relu", "sin"),
    )
    program = lower_for(Two(), (torch.ones(3, 2),), pair)

    assert len(program.report.given_back) == 2
    assert not program.delegates
    assert_equals_eager(program, torch.ones(3, 2))


def test_refused_partitions_are_divided_in_threads_too():
    x = torch.randn(2, 4)
    first = make_backend(
        "FirstBackend", lambda names: "full" if "sin" in names else None, safe=True
    )
    with ThreadPoolExecutor(3) as pool:
        program = lower_for(
            Thirds(),
            (x,),
            (first, partitioner_for("FirstBackend", *FIRST)),
            compiler=Compiler(executor=pool),
        )

    assert len(program.report.given_back) == 3
    assert len(program.delegates) == 3
    assert_equals_eager(program, x)


class Table(nn.Module):
    """Two partitions read one computed constant."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.randn(4, 4))

    def forward(self, x):
        table = self.table.t().tanh()
        return (x.sinh() @ table).cosh().sin() @ table


@pytest.mark.parametrize("refused", ["sinh", "sin"])
def test_a_constant_of_a_refused_partition_is_computed_once(refused):
    x = torch.randn(4, 4)
    backend = make_backend(
        "TableBackend", lambda names: "full" if refused in names else None
    )
    taken = ("t", "tanh", "mm", "sinh", "sin", "matmul", "transpose", "permute")
    partitioner = partitioner_for("TableBackend", *taken)

    program = lower_for(Table(), (x,), (backend, partitioner))

    assert len(program.delegates) == 1
    assert len(program.report.given_back) == 1
    assert "aten.tanh.default" not in program.report.host["forward"]
    assert any("computed while lowering" in note for note in program.report.notes)
    assert_equals_eager(program, x)


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(2))

    def forward(self, x):
        self.count += x.relu()
        return self.count * 2


class Keeping(CapabilityPartitioner):
    """A partitioner whose delegates keep the buffers that they write."""

    def partition(self, exported_program):
        result = super().partition(exported_program)
        tag_mutated_buffer(exported_program)
        return result


@pytest.mark.parametrize("refuses", [True, False])
def test_the_host_keeps_the_state_of_a_refused_partition(refuses):
    kind = make_backend("StateBackend", lambda names: "no state" if refuses else None)
    program = lower_for(
        Counter(), (torch.ones(2),), (kind, Keeping(lambda n: None, "StateBackend"))
    )
    if refuses:
        assert program.delegates == []
    else:
        [delegate] = program.delegates
        assert delegate.module.keeps_state
    results = [program(torch.ones(2)).tolist() for _ in range(3)]

    assert results == [[2, 2], [4, 4], [6, 6]]


class Branches(nn.Module):
    def forward(self, x):
        def yes(x):
            return (x.sin() + 1).cosh().relu()

        def no(x):
            return x.relu()

        return torch.cond(x.sum() > 0, yes, no, (x,)).tanh()


def test_refused_partitions_of_branches_go_to_the_next_backend():
    kind = make_backend("BodyBackend", lambda names: "full" if "sin" in names else None)
    x = torch.randn(3)
    second = make_backend("NextBackend")
    pairs = (
        (kind, partitioner_for("BodyBackend", "sin", "add", "relu")),
        (second, partitioner_for("NextBackend", "sin")),
    )
    program = lower_for(Branches(), (x,), *pairs)

    assert [row.operators for row in program.report.given_back] == [
        {"aten.sin.default": 1, "aten.add.Tensor": 1}
    ]
    assert second.seen == [["sin"]]
    for inputs in (x.abs(), -x.abs()):
        assert_equals_eager(program, inputs)


def test_bodies_of_a_refused_branch_go_to_the_next_backend():
    """The host calls the branch itself."""
    kind = make_backend("WholeBackend", lambda names: "no branches")
    second = make_backend("NextBackend")

    def why_not(node):
        is_cond = "cond" in str(node.target) or node.target.__name__ == "getitem"
        return None if is_cond else "no"

    pairs = (
        (kind, CapabilityPartitioner(why_not, "WholeBackend")),
        (second, partitioner_for("NextBackend", "relu")),
    )
    program = lower_for(Branches(), (torch.randn(3),), *pairs)

    assert len(program.report.given_back) == 1
    assert second.seen == [["relu"], ["relu"]]
    for inputs in (torch.ones(3), -torch.ones(3)):
        assert_equals_eager(program, inputs)


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)

    def forward(self, x):
        return self.norm(x.sinh()).tanh()


class Tagging(Partitioner):
    """Has no check for single calls, so it gets core ATen."""

    def partition(self, exported_program):
        spec = DelegationSpec("TagBackend")
        for node in exported_program.graph.nodes:
            if node.op == "call_function":
                node.meta["delegation_tag"] = "all"
        tag_constant_data(exported_program)
        return PartitionResult(exported_program, {"all": spec})


@pytest.mark.parametrize(
    "partitioner",
    [Tagging(), partitioner_for("TagBackend", "sinh", "native_layer_norm", "tanh")],
)
def test_operators_decomposed_for_a_refusing_backend_are_restored(partitioner):
    x = torch.randn(2, 4)
    first = make_backend(
        "TagBackend", lambda names: "full" if "native_layer_norm" in names else None
    )
    program = lower_for(Normed(), (x,), (first, partitioner))
    assert "native_layer_norm" in str(first.seen)
    assert program.report.host["forward"].get("aten.layer_norm.default") == 1

    (row,) = (
        refusal
        for refusal in program.report.refusals
        if refusal.operator == "aten.layer_norm.default"
    )
    assert "full" in row.reason
    assert_equals_eager(program, x)


def test_partitions_of_a_wrapped_partitioner_can_be_refused():
    x = torch.randn(2, 4)
    kind = make_backend(
        "OuterBackend", lambda names: "full" if "sin" in names else None
    )
    partitioner = WrappingPartitioner(
        partitioner_for("InnerBackend", *FIRST), "OuterBackend"
    )
    program = lower_for(Thirds(), (x,), (kind, partitioner))

    assert {row.backend for row in program.report.given_back} == {"WrappingPartitioner"}
    assert len(program.delegates) == 3
    assert_equals_eager(program, x)


def test_a_refused_partition_with_a_cast_input_equals_eager():
    class Ids(CapabilityPartitioner):
        def partition(self, exported_program):
            result = super().partition(exported_program)
            result.boundary_types["x"] = torch.int32
            return result

    class Lookup(nn.Module):
        def forward(self, x):
            return (x + 1).cosh().sin(), (x + 2).relu()

    x = torch.arange(4)
    kind = make_backend("IdsBackend", lambda names: "full" if "relu" in names else None)
    support = partitioner_for("", "add", "sin", "relu").support
    partitioner = Ids(support, "IdsBackend", limits=Limits(largest=1))

    program = lower_for(Lookup(), (x,), (kind, partitioner))

    assert program.report.given_back
    assert_equals_eager(program, x)


def test_predictions_leave_out_operators_that_the_compiler_refused():
    def why_not(node):
        if node.meta["val"].dtype is torch.float64 and node.target is not aten.to.dtype:
            return Reason(
                "it is float64",
                cause="float64",
                of=node.all_input_nodes[0],
                unless=torch.float32,
            )
        return None

    class Wide(nn.Module):
        def forward(self, x, y):
            return x.sin().cos(), y.relu()

    kind = make_backend(
        "WideBackend", lambda names: "full" if "relu" in names else None
    )
    inputs = torch.ones(2, dtype=torch.float64), torch.ones(2)
    partitioner = CapabilityPartitioner(why_not, "WideBackend")
    programs = {"forward": torch.export.export(Wide(), inputs)}
    registry = registry_with(kind)
    settings = Settings(
        registry,
        Serial().session(registry, ()),
        [Turn("wide", {"forward": partitioner}, may_repeat=True)],
        has_report=True,
    )
    causes = lower_exported(programs, settings, Journal()).report.causes

    assert [
        (c.frees, sum(c.operators.values())) for c in causes if c.frees is not None
    ] == [(2, 2)]


def test_the_reason_has_the_compilers_hint_and_line():
    def refuse(names):
        return Unsupported(
            "unsupported", "a window of 9x9", source="net.py:7", hint="pool twice"
        )

    pair = make_backend("HintBackend", refuse), partitioner_for("HintBackend")
    report = lower_for(
        nn.Sequential(nn.ReLU(), nn.Tanh()), (torch.ones(2),), pair
    ).report
    (cause,) = report.causes

    assert cause.count == 2
    assert cause.hint == "pool twice"
    assert cause.reason == "its compiler refused the partition: a window of 9x9"


class FailingRuntime(BackendRuntime):
    @staticmethod
    def load(processed_bytes, compile_specs, named_data):
        def run(*args):
            raise ValueError("no device")

        return run


def test_run_time_errors_name_the_partition_of_a_rewritten_program():
    class F(nn.Module):
        def forward(self, input):
            return input.relu()

    kind = make_backend("RewritingBackend", rewrites=True)
    registry = Registry(discover=False)
    registry.register(kind, runtime=FailingRuntime)
    program = delegraph.lower(
        F().eval(),
        (torch.ones(2),),
        backends=[partitioner_for("RewritingBackend")],
        registry=registry,
    )

    with pytest.raises(
        PluginFailed, match="partition RewritingBackend_0 of method forward"
    ):
        program(torch.ones(2))


class AsksItsCompiler:
    """Names the operator to blame before it lowers, so that the rest is delegated."""

    def __init__(self, compiler):
        self.compiler = compiler
        self.programs = []

    def begin(self, exported_program):
        self.program = exported_program

    def why_not(self, node):
        return (
            None
            if node.target in (aten.linear.default, aten.relu.default, aten.sin.default)
            else "not ours"
        )

    def is_constant(self, node):
        return False

    def partition_why_not(self, nodes):
        self.programs.append(extract_partition(self.program, nodes))
        try:
            self.compiler.preprocess(self.programs[-1], [])
        except Unsupported as refusal:
            return {n: refusal.message for n in nodes if n.name == refusal.node.name}
        return {}


def test_a_support_check_may_compile_an_extracted_program():
    class ExactBackend(BackendDetails):
        @staticmethod
        def preprocess(edge_program, compile_specs):
            for node in edge_program.graph.nodes:
                if node.target is aten.sin.default:
                    raise Unsupported("unsupported", "the sine table is full", node)
            return PreprocessResult(b"")

    x = torch.randn(2, 4)
    support = AsksItsCompiler(ExactBackend)
    program = lower_for(
        Thirds(),
        (x,),
        (
            ExactBackend,
            CapabilityPartitioner(support, "ExactBackend", limits=Limits(largest=3)),
        ),
    )
    assert not program.report.given_back
    assert len(program.delegates) == 9
    assert program.report.host["forward"]["aten.sin.default"] == 3

    compiled = program.delegates[0].module.original_module
    asked = next(
        p for p in support.programs if operator_names(p) == operator_names(compiled)
    )
    assert str(asked.graph_signature) == str(compiled.graph_signature)
    assert [node.format_node() for node in asked.graph.nodes] == [
        node.format_node() for node in compiled.graph.nodes
    ]
    assert asked.state_dict.keys() == compiled.state_dict.keys() != set()


@pytest.mark.parametrize("seed", range(12))
def test_random_refused_partitions_equal_eager_over_two_calls(seed):
    """A third of the partitions is refused. The next backend supports half of their
    calls.
    """
    chance = random.Random(seed)
    module = aliasing_programs.Program(seed).eval()
    masks = [chance.getrandbits(61) for _ in range(2)]

    def partitioner(name, mask):
        return CapabilityPartitioner(
            lambda n: (
                "by chance" if mask >> (n.meta["debug_handle"] % 61) & 1 else None
            ),
            name,
            limits=Limits(largest=4),
        )

    first = make_backend(
        "FirstBackend", lambda names: "by chance" if len(first.seen) % 3 == 1 else None
    )
    pairs = (
        (first, partitioner("FirstBackend", masks[0])),
        (
            make_backend("SecondBackend"),
            partitioner("SecondBackend", masks[1]),
        ),
    )
    program = lower_for(module, aliasing_programs.inputs(0), *pairs)
    eager = copy.deepcopy(module)
    for call in range(2):
        mine = aliasing_programs.inputs(call)
        theirs = aliasing_programs.inputs(call)
        torch.testing.assert_close(program(*mine), eager(*theirs), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)

    assert len(first.seen) == sum(
        delegate.backend_id == "FirstBackend" for delegate in program.delegates
    ) + len(program.report.given_back)


def test_an_error_that_causes_itself_is_a_refusal():
    class SelfCausedBackend(BackendDetails):
        @staticmethod
        def preprocess(edge_program, compile_specs):
            error = RuntimeError("cannot compile")
            raise error from error

    registry = Registry(discover=False)
    partitioner = CapabilityPartitioner(lambda node: None, "SelfCausedBackend")
    registry.register(SelfCausedBackend, partitioner=partitioner, name="broken")
    lowered = delegraph.lower(
        nn.ReLU().eval(), (torch.ones(2),), backends=["broken"], registry=registry
    )

    assert lowered.delegates == []
    assert "RuntimeError: cannot compile" in str(lowered.report)
