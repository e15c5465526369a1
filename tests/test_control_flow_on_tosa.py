"""Branches and loops whose bodies run on TOSA."""

import delegraph
import pytest
import torch
from delegraph_programs import all_nodes
from torch import nn
from torch._higher_order_ops.while_loop import while_loop

# torch's own, tracing branches
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
torch.set_num_threads(1)
CALL_DELEGATE = torch.ops.higher_order.executorch_call_delegate


class EarlyExit(nn.Module):
    """A classifier that computes more features if the first ones are not sure."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)
        )
        self.more = nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)
        )
        self.quick = nn.Linear(8, 5)
        self.slow = nn.Linear(8, 5)

    def forward(self, x):
        features = self.stem(x)
        sure = features.mean() > 0.5
        return torch.cond(sure, self._short, self._long, (features,)).softmax(-1)

    def _short(self, features):
        return self.quick(features.mean((2, 3)))

    def _long(self, features):
        return self.slow(self.more(features).mean((2, 3)))


class Refine(nn.Module):
    """A fixed-point iteration with a counted number of steps."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.step = nn.Linear(6, 6)

    def forward(self, x):
        start = (torch.tensor(0), x)
        return while_loop(
            lambda i, y: i < 4,
            lambda i, y: (i + 1, torch.tanh(self.step(y)) * 0.5 + x),
            start,
        )[1]


@pytest.mark.parametrize("scale", [-1.0, 4.0], ids=["long branch", "short branch"])
def test_delegates_in_branches_own_their_weights(scale):
    model = EarlyExit().eval()
    torch.manual_seed(1)
    x = torch.randn(1, 3, 16, 16) * scale
    taken = model.stem(x).mean() > 0.5
    assert bool(taken) == (scale > 0)

    lowered = delegraph.lower(model, (x,), backends=["tosa"])
    assert lowered.report.host["forward"].keys() <= {"cond", "aten.gt.Scalar"}

    left = {name.rpartition(".")[2] for name in lowered.exported_program().state_dict}
    assert left == {"num_batches_tracked"}, (
        "the delegates own what is computed with, in branches too"
    )
    assert lowered.verify(x).relative_error < 1e-5


def test_a_loop_runs_its_body_on_the_delegate():
    model = Refine().eval()
    x = torch.randn(2, 6)
    lowered = delegraph.lower(model, (x,), backends=["tosa"])
    assert [delegate.name for delegate in lowered.delegates] == [
        "while_loop_body_graph_0.lowered_module_0"
    ]
    assert lowered.verify(x).relative_error < 1e-5


def test_two_backends_share_the_body_of_a_branch():
    """compiler-demo takes the sine. TOSA takes the calls before it."""

    class Both(nn.Module):
        def forward(self, x):
            return torch.cond(
                x.sum() > 0,
                lambda x: torch.relu(x).sin(),
                lambda x: torch.sort(x)[0],
                (x,),
            )

    model = Both().eval()
    x = torch.randn(4, 4)
    lowered = delegraph.lower(model, (x,), backends=["compiler-demo", "tosa"])
    inside = [
        delegate.backend_id
        for delegate in lowered.delegates
        if delegate.name.startswith("true_graph_0.")
    ]
    assert inside == ["BackendWithCompilerDemo", "TOSABackend"]

    calls = [
        n
        for n in all_nodes(lowered.exported_program().graph_module)
        if n.target is CALL_DELEGATE
    ]
    assert len(calls) == len(lowered.delegates)

    for each in (x.abs(), -x.abs()):
        assert lowered.verify(each).relative_error < 1e-5


def test_report_pages_show_the_delegates_of_bodies(tmp_path):
    lowered = delegraph.lower(
        EarlyExit().eval(), (torch.randn(1, 3, 16, 16),), backends=["tosa"]
    )
    page = lowered.report.to_html()
    assert "true_graph_0" in page
    assert "false_graph_0" in page

    names = {row["name"] for row in lowered.report.to_json()["delegates"]}
    assert "true_graph_0.lowered_module_2" in names
