"""Bodies of cond, while_loop, map and scan are partitioned, compiled, run and reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

import delegraph
import pytest
import torch
from delegraph import Registry
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.partitioner import CapabilityPartitioner
from delegraph.runtime import BackendRuntime
from delegraph_programs import all_nodes, normalize, placeholders
from delegraph_programs.higher_order_subgraphs import graphs
from torch._higher_order_ops import scan
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.while_loop import while_loop
from torch.fx import GraphModule, Node

pytestmark = [  # torch's own, about its own code, when it traces map and scan
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
    pytest.mark.filterwarnings(
        "ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"
    ),
]
aten = torch.ops.aten
CALL_DELEGATE = torch.ops.higher_order.executorch_call_delegate


class BodyBackend(BackendDetails):
    """Keeps its programs in a table. The blob is the key."""

    programs: ClassVar[dict[bytes, torch.export.ExportedProgram]] = {}
    calls: ClassVar[list[dict[str, int]]] = []

    @classmethod
    def preprocess_multimethod(cls, edge_programs, compile_specs):
        cls.calls.append({m: len(p) for m, p in edge_programs.items()})
        return super().preprocess_multimethod(edge_programs, compile_specs)

    @staticmethod
    def preprocess(edge_program, compile_specs):
        key = str(len(BodyBackend.programs)).encode()
        BodyBackend.programs[key] = edge_program
        return PreprocessResult(key)


class BodyRuntime(BackendRuntime):
    """Runs the recorded program."""

    runs: ClassVar[list[bytes]] = []

    @staticmethod
    def load(processed_bytes, compile_specs, named_data):
        module = BodyBackend.programs[processed_bytes].module(check_guards=False)

        def run(*args):
            BodyRuntime.runs.append(processed_bytes)
            return module(*args)

        return run


def partitioner_for(*operators) -> CapabilityPartitioner:
    """Return a partitioner for operators with these names."""
    return CapabilityPartitioner(
        lambda n: None if n.target in operators else "not mine", "BodyBackend"
    )


@pytest.fixture
def registry() -> Iterator[Registry]:
    BodyBackend.programs = {}
    BodyBackend.calls = []
    BodyRuntime.runs = []
    registry = Registry(discover=False)
    registry.register(BodyBackend, runtime=BodyRuntime)
    yield registry


class Cond(torch.nn.Module):
    """A branch with weights, a branch without, and calls around them."""

    def __init__(self) -> None:
        super().__init__()
        self.one = torch.nn.Linear(4, 4)
        self.two = torch.nn.Linear(4, 4)
        self.register_buffer("shift", torch.randn(4))

    def forward(self, x):
        y = torch.cond(
            x.sum() > 0,
            lambda x: self.one(x) + self.shift,
            lambda x: (self.two(x) * 2).sin(),
            (x + 1,),
        )
        return y + 2


class Loop(torch.nn.Module):
    """A counted loop with weights in its body. The first carried value starts as a
    buffer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("start", torch.zeros(4))

    def forward(self, x):
        count, value, total = while_loop(
            lambda i, a, t: i < 3,
            lambda i, a, t: (i + 1, self.linear(a).sin(), t + a.sum(0)),
            (torch.tensor(0), x, self.start.clone()),
        )
        return value, total, count


class Map(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 4))

    def forward(self, xs, y):
        return torch_map(lambda x, y: (x @ self.weight + y).relu(), xs @ self.weight, y)


class Scan(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 4))

    def forward(self, xs):
        def step(carry, x):
            after = torch.mm(carry, self.weight).tanh() + x
            return after, after * 2

        last, ys = scan(step, torch.ones(2, 4), xs, dim=0)
        return last, ys + 1


class Nested(torch.nn.Module):
    """A map with a cond with a cond, as in ExecuTorch's test of nested control flow."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 4))

    def forward(self, xs, y):
        def deep(x):
            return torch.cond(
                x.sum() > 1, lambda x: x @ self.weight, lambda x: x.cos() + 1, (x,)
            )

        def body(x, y):
            return (
                torch.cond(
                    x.sum() > 0, lambda x, y: deep(x + y), lambda x, y: x - y, (x, y)
                )
                + y
            )

        return torch_map(body, xs + 1, y)


MODELS: dict[
    str, tuple[Callable[[], torch.nn.Module], list[tuple[torch.Tensor, ...]]]
] = {
    "cond": (Cond, [(torch.ones(3, 4),), (-torch.ones(3, 4),)]),
    "while_loop": (Loop, [(torch.randn(3, 4),)]),
    "map": (Map, [(torch.randn(5, 3, 4), torch.randn(4))]),
    "scan": (Scan, [(torch.randn(5, 2, 4),)]),
    "nested": (
        Nested,
        [
            (torch.ones(2, 4, 4), torch.ones(4, 4)),
            (-torch.ones(2, 4, 4), torch.ones(4, 4)),
        ],
    ),
}
MINE = (
    aten.linear.default,
    aten.mm.default,
    aten.matmul.default,
    aten.addmm.default,
    aten.add.Tensor,
    aten.mul.Tensor,
    aten.sin.default,
    aten.relu.default,
    aten.tanh.default,
)


PRODUCTS = (aten.linear.default, aten.matmul.default, aten.mm.default)


def delegates_at(module: GraphModule) -> dict[str, int]:
    """Return the delegate calls of each body, by its path. The path of the whole is ""."""
    found = {k: m for k, m in module.named_modules() if isinstance(m, GraphModule)}
    return {
        k: sum(node.target is CALL_DELEGATE for node in m.graph.nodes)
        for k, m in found.items()
    }


def higher_order(module: GraphModule, name: str) -> Node:
    return next(
        node
        for node in module.graph.nodes
        if getattr(node.target, "__name__", "") == name
    )


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("mine", [MINE, PRODUCTS, ()], ids=["most", "products", "none"])
def test_programs_with_subgraphs_equal_eager(name, mine, registry):
    make, cases = MODELS[name]
    model = make().eval()
    lowered = delegraph.lower(
        model, cases[0], backends=[partitioner_for(*mine)], registry=registry
    )
    for inputs in cases:
        expected = model(*inputs)
        actual = lowered(*inputs)
        torch.testing.assert_close(actual, expected)
        torch.testing.assert_close(
            lowered.exported_program().module()(*inputs), expected
        )

    assert not mine or BodyRuntime.runs


def test_each_body_is_partitioned(registry):
    counts = {}
    for name, (make, cases) in MODELS.items():
        lowered = delegraph.lower(
            make().eval(),
            cases[0],
            backends=[partitioner_for(*MINE)],
            registry=registry,
        )
        counts[name] = delegates_at(lowered.exported_program().graph_module)

    assert counts["cond"] == {"": 2, "true_graph_0": 1, "false_graph_0": 1}
    assert counts["while_loop"] == {
        "": 0,
        "while_loop_cond_graph_0": 0,
        "while_loop_body_graph_0": 1,
    }
    assert counts["map"] == {"": 1, "body_graph_0": 1}
    assert counts["scan"] == {"": 1, "scan_combine_graph_0": 1}
    assert counts["nested"] == {
        "": 1,
        "body_graph_0": 1,
        "body_graph_0.true_graph_0": 1,
        "body_graph_0.true_graph_0.true_graph_0": 1,
        "body_graph_0.true_graph_0.false_graph_0": 1,
        "body_graph_0.false_graph_0": 0,
    }


def test_a_delegate_in_a_branch_owns_its_weights(registry):
    """In ExecuTorch, a branch gets every weight as a run-time input (issue 18144)."""
    lowered = delegraph.lower(
        Cond().eval(),
        (torch.ones(3, 4),),
        backends=[partitioner_for(*MINE)],
        registry=registry,
    )
    program = lowered.exported_program()
    assert not program.state_dict
    assert [n.name for n, _ in placeholders(program)] == ["x"]
    assert len(higher_order(program.graph_module, "cond").args[3]) == 1

    owned = {
        delegate.name: sorted(delegate.module.original_module.state_dict)
        for delegate in lowered.delegates
    }
    assert owned["true_graph_0.lowered_module_2"] == ["one.bias", "one.weight", "shift"]
    assert owned["false_graph_0.lowered_module_3"] == ["two.bias", "two.weight"]


def test_weights_are_owned_at_any_depth(registry):
    make, cases = MODELS["nested"]
    lowered = delegraph.lower(
        make().eval(), cases[0], backends=[partitioner_for(*MINE)], registry=registry
    )
    assert not lowered.exported_program().state_dict

    holds = [
        delegate.name
        for delegate in lowered.delegates
        if delegate.module.original_module.state_dict
    ]
    assert holds == ["body_graph_0.true_graph_0.true_graph_0.lowered_module_3"]


def test_a_constant_that_the_host_needs_in_a_branch_stays(registry):
    """The host adds the bias of the true branch. The false branch does not use it."""
    lowered = delegraph.lower(
        Cond().eval(),
        (torch.ones(3, 4),),
        backends=[partitioner_for(*PRODUCTS)],
        registry=registry,
    )
    program = lowered.exported_program()
    assert list(program.state_dict) == ["shift"]

    inner = [
        getattr(program.graph_module, k).graph
        for k in ("true_graph_0", "false_graph_0")
    ]
    names = [[node.name for node in g.nodes if node.op == "placeholder"] for g in inner]
    assert names[0] == names[1]
    assert len(names[0]) == 2


def test_a_carried_buffer_stays_an_input_of_the_delegate(registry):
    """Its value changes in each iteration."""

    class Count(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("start", torch.zeros(4))

        def forward(self, x):
            turns = torch.zeros((), dtype=torch.int64)
            return while_loop(
                lambda i, a: i < 3, lambda i, a: (i + 1, a + x), (turns, self.start)
            )[1]

    x = torch.randn(4)
    lowered = delegraph.lower(
        Count().eval(), (x,), backends=[partitioner_for(*MINE)], registry=registry
    )

    torch.testing.assert_close(lowered(x), 3 * x)
    assert lowered.delegates[0].module.original_module.state_dict == {}


def test_methods_and_bodies_are_compiled_jointly(registry):
    x = torch.ones(3, 4)
    given = {"a": Cond().eval(), "b": torch.nn.Linear(4, 4).eval()}
    lowered = delegraph.lower(
        given,
        {"a": (x,), "b": (x,)},
        backends=[partitioner_for(*MINE)],
        registry=registry,
    )

    assert BodyBackend.calls == [{"a": 4, "b": 1}]
    for method, model in given.items():
        torch.testing.assert_close(lowered.method(method)(x), model(x))


def test_reports_count_delegates_and_refusals_in_branches(registry):
    lowered = delegraph.lower(
        Cond().eval(),
        (torch.ones(3, 4),),
        backends=[partitioner_for(*PRODUCTS)],
        registry=registry,
    )
    report = lowered.report
    assert [delegate.name for delegate in report.delegates] == [
        "true_graph_0.lowered_module_0",
        "false_graph_0.lowered_module_1",
    ]
    assert report.host["forward"]["aten.sin.default"] == 1
    assert report.host["forward"]["cond"] == 1

    (row,) = [
        refusal for refusal in report.refusals if refusal.operator == "aten.sin.default"
    ]
    assert row.reason == "not mine"
    assert row.source.code.startswith("y = torch.cond(")
    with pytest.raises(delegraph.errors.NotFullyDelegated, match="aten.sin.default"):
        delegraph.lower(
            Cond().eval(),
            (torch.ones(3, 4),),
            backends=[partitioner_for(*PRODUCTS)],
            require_full=True,
            registry=registry,
        )


def test_debug_handles_are_unique_over_bodies(registry):
    program, _ = normalize(torch.export.export(Cond().eval(), (torch.ones(3, 4),)))
    handles = [
        n.meta["debug_handle"]
        for n in all_nodes(program.graph_module)
        if n.op == "call_function"
    ]
    assert handles == list(range(1, len(handles) + 1))

    lowered = delegraph.lower(
        Cond().eval(),
        (torch.ones(3, 4),),
        backends=[partitioner_for(*MINE)],
        registry=registry,
    )
    calls = [
        n
        for n in all_nodes(lowered.exported_program().graph_module)
        if n.target is CALL_DELEGATE
    ]
    assert (
        len({n.meta["debug_handle"] for n in calls} - set(handles)) == len(calls) == 4
    )


class Normal(torch.nn.Module):
    """A composite operator in a branch."""

    def forward(self, x):
        return torch.cond(
            x.sum() > 0,
            lambda x: torch.nn.functional.layer_norm(x, (4,)),
            lambda x: x.sin(),
            (x,),
        )


def call_targets(module: GraphModule) -> set[str]:
    return {str(n.target) for n in all_nodes(module) if n.op == "call_function"}


def test_operators_in_branches_are_decomposed_for_core_programs(registry):
    lowered = delegraph.lower(
        Normal().eval(), (torch.ones(3, 4),), backends=[], registry=registry
    )

    assert "aten.layer_norm.default" in call_targets(
        lowered.exported_program().graph_module
    ), "the host calls it as eager"
    assert "aten.layer_norm.default" not in call_targets(
        lowered.core_program("forward").graph_module
    )
    torch.testing.assert_close(lowered(torch.ones(3, 4)), Normal()(torch.ones(3, 4)))


def test_bodies_are_decomposed_on_demand(registry):
    who = CapabilityPartitioner(
        lambda n: None if n.target is aten.native_layer_norm.default else "no",
        "BodyBackend",
    )
    decomposed = delegraph.lower(
        Normal().eval(), (torch.ones(3, 4),), backends=[who], registry=registry
    )
    whole = delegraph.lower(
        Normal().eval(),
        (torch.ones(3, 4),),
        backends=[partitioner_for(aten.layer_norm.default)],
        registry=registry,
    )

    assert dict(whole.report.delegates[0].operators) == {"aten.layer_norm.default": 1}
    x = torch.randn(3, 4).abs()
    for lowered in (decomposed, whole):
        assert len(lowered.delegates) == 1
        torch.testing.assert_close(lowered(x), Normal()(x))


def test_writes_to_values_of_a_branch_stay_local(registry):
    class Writes(torch.nn.Module):
        def forward(self, x):
            return torch.cond(
                x.sum() > 0,
                lambda x: (x * 2).relu_().add_(1),
                lambda x: x.clone(),
                (x,),
            )

    lowered = delegraph.lower(
        Writes().eval(),
        (torch.ones(3),),
        backends=[partitioner_for(*MINE)],
        registry=registry,
    )

    assert not lowered.report.notes
    assert not call_targets(lowered.exported_program().graph_module) & {
        "aten.relu_.default"
    }
    torch.testing.assert_close(lowered(torch.ones(3)), torch.full((3,), 3.0))


def test_a_backend_may_take_the_call_with_its_bodies(registry):
    cond = torch.ops.higher_order.cond
    x = torch.ones(3, 4)
    model = Cond().eval()
    lowered = delegraph.lower(
        model,
        (x,),
        backends=[partitioner_for(cond), partitioner_for(*MINE)],
        registry=registry,
    )

    assert BodyBackend.calls == [{"forward": 1}, {"forward": 2}]
    assert "cond" not in call_targets(lowered.exported_program().graph_module)
    for each in (x, -x):
        torch.testing.assert_close(lowered(each), model(each))


def test_branches_taken_after_decomposition_make_the_call_supported(
    registry,
):
    """The backend takes a cond only with its whole bodies, as TOSA does."""
    known = {
        aten.native_layer_norm.default,
        aten.sin.default,
        torch.ops.higher_order.cond,
    }

    def why_not(node):
        inner = [
            b
            for b in map(
                node.graph.owning_module.__dict__["_modules"].get, map(str, node.args)
            )
            if b
        ]
        calls = [
            n.target
            for n in (node, *(n for body in inner for n in body.graph.nodes))
            if n.op == "call_function"
        ]
        strange = [
            t
            for t in calls
            if t not in known and getattr(t, "__name__", "") != "getitem"
        ]
        return f"{strange[0]} is not mine" if strange else None

    who = CapabilityPartitioner(why_not, "BodyBackend")
    lowered = delegraph.lower(
        Normal().eval(), (torch.ones(3, 4),), backends=[who], registry=registry
    )

    assert [dict(row.operators) for row in lowered.report.delegates] == [{"cond": 1}]
    for x in (torch.randn(3, 4).abs(), -torch.ones(3, 4)):
        torch.testing.assert_close(lowered(x), Normal()(x))


@pytest.mark.parametrize(
    "mine", [(aten.add.Tensor, aten.mul.Tensor), (aten.mul.Tensor,), ()]
)
def test_a_branch_may_create_a_tensor_from_numbers(mine, registry):
    """torch makes it an attribute of the branch, which no exported program may have."""

    class Numbers(torch.nn.Module):
        def forward(self, x):
            return torch.cond(
                x.sum() > 0,
                lambda x: x * 2 + torch.tensor([1.0, 2.0, 3.0]),
                lambda x: x * 3,
                (x,),
            )

    lowered = delegraph.lower(
        Numbers().eval(),
        (torch.ones(3),),
        backends=[partitioner_for(*mine)],
        registry=registry,
    )

    assert bool(mine) == bool(BodyBackend.programs)
    for x in (torch.ones(3), -torch.ones(3)):
        torch.testing.assert_close(lowered(x), Numbers()(x))


def test_the_second_backend_gets_operators_left_in_branches(registry):
    x = torch.ones(3, 4)
    model = Cond().eval()
    lowered = delegraph.lower(
        model,
        (x,),
        backends=[partitioner_for(*PRODUCTS), partitioner_for(aten.sin.default)],
        registry=registry,
    )

    assert delegates_at(lowered.exported_program().graph_module) == {
        "": 0,
        "true_graph_0": 1,
        "false_graph_0": 2,
    }
    for each in (x, -x):
        torch.testing.assert_close(lowered(each), model(each))


def test_program_of_the_caller_is_unchanged(registry):
    program = torch.export.export(Cond().eval(), (torch.ones(3, 4),))
    texts = [str(g) for g in graphs(program.graph_module)]
    owners = [g.owning_module for g in graphs(program.graph_module)]
    delegraph.lower(program, backends=[partitioner_for(*MINE)], registry=registry)
    assert [str(g) for g in graphs(program.graph_module)] == texts
    assert [g.owning_module for g in graphs(program.graph_module)] == owners


def test_blobs_of_bodies_are_equal_in_each_run(registry):
    def blobs():
        BodyBackend.programs = {}
        lowered = delegraph.lower(
            Cond().eval(),
            (torch.ones(3, 4),),
            backends=[partitioner_for(*MINE)],
            registry=registry,
        )
        return [
            str(delegate.module.original_module.graph) for delegate in lowered.delegates
        ]

    assert blobs() == blobs()


def test_bodies_may_have_dynamic_sizes(registry):
    model = Cond().eval()
    batch = torch.export.Dim("batch", min=2, max=9)
    program = torch.export.export(
        model, (torch.ones(3, 4),), dynamic_shapes={"x": {0: batch}}
    )
    lowered = delegraph.lower(
        program, backends=[partitioner_for(*MINE)], registry=registry
    )
    for each in (torch.randn(2, 4), torch.randn(7, 4), -torch.ones(5, 4)):
        torch.testing.assert_close(lowered(each), model(each))
