"""A small backend: a support check, a compiler that uses it, and debug identifiers.

The debug identifiers map the blob back to the program.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from delegraph.backend import (
    BackendDetails,
    CompileSpec,
    DelegateMappingBuilder,
    PreprocessResult,
)
from delegraph.errors import OptionError, Unsupported
from delegraph.partitioner import Reason
from delegraph_programs import source_of

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

aten = torch.ops.aten
CONVOLUTIONS = (aten.conv2d.default, aten.convolution.default)


def why_not(node: Node) -> Reason | None:
    """Return why ``node`` cannot be compiled, or None if it can.

    The partitioner and the compiler call this function, so they never disagree. A relu
    that is refused because of its convolution names that as ``of``: the report shows
    both with one ``cause``.
    """
    if node.target in CONVOLUTIONS:
        if [user.target for user in node.users] == [aten.relu.default]:
            return None
        text = "a convolution needs a relu as the only user of its result"
        hint = "write torch.relu right after it, and use its result nowhere else"
        return Reason(text, hint=hint, cause="pair")
    if node.target is aten.relu.default:
        producer = node.all_input_nodes[0]
        if producer.target in CONVOLUTIONS and why_not(producer) is None:
            return None
        text = "relu is compiled only together with a convolution before it"
        hint = (
            "write it right after a convolution, or name a backend after demo that"
            " supports relu"
        )
        return Reason(text, hint=hint, cause="pair", of=producer)
    if node.target is aten.tan.default:
        return None
    text = "the demo compiles convolution followed by relu, and tan"
    hint = "name a backend after demo that supports this operator"
    return Reason(text, hint=hint, cause="unknown")


class BackendWithDelegateMappingDemo(BackendDetails):
    """Compiles to a readable text: ``"<count>#<operator>,<identifier>,..."``.

    Fusion gives many nodes one delegate debug identifier, decomposition gives one node
    many.
    """

    @staticmethod
    def preprocess(
        edge_program: ExportedProgram, compile_specs: list[CompileSpec]
    ) -> PreprocessResult:
        """Return the text in utf-8, and identifier -> debug handles.

        Raises Unsupported, naming the user's line.
        """
        _refuse_settings(compile_specs)
        mapping = DelegateMappingBuilder(generated_identifiers=True)
        operators: list[str] = []
        for node in edge_program.graph.nodes:
            if node.op in ("placeholder", "output"):
                continue
            for name, nodes in _compile(node):
                identifier = mapping.insert_delegate_mapping_entry(nodes=nodes)
                operators.append(f"{name},{identifier},")
        blob = f"{len(operators)}#{''.join(operators)}".encode()
        return PreprocessResult(blob, mapping.get_delegate_mapping())

    @staticmethod
    def fingerprint(compile_specs: list[CompileSpec]) -> str:
        """Return "": a cache may keep the text.

        It depends only on the program and this package.
        """
        return ""

    @staticmethod
    def get_test_model_and_inputs() -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
        """Return a model with both cases, in eval mode, and an input [4, 3, 64, 64]."""
        return ConvReluTan().eval(), (torch.ones(4, 3, 64, 64),)


def _compile(node: Node) -> Iterator[tuple[str, list[Node]]]:
    """Yield the operators of ``node``, each with the nodes that it computes."""
    reason = why_not(node)
    if reason is not None:
        message = (
            f"BackendWithDelegateMappingDemo cannot compile {node.target}"
            f" ({node.name}): {reason}"
        )
        raise Unsupported(
            "unsupported", message, node=node, source=source_of(node), hint=reason.hint
        )
    if node.target is aten.relu.default:
        yield "conv_relu_op", [*node.all_input_nodes, node]
    elif node.target is aten.tan.default:
        for part in ("sin", "cos", "div"):
            yield f"{part}_decomp_from_tan", [node]


def _refuse_settings(compile_specs: list[CompileSpec]) -> None:
    """Raise OptionError for any setting, so that a mistake is not silently ignored."""
    if compile_specs:
        keys = ", ".join(repr(spec.key) for spec in compile_specs)
        raise OptionError(
            "option-invalid",
            f"BackendWithDelegateMappingDemo has no compile specs; it was given {keys}",
        )


class ConvReluTan(torch.nn.Module):
    """conv-relu-conv-relu-tan: [N, 3, H, W] -> [N, 16, H - 8, W - 8]"""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(3, 6, kernel_size=5)
        self.conv2 = torch.nn.Conv2d(6, 16, kernel_size=5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.conv1(x))
        x = torch.relu(self.conv2(x))
        return torch.tan(x)
