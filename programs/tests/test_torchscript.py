"""TorchScript modules are exported, or refused with advice."""

import io

import pytest
import torch
from delegraph_programs.convert_torchscript import module_of_torchscript
from delegraph_programs.errors import InputError
from delegraph_programs.export_module import export_module
from torch import nn

# torch advises against TorchScript, but files of it exist
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]


class Net(nn.Module):
    """Layers, a written buffer, a branch on a size, and a nested result."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU())
        self.register_buffer("calls", torch.zeros(4))

    def forward(self, x):
        y = self.layers(x)
        self.calls.add_(1)
        if x.shape[0] > 1:
            y = y + self.calls
        return y, (y.sum(0), y[0] * x.shape[1])


class Endless(nn.Module):
    def forward(self, x):
        while bool(x.sum() < 10):
            x = x + 1
        return x


def saved_and_loaded(module):
    file = io.BytesIO()
    torch.jit.save(module, file)
    file.seek(0)
    return torch.jit.load(file)


@pytest.mark.parametrize("make", [torch.jit.script, torch.jit.trace])
def test_exported_torchscript_equals_the_module(make):
    x = torch.randn(2, 3)
    module = Net().eval()
    script = make(module) if make is torch.jit.script else make(module, (x,))
    wanted = saved_and_loaded(script)
    program = export_module(saved_and_loaded(script), (x,))
    assert program.graph_signature.user_inputs == ("x",)

    run = program.module()
    for given in (x, x + 1):
        found = run(given)
        assert type(found) is type(found[1]) is tuple
        torch.testing.assert_close(found, wanted(given))
    assert not program.range_constraints  # all sizes are static


class Clashing(nn.Module):
    def forward(self, add_tensor, relu):
        y = add_tensor + 1
        return (y + relu).relu() * add_tensor - relu


def test_inputs_may_have_the_names_of_functions():
    given = torch.randn(3), torch.randn(3)
    script = torch.jit.script(Clashing().eval())
    wanted = Clashing()(*given)
    for run in (
        module_of_torchscript(script, given),
        export_module(script, given).module(),
    ):
        torch.testing.assert_close(run(*given), wanted)


def test_unsupported_code_is_refused_with_advice():
    script = torch.jit.script(Endless().eval())
    with pytest.raises(InputError, match="could not export Endless") as found:
        export_module(script, (torch.ones(2),))
    assert "torch.jit.trace" in found.value.hint


def test_keyword_inputs_are_refused():
    script = torch.jit.script(Net().eval())
    with pytest.raises(InputError, match="by position, not by name: x"):
        export_module(script, (), {"x": torch.ones(2, 3)})
    with pytest.raises(InputError, match="Net is a module: example_inputs are needed"):
        export_module(script)
