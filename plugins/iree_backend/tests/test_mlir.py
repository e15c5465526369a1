"""The text of TOSA graphs in MLIR, as tosa-opt reads it."""

import io
import subprocess
import sysconfig
from pathlib import Path

import delegraph
import delegraph_tosa
import numpy as np
import pytest
import torch
from delegraph.errors import Unsupported
from delegraph_iree.mlir import write_mlir


def text_of(graph):
    text = io.BytesIO()
    write_mlir(graph, text.write)
    return text.getvalue()


def through_mlir(graph, folder):
    """The graph as tosa-opt reads it from our text, and writes it as a TOSA file."""
    (folder / "m.mlir").write_bytes(text_of(graph))
    passes = f"builtin.module(tosa-serialize{{tosa-flatbuffer-filename={folder / 'm.tosa'}}})"
    tool = Path(sysconfig.get_path("scripts"), "tosa-opt")
    command = [
        str(tool),
        f"--pass-pipeline={passes}",
        str(folder / "m.mlir"),
        "-o",
        str(folder / "out.mlir"),
    ]
    completed = subprocess.run(command, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stderr
    return delegraph_tosa.read((folder / "m.tosa").read_bytes())


class Network(torch.nn.Module):
    """Attributes of every kind, and constants of several types."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.depthwise = torch.nn.Conv2d(8, 8, 3, stride=2, groups=8)

    def forward(self, x, mask):
        y = torch.nn.functional.max_pool2d(torch.relu(self.conv(x)), 2)
        y = torch.nn.functional.avg_pool2d(self.depthwise(y), 2)
        y = torch.where(mask, y.clamp(-1, float("inf")), y * float("nan"))
        z = torch.nn.functional.interpolate(y, scale_factor=2.0)
        return (
            z.flip(2),
            y.argmax(1).to(torch.int32),
            torch.nn.functional.pad(y, (1, 2), value=-0.5),
            y > 0,
        )


class Branches(torch.nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))


NETWORKS = {
    "network": (
        Network(),
        (torch.randn(1, 3, 16, 16), torch.tensor([[[[True]]]])),
        "TOSA-1.0+FP+INT",
    ),
    "branches": (Branches(), (torch.randn(3, 4),), "TOSA-1.0+FP+cf"),
    "integers": (
        torch.nn.Hardtanh(-3, 5),
        (torch.randint(-9, 9, (2, 3), dtype=torch.int8),),
        "TOSA-1.0+INT",
    ),
    "bfloat16": (
        torch.nn.Hardtanh(-3, 0.3),
        (torch.randn(2, 3).bfloat16(),),
        "TOSA-1.0+FP+bf16",
    ),
    "float16": (torch.nn.Hardtanh(-3, 0.3), (torch.randn(2, 3).half(),), "TOSA-1.0+FP"),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_another_reader_of_the_text_computes_the_same(name, tmp_path):
    model, inputs, spec = NETWORKS[name]
    options = {"tosa": {"spec": spec}}
    lowered = delegraph.lower(
        model.eval(), inputs, backends=["tosa"], options=options, require_full=True
    )
    lowered.save(tmp_path / "ours.tosa")
    graph = delegraph_tosa.read((tmp_path / "ours.tosa").read_bytes())
    there = through_mlir(graph, tmp_path)
    assert [op.name for op in there.operators] == [op.name for op in graph.operators]
    bits = [
        (
            i.view(torch.int16).numpy().view(np.uint16)
            if i.dtype is torch.bfloat16
            else i.numpy()
        )
        for i in inputs
    ]
    for ours, theirs in zip(
        delegraph_tosa.Program(graph)(bits),
        delegraph_tosa.Program(there)(bits),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)


ADD = """graph @main(%x: [20]fp32) {
  %c: [20]fp32 = const [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
  %y: [20]fp32 = ADD(%x, %c)
  return %y
}
"""


def test_constants_keep_their_bits(tmp_path):
    graph = delegraph_tosa.parse(ADD)
    [constant] = graph.constants()
    elements = delegraph_tosa.materialize(constant)
    elements[:4] = np.array([0x7FC12345, 0x80000000, 0xFF800000, 1], np.uint32).view(
        np.float32
    )
    [read] = through_mlir(graph, tmp_path).constants()
    assert delegraph_tosa.materialize(read).tobytes() == elements.tobytes()


def test_operators_without_mlir_form_are_refused():
    call = '{operator_name="a", domain_name="b", implementation_attrs=""}'
    graph = delegraph_tosa.parse(
        f"graph @main(%x: [5]fp32) {{\n  %y: [5]fp32 = CUSTOM(%x) {call}\n  return"
        " %y\n}\n"
    )
    with pytest.raises(Unsupported, match="TOSA's CUSTOM has no self-contained form"):
        text_of(graph)
