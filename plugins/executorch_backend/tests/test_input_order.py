"""What delegates are called with, in which order: beside ExecuTorch's own
``to_backend``, on the same tagged programs.

A device half may count positions. Values are compared by their names in the program
that both are given.
"""

from __future__ import annotations

import copy
import operator
import warnings
from collections.abc import Callable, Iterator
from typing import Any

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

# whatever ExecuTorch warns of at import
pytestmark = [pytest.mark.filterwarnings("ignore")]
aten = torch.ops.aten
Tagger = Callable[[Node], "str | None"]


@pytest.fixture(autouse=True)
def _needs_executorch() -> None:
    stock_runtime()


class InputOrderDemo(BackendDetails):
    """Takes what is tagged for it, and compiles nothing."""

    @staticmethod
    def preprocess(
        edge_program: ExportedProgram, compile_specs: list[Any]
    ) -> PreprocessResult:
        return PreprocessResult(b"")


class Tagging(Partitioner):
    """Tags what a function names."""

    def __init__(self, tag: Tagger) -> None:
        super().__init__()
        self.tag = tag

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        tags = {n: self.tag(n) for n in _graphs(exported_program.graph_module)}
        for node, tag in tags.items():
            if tag:
                node.meta["delegation_tag"] = tag
        known = sorted({t for t in tags.values() if t})
        return PartitionResult(
            exported_program, {t: DelegationSpec("InputOrderDemo", []) for t in known}
        )


def _graphs(root: GraphModule) -> Iterator[Node]:
    for module in root.modules():
        yield from module.graph.nodes if isinstance(module, GraphModule) else ()


def _theirs(program: ExportedProgram, tag: Tagger) -> ExportedProgram:
    """The program, lowered by ExecuTorch."""
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


def inputs_and_results_of_calls(root: GraphModule) -> list[tuple[list[str], list[str]]]:
    """For each call of a delegate: names of its inputs, and of what it computes.
    Results have the delegate's names.
    """
    found = []
    named = {}
    for node in root.graph.nodes:
        if str(node.target) == "executorch_call_delegate":
            program = getattr(root, node.args[0].target).original_module
            outputs = [v.name for v in program.graph.output_node().args[0]]
            returned = outputs[len(program.graph_signature.buffers_to_mutate) :]
            named |= {
                u.name: returned[u.args[1]]
                for u in node.users
                if u.target is operator.getitem
            }
            computed = sorted(
                node.name for node in program.graph.nodes if node.op == "call_function"
            )
            inside = zip(
                node.args[1:], program.graph_signature.user_inputs, strict=True
            )
            found.append(
                ([named.get(arg.name, name) for arg, name in inside], computed)
            )
    for module in root.children():
        if isinstance(module, GraphModule):
            found += inputs_and_results_of_calls(module)
    return found


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


def of_branches(node: Node) -> str | None:
    return {aten.sub.Tensor: "a", aten.mul.Tensor: "b", aten.add.Tensor: "b"}.get(
        node.target
    )


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
CASES: dict[str, tuple[Any, tuple[Any, ...], Tagger, Any]] = {
    "the second input first": (lambda x, y: y - x, (V, V), tag_all_calls, None),
    "the third, then the first again": (
        lambda x, y, z: (z * x) + (z - y) * x,
        (V, V, V),
        tag_all_calls,
        None,
    ),
    "by keyword": (
        lambda x, y, z: torch.clamp(y, max=x, min=z),
        (V, V, V),
        tag_all_calls,
        None,
    ),
    "in lists": (
        lambda x, y, z: torch.stack([z, x, y, x]),
        (V, V, V),
        tag_all_calls,
        None,
    ),
    "as an index": (
        lambda i, x: x[i] + 1,
        (torch.tensor([1, 2]), V),
        tag_all_calls,
        None,
    ),
    "results of one call": (halves, (V, V), tag_only(aten.cat.default), None),
    "weights of the host": (Affine(), (V, V), tag_all_calls, None),
    "weights of its own": (Affine(), (V, V), tag_with_weights, None),
    "one weight of its own": (
        Affine(),
        (V, V),
        lambda n: "a" if n.name == "p_scale" else tag_all_calls(n),
        None,
    ),
    "a constant": (constant, (V, V), tag_all_calls, None),
    "sizes": (
        reshaped,
        (M, M),
        tag_only(aten.reshape.default, aten.view.default, aten.mm.default),
        ({0: Dim.AUTO},) * 2,
    ),
    "a buffer that the host writes": (
        Cache(),
        (torch.ones(1, 2, 1, 4), torch.tensor([2])),
        tag_all_calls,
        None,
    ),
    "a buffer of its own": (
        Cache(),
        (torch.ones(1, 2, 1, 4), torch.tensor([2])),
        tag_with_weights,
        None,
    ),
    "branches": (branch, (V, V, V), of_branches, None),
    "a whole branch": (
        branch,
        (V, V, V),
        lambda n: "a" if n.op == "get_attr" else tag_all_calls(n),
        None,
    ),
    "two partitions": (
        two_parts,
        (V, V, V),
        tag_by_name(sub="b", mul="a", sub_1="a"),
        None,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_inputs_are_ordered_by_first_use_like_executorch(case: str) -> None:
    model, inputs, tag, shapes = CASES[case]
    module = model if isinstance(model, nn.Module) else Function(model)
    shapes = None if shapes is None else {"inputs": shapes}
    apart = tuple(x.clone() for x in inputs)
    program = torch.export.export(
        module.eval(), apart, dynamic_shapes=shapes
    ).run_decompositions()
    expected = inputs_and_results_of_calls(_theirs(program, tag).graph_module)
    assert expected
    with delegraph.register(InputOrderDemo):
        lowered_program = to_backend(program, Tagging(tag))
        assert inputs_and_results_of_calls(lowered_program.graph_module) == expected
        edge = to_edge_transform_and_lower(program, partitioner=[Tagging(tag)])
        assert (
            inputs_and_results_of_calls(edge.exported_program().graph_module)
            == expected
        )
        lowered = delegraph.lower(program, backends=[Tagging(tag)])
        assert (
            inputs_and_results_of_calls(lowered.exported_program().graph_module)
            == expected
        )


def test_whole_programs_as_delegates_keep_the_input_order() -> None:
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
    assert [value.name for value in ours.inputs] == list(
        program.graph_signature.user_inputs
    )
    call = theirs.execution_plan[0].chains[0].instructions[0].instr_args
    assert len(call.args) == len(ours.inputs) + len(ours.outputs)
    assert torch.equal(ours(V, V + 5, V * 3), V * 2)
