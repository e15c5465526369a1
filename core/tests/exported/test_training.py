"""Programs that were exported in training mode get a note."""

import delegraph.api as api
import pytest
import torch
from delegraph.errors import InputError
from delegraph_programs.training_mode import training_note
from torch import nn
from torch.nn import functional as F

X = torch.randn(2, 3, 8)


class Trained(nn.Module):
    """All layers of torch that differ in training."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.drop = nn.Dropout(0.5)
        self.tracking = nn.InstanceNorm1d(3, track_running_stats=True)
        self.recurrent = nn.LSTM(8, 8, 2, dropout=0.2, batch_first=True)

    def forward(self, x):
        x = self.recurrent(self.tracking(self.drop(self.norm(x))))[0]
        return F.scaled_dot_product_attention(
            x, x, x, dropout_p=0.1 if self.training else 0.0
        )


class Alike(nn.Module):
    """Layers that do not differ: batch statistics in both modes, and dropout of
    nothing.
    """

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3, track_running_stats=False)
        self.instance = nn.InstanceNorm1d(3)
        self.recurrent = nn.GRU(8, 8, 2, batch_first=True)
        self.drop = nn.Dropout(0.0)

    def forward(self, x):
        return self.drop(self.recurrent(self.instance(self.norm(x)))[0])


def export(module):
    return torch.export.export(module, (X,))


@pytest.mark.filterwarnings("ignore:.*_flat_weights.*:UserWarning")
def test_each_call_in_training_is_named_with_the_users_line():
    note = training_note(export(Trained().train()))
    calls = (
        "batch_norm.default",
        "dropout.default",
        "instance_norm.default",
        "lstm.input",
    )

    assert all(
        f"1 x aten.{name}" in note
        for name in (*calls, "scaled_dot_product_attention.default")
    )
    assert "test_training.py:" in note
    assert "call model.eval()" in note
    assert training_note(export(Trained().eval())) is None


@pytest.mark.filterwarnings("ignore:.*_flat_weights.*:UserWarning")
def test_modules_equal_in_both_modes_get_no_note():
    assert training_note(export(Alike().train())) is None


def test_report_notes_training_mode_of_branches():
    class Branch(nn.Module):
        def forward(self, x):
            return torch.cond(
                x.sum() > 0, lambda x: F.dropout(x, 0.5, True), lambda x: x * 2, (x,)
            )

    (note,) = api.lower(export(Branch()), backends=[]).report.notes
    assert note.startswith("forward was exported in training mode")


@pytest.mark.filterwarnings("ignore:.*_flat_weights.*:UserWarning")
def test_dropout_between_lstm_layers_is_kept(echo_registry):
    """torch's decomposition leaves it out."""
    from delegraph.partitioner import CapabilityPartitioner

    takes_pieces = CapabilityPartitioner(
        lambda n: (
            None
            if n.target.namespace == "aten" and "lstm" not in str(n.target)
            else "no"
        ),
        "EchoBackend",
    )

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.recurrent = nn.LSTM(8, 8, 2, dropout=1.0, batch_first=True)

        def forward(self, x):
            return self.recurrent(x)[0]

    module = Recurrent().train()
    lowered = api.lower(export(module), backends=[takes_pieces], registry=echo_registry)
    # all is dropped, so nothing is random
    torch.testing.assert_close(lowered(X), module(X))


class Wrapper(nn.Module):
    """Wraps a model in eval mode, but is in training mode itself."""

    def __init__(self, model):
        super().__init__()
        self.model = model.eval()
        self.after = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def forward(self, x):
        return self.after(self.model(x))


class Auxiliary(Wrapper):
    def forward(self, x):
        return self.outputs(super().forward(x))

    def outputs(self, x):
        return (x, x + 1) if getattr(self, "training", False) else x


class Decides(Wrapper):
    @property
    def depth(self):
        return 2 if self.training else 1

    def forward(self, x):
        return super().forward(x) * self.depth


def test_wrappers_that_ignore_the_training_mode_are_accepted():
    model = Wrapper(Trained())
    lowered = api.lower(model, (X,), backends=[])
    assert lowered.verify(X).agrees()
    assert model.training
    assert not lowered.report.notes


@pytest.mark.parametrize(
    "part", [Auxiliary, Decides, Trained, lambda m: Wrapper(m).train()]
)
def test_modules_that_depend_on_the_training_mode_are_refused(part):
    model = part(Alike()) if part is not Trained else Trained()
    with pytest.raises(InputError, match="is in training mode\n  hint: call .eval"):
        api.lower(model, (X,), backends=[])


def test_verify_refuses_a_model_that_went_back_to_training():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout()).eval()
    lowered = api.lower(model, (X,), backends=[])
    model.train()
    with pytest.raises(InputError, match="module 0 is in training mode"):
        lowered.verify(X)
    assert not model[0].running_mean.any()

    model.eval()
    assert lowered.verify(X).agrees()

    # the module of an exported program is always in the mode of the export
    exported = api.lower(torch.export.export(model, (X,)), backends=[])
    for _ in range(2):
        assert exported.verify(X).agrees()
