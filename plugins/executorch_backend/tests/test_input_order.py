"""Delegates are called with the same inputs, in the same order, as by ExecuTorch.

A device half may refer to inputs by position. Both ``to_backend`` functions lower the
same tagged program. Values are compared by their names in that program.
"""

from __future__ import annotations

import copy
import operator
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import delegraph
import pytest
import torch
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.partitioner import DelegationSpec, Partitioner, PartitionResult
from delegraph_executorch.edge import to_backend, to_edge_transform_and_lower
from torch import nn
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule, Node

from .support.judge import stock_runtime
from .support.programs import Cache, Function

# ExecuTorch's imports warn
pytestmark = [pytest.mark.filterwarnings("ignore")]
aten = torch.ops.aten
Tagger = Callable[[Node], "str | None"]
"""Returns the tag of the partition of a node; None leaves the node on the host."""


@pytest.fixture(autouse=True)
def _needs_executorch() -> None:
    stock_runtime()


class InputOrderDemo(BackendDetails):
    """A backend that compiles nothing."""

    @staticmethod
    def preprocess(
        edge_program: ExportedProgram, compile_specs: list[Any]
    ) -> PreprocessResult:
        return PreprocessResult(b"")


class Tagging(Partitioner):
    """A partitioner that tags nodes with a function."""

    def __init__(self, tag: Tagger) -> None:
        super().__init__()
        self.tag = tag

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        tags = {
            n: self.tag(n) for n in _nodes_of_all_graphs(exported_program.graph_module)
        }
        for node, tag in tags.items():
            if tag:
                node.meta["delegation_tag"] = tag
        used_tags = sorted({tag for tag in tags.values() if tag})
        specs = {tag: DelegationSpec("InputOrderDemo", []) for tag in used_tags}
        return PartitionResult(exported_program, specs)


def _nodes_of_all_graphs(root: GraphModule) -> Iterator[Node]:
    """Yield the nodes of a program and of its branches and loop bodies."""
    for module in root.modules():
        if isinstance(module, GraphModule):
            yield from module.graph.nodes


def _lower_by_executorch(program: ExportedProgram, tag: Tagger) -> ExportedProgram:
    from executorch.exir.backend import backend_api, backend_details, partitioner

    class InputOrderTwin(backend_details.BackendDetails):
        @staticmethod
        def preprocess(edge_program: Any, compile_specs: Any) -> Any:
            return backend_details.PreprocessResult(b"")

    class Twin(partitioner.Partitioner):
        def partition(self, exported_program: Any) -> Any:
            result = Tagging(tag).partition(exported_program)
            tags = dict.fromkeys(
                result.partition_tags,
                partitioner.DelegationSpec(InputOrderTwin.__name__, []),
            )
            return partitioner.PartitionResult(exported_program, tags)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return backend_api.to_backend(copy.deepcopy(program), Twin())


class DelegateCall(NamedTuple):
    """A call of a delegate, by names in the program before it was lowered."""

    inputs: list[str]
    computed: list[str]
    """The calls inside of the delegate, sorted."""


def delegate_calls(root: GraphModule) -> list[DelegateCall]:
    """Return the calls of delegates in a lowered program, and in its branches."""
    calls = []
    # result of a delegate -> the name that it had before lowering
    original_names: dict[str, str] = {}
    for node in root.graph.nodes:
        if str(node.target) != "executorch_call_delegate":
            continue
        delegate = getattr(root, node.args[0].target)
        program = delegate.original_module
        signature = program.graph_signature
        outputs = [value.name for value in program.graph.output_node().args[0]]
        results = outputs[len(signature.buffers_to_mutate) :]
        for user in node.users:
            if user.target is operator.getitem:
                original_names[user.name] = results[user.args[1]]
        inputs = []
        for argument, name in zip(node.args[1:], signature.user_inputs, strict=True):
            inputs.append(original_names.get(argument.name, name))
        computed = [n.name for n in program.graph.nodes if n.op == "call_function"]
        calls.append(DelegateCall(inputs, sorted(computed)))
    for module in root.children():
        if isinstance(module, GraphModule):
            calls += delegate_calls(module)
    return calls


class Affine(nn.Module):
    """Its weights are used in another order than they are declared in."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.ones(4))
        self.scale = nn.Parameter(torch.ones(4))
        self.register_buffer("floor", torch.zeros(4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.maximum(self.floor, y * self.scale) + x * self.shift


def tag_all_calls(node: Node) -> str | None:
    return "a" if node.op == "call_function" else None


def tag_only(*targets: Any) -> Tagger:
    return lambda n: "a" if n.target in targets else None


def tag_by_name(**tags: str) -> Tagger:
    return lambda n: tags.get(n.name)


def tag_with_weights(node: Node) -> str | None:
    owned = node.op == "placeholder" and node.name.startswith(("p_", "b_", "c_"))
    return "a" if owned or node.op == "call_function" else None


def branch(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return torch.cond(z.sum() > 0, lambda a, b: b - a, lambda a, b: b * (a + 1), (x, y))


def tag_inside_branches(node: Node) -> str | None:
    tags = {aten.sub.Tensor: "a", aten.mul.Tensor: "b", aten.add.Tensor: "b"}
    return tags.get(node.target)


def constant(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return y + torch.tensor([1.0, 2.0, 3.0, 4.0]) - x


def reshaped(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return y.reshape(x.shape[0], -1) @ x


def halves(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    first, second = torch.split(x.cumsum(0), 2)
    return torch.cat([second, y, first])


def two_parts(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    first = z - x
    return torch.sub(y, torch.mul(z, first.cumsum(0)))


V = torch.linspace(-1, 1, 4)
M = torch.ones(4, 4)
ROW = torch.ones(1, 2, 1, 4)


class Case(NamedTuple):
    """A model with its inputs and its partitions."""

    model: Any
    inputs: tuple[Any, ...]
    tag: Tagger
    dynamic_shapes: Any = None


CASES = {
    "the second input first": Case(lambda x, y: y - x, (V, V), tag_all_calls),
    "the third, then the first again": Case(
        lambda x, y, z: (z * x) + (z - y) * x, (V, V, V), tag_all_calls
    ),
    "by keyword": Case(
        lambda x, y, z: torch.clamp(y, max=x, min=z), (V, V, V), tag_all_calls
    ),
    "in lists": Case(
        lambda x, y, z: torch.stack([z, x, y, x]), (V, V, V), tag_all_calls
    ),
    "as an index": Case(
        lambda i, x: x[i] + 1, (torch.tensor([1, 2]), V), tag_all_calls
    ),
    "results of one call": Case(halves, (V, V), tag_only(aten.cat.default)),
    "weights that the host keeps": Case(Affine(), (V, V), tag_all_calls),
    "weights that the delegate keeps": Case(Affine(), (V, V), tag_with_weights),
    "one weight that the delegate keeps": Case(
        Affine(),
        (V, V),
        lambda n: "a" if n.name == "p_scale" else tag_all_calls(n),
    ),
    "a constant": Case(constant, (V, V), tag_all_calls),
    "sizes": Case(
        reshaped,
        (M, M),
        tag_only(aten.reshape.default, aten.view.default, aten.mm.default),
        ({0: Dim.AUTO}, {0: Dim.AUTO}),
    ),
    "a buffer that the host writes": Case(
        Cache(), (ROW, torch.tensor([2])), tag_all_calls
    ),
    "a buffer that the delegate writes": Case(
        Cache(), (ROW, torch.tensor([2])), tag_with_weights
    ),
    "calls inside of branches": Case(branch, (V, V, V), tag_inside_branches),
    "a whole branch": Case(
        branch,
        (V, V, V),
        lambda n: "a" if n.op == "get_attr" else tag_all_calls(n),
    ),
    "two partitions": Case(
        two_parts, (V, V, V), tag_by_name(sub="b", mul="a", sub_1="a")
    ),
}


def export_case(case: Case) -> ExportedProgram:
    module = case.model if isinstance(case.model, nn.Module) else Function(case.model)
    shapes = None
    if case.dynamic_shapes is not None:
        shapes = {"inputs": case.dynamic_shapes}
    # torch.export would treat a tensor that is given twice as one input
    inputs = tuple(x.clone() for x in case.inputs)
    program = torch.export.export(module.eval(), inputs, dynamic_shapes=shapes)
    return program.run_decompositions()


def lower_by_to_backend(program: ExportedProgram, tag: Tagger) -> ExportedProgram:
    return to_backend(program, Tagging(tag))


def lower_by_edge(program: ExportedProgram, tag: Tagger) -> ExportedProgram:
    edge = to_edge_transform_and_lower(program, partitioner=[Tagging(tag)])
    return edge.exported_program()


def lower_by_delegraph(program: ExportedProgram, tag: Tagger) -> ExportedProgram:
    return delegraph.lower(program, backends=[Tagging(tag)]).exported_program()


@pytest.mark.parametrize(
    "lower", [lower_by_to_backend, lower_by_edge, lower_by_delegraph]
)
@pytest.mark.parametrize("name", CASES)
def test_delegates_get_their_inputs_in_executorchs_order(
    name: str, lower: Callable[[ExportedProgram, Tagger], ExportedProgram]
) -> None:
    tag = CASES[name].tag
    program = export_case(CASES[name])
    expected = delegate_calls(_lower_by_executorch(program, tag).graph_module)
    assert expected

    with delegraph.register(InputOrderDemo):
        lowered = lower(program, tag)

    assert delegate_calls(lowered.graph_module) == expected


def test_whole_programs_as_delegates_keep_all_inputs_in_order() -> None:
    from executorch.exir.backend import backend_api, backend_details

    class WholeTwin(backend_details.BackendDetails):
        @staticmethod
        def preprocess(edge_program: Any, compile_specs: Any) -> Any:
            return backend_details.PreprocessResult(b"")

    program = torch.export.export(
        Function(lambda x, unused, y: y - x), (V, V + 1, V + 2)
    ).run_decompositions()

    theirs = backend_api.to_backend(
        WholeTwin.__name__, copy.deepcopy(program), []
    ).program()
    with delegraph.register(InputOrderDemo):
        ours = to_backend("InputOrderDemo", program, [])

    names = [value.name for value in ours.inputs]
    assert names == list(program.graph_signature.user_inputs)
    [call, *_] = theirs.execution_plan[0].chains[0].instructions
    assert len(call.instr_args.args) == len(ours.inputs) + len(ours.outputs)
    # y - x, and the unused input is ignored
    assert torch.equal(ours(V, V + 5, V * 3), V * 2)
