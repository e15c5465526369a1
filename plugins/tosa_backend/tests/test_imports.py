"""Lowering imports rarely needed modules late, so that it starts quickly."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys, torch, delegraph
relu = torch.export.export(torch.nn.ReLU(), (torch.ones(2, 3),))
assert delegraph.lower(relu, backends=["tosa"]).host_operators == 0
rarely_needed = {
    "torch.ao.quantization.fx", "delegraph_tosa.lowering.integer", "delegraph_tosa.lowering.aten.quantize",
    "delegraph_tosa.evaluate.elementwise", "delegraph_analysis.accuracy.reference", "delegraph_analysis.columns",
}
assert not rarely_needed & set(sys.modules), rarely_needed & set(sys.modules)

class Pixels(torch.nn.Module):
    def forward(self, image):
        return image.flip(-1).float() * 2
image = torch.arange(0, 256, 51, dtype=torch.uint8)
of_bytes = delegraph.lower(Pixels().eval(), (image,), backends=["tosa"])
assert of_bytes.host_operators == 0, of_bytes.report  # only its dtype needs the uint8 rules
assert torch.equal(of_bytes(image), Pixels()(image))

import torch.ao.quantization.fx._decomposed
to = 0.5, 3, -128, 127, torch.int8
class Quantized(torch.nn.Module):
    def forward(self, x):
        q = torch.ops.quantized_decomposed
        x = q.dequantize_per_tensor(q.quantize_per_tensor(x, *to), *to)
        return q.quantize_per_tensor(x.relu(), *to)
program = torch.export.export(Quantized(), (torch.ones(2, 3),))
lowered = delegraph.lower(program, backends=["tosa"])
assert lowered.host_operators == 0, lowered.report
x = torch.linspace(-2, 2, 6).reshape(2, 3)
assert torch.equal(lowered(x), program.module()(x))
"""


def test_rules_for_quantized_programs_are_imported_with_the_first_one():
    completed = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr


TORCHLESS = """
import importlib, pkgutil, sys
import delegraph_tosa
for name in "evaluate ir passes serialize spec text tools validate".split():
    module = importlib.import_module("delegraph_tosa." + name)
    for found in pkgutil.walk_packages(getattr(module, "__path__", []), module.__name__ + "."):
        importlib.import_module(found.name)
assert "delegraph_tosa.passes.pending_views" in sys.modules
assert not {"torch", "delegraph_tosa.lowering"} & set(sys.modules)
"""


def test_tosa_as_a_language_needs_no_torch():
    """Tools that only read TOSA files should start without importing torch."""
    completed = subprocess.run(
        [sys.executable, "-c", TORCHLESS], capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stderr
