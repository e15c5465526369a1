"""Converts modules of TorchScript to modules that torch.export takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch._export.converter import TS2EPConverter
from torch.fx import GraphModule


def module_of_torchscript(
    module: torch.jit.ScriptModule, args: tuple[Any, ...]
) -> GraphModule:
    """Return a module of ATen calls that computes the same as ``module``.

    ``args``: example inputs. Raises any error for code that torch's converter does not
    know.
    """
    converter = _Converter(module, args)
    converter.convert()
    return converter.module.eval()


class _Converter(TS2EPConverter):
    """torch's converter, without its export, which would make all sizes dynamic.

    ``module``: the result of ``convert``.
    """

    module: GraphModule

    def retrace_as_exported_program(
        self, gm: GraphModule, name_to_constant: dict[str, Any]
    ) -> Any:
        """Keep the converted module ``gm`` instead of exporting it.

        ``convert`` calls this at its end. It reads only ``state_dict`` of the result.
        """
        script: Any = self.ts_model
        output = gm.graph.output_node()
        schema = script.forward.schema
        output.args = (_as_tuples(output.args[0], schema.returns[0].type),)
        # Name inputs as ``forward`` does: TorchScript calls x "x.1" in the graph. The
        # first argument of the schema is self.
        inputs = gm.graph.find_nodes(op="placeholder")
        for node, argument in zip(inputs, schema.arguments[1:], strict=False):
            node.target = argument.name
            node._rename(argument.name)  # with a number, if a call has this name
        gm.recompile()
        self.module = gm
        return SimpleNamespace(state_dict=script.state_dict())


def _as_tuples(returned: Any, kind: Any) -> Any:
    """Return a result with tuples where the converter made lists of them.

    ``kind``: the type of the result in TorchScript.
    """
    if kind.kind() != "TupleType":
        return returned
    return tuple(map(_as_tuples, returned, kind.elements()))
