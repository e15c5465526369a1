"""``timm:NAME`` and ``torchvision:NAME``, with small stand-ins for both libraries;
slow: with the real ones.
"""

import sys
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace

import delegraph
import pytest
import torch
from delegraph.command import read_model
from torch import nn


class Small(nn.Module):
    """As many inputs as it is given, each [1, C, ...]."""

    def __init__(self):
        super().__init__()
        self.pretrained_cfg = {"input_size": (3, 8, 8)}
        self.linear = nn.Linear(3, 2)

    def forward(self, *images):
        return self.linear(sum(image.flatten(2).mean(2) for image in images))


@pytest.fixture
def timm(monkeypatch):
    module = ModuleType("timm")
    module.list_models = lambda: ["small_net", "big_net"]
    module.create_model = lambda name: Small()
    module.__spec__ = SimpleNamespace(
        name="timm", loader=None, origin="timm", submodule_search_locations=None
    )
    monkeypatch.setitem(sys.modules, "timm", module)


@pytest.fixture
def torchvision(monkeypatch):
    """With the kinds of models that torchvision has."""
    kinds = {
        "net": "resnet",
        "clip": "video.resnet",
        "flow": "optical_flow.raft",
        "boxes": "detection.ssd",
    }
    kinds["masks"] = "segmentation.fcn"
    models = ModuleType("torchvision.models")
    models.list_models = lambda: [*kinds]
    models.get_model_builder = lambda name: SimpleNamespace(
        __module__=f"torchvision.models.{kinds[name]}"
    )
    asked = []
    models.get_model = lambda name, **settings: asked.append(settings) or Small()
    crops = {"net": [12], "masks": 10}
    models.get_model_weights = lambda name: [
        SimpleNamespace(
            transforms=lambda: SimpleNamespace(
                **({"crop_size": crops[name]} if name in crops else {})
            )
        )
    ]
    module = ModuleType("torchvision")
    module.models = models
    module.asked = asked
    for name, made in (("torchvision", module), ("torchvision.models", models)):
        made.__spec__ = SimpleNamespace(
            name=name, loader=None, origin=name, submodule_search_locations=[]
        )
        monkeypatch.setitem(sys.modules, name, made)
    return module


def forward_program_and_inputs(text):
    model = read_model(text)
    return model.programs["forward"], model.inputs["forward"]


def test_timm_names_give_a_model_and_fitting_image(timm):
    model, (image,) = forward_program_and_inputs("timm:small_net")
    assert image.shape == (1, 3, 8, 8)
    assert not model.training
    again, (same,) = forward_program_and_inputs("timm:small_net")
    assert torch.equal(image, same)
    assert torch.equal(model.linear.weight, again.linear.weight)
    lowered = delegraph.lower(model, (image,), backends=["tosa"])
    assert lowered.host_operators == 0
    assert lowered.verify(image).agrees()


def test_weights_of_a_file(timm, tmp_path):
    file = tmp_path / "weights.pth"
    expected = nn.Linear(3, 2).state_dict(prefix="linear.")
    torch.save(expected, file)
    model, _ = forward_program_and_inputs(f"timm:small_net@{file}")
    torch.testing.assert_close(model.state_dict(), expected)
    torch.save({"state_dict": expected}, file)
    torch.testing.assert_close(
        forward_program_and_inputs(f"timm:small_net@{file}")[0].state_dict(), expected
    )


def test_files_with_other_weights_are_refused(timm, tmp_path):
    torch.save({"other": torch.ones(1)}, tmp_path / "other.pth")
    (tmp_path / "broken.pth").write_bytes(b"PK\x03\x04 but no more")
    for file, said in (
        ("other.pth", "does not contain weights"),
        ("broken.pth", "does not contain"),
        ("no.pth", "does not exist"),
    ):
        with pytest.raises(delegraph.errors.InputError, match=said):
            forward_program_and_inputs(f"timm:small_net@{tmp_path / file}")


def test_an_error_without_a_text_is_named(timm, tmp_path, monkeypatch):
    def load(*args, **settings):
        raise EOFError

    monkeypatch.setattr(torch, "load", load)
    (tmp_path / "empty.pth").write_bytes(b"")
    with pytest.raises(
        delegraph.errors.InputError,
        match=r"empty.pth' does not contain weights of this model: EOFError",
    ):
        forward_program_and_inputs(f"timm:small_net@{tmp_path / 'empty.pth'}")


def test_unknown_names_suggest_similar_ones(timm, torchvision):
    said = (
        r"timm has no model 'smal_net'\n  raised by reading of models of from_timm"
        r" [^?]*hint: did you mean small_net"
    )
    with pytest.raises(delegraph.errors.InputError, match=said):
        forward_program_and_inputs("timm:smal_net")
    with pytest.raises(delegraph.errors.InputError, match=r"torchvision has 5 models"):
        forward_program_and_inputs("torchvision:zzz")


def test_inputs_of_the_kinds_of_torchvision(torchvision):
    shapes = {
        "net": [(1, 3, 12, 12)],
        "clip": [(1, 3, 16, 224, 224)],
        "flow": [(1, 3, 224, 224)] * 2,
    }
    shapes["masks"] = [(1, 3, 10, 10)]
    for name, expected in shapes.items():
        _, inputs = forward_program_and_inputs(f"torchvision:{name}")
        assert [tuple(image.shape) for image in inputs] == expected
    assert torchvision.asked == [{"weights": None}] * 3 + [
        {"weights": None, "weights_backbone": None}
    ]
    with pytest.raises(delegraph.errors.InputError, match="takes a list of images"):
        forward_program_and_inputs("torchvision:boxes")


@pytest.mark.skipif(find_spec("timm") is not None, reason="timm is installed")
def test_missing_libraries_are_named_with_an_install_command():
    with pytest.raises(
        delegraph.errors.PluginUnavailable,
        match=r'pip install "delegraph-vision\[timm\]"',
    ):
        forward_program_and_inputs("timm:small_net")


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ["timm:efficientnet_b0", "torchvision:mobilenet_v3_small"]
)
def test_real_models_are_delegated_whole(text):
    pytest.importorskip(text.partition(":")[0])
    model, inputs = forward_program_and_inputs(text)
    lowered = delegraph.lower(model, inputs, backends=["tosa"])
    assert lowered.host_operators == 0
    assert lowered.verify(*inputs).agrees()


def test_libraries_that_do_not_fit_torch_are_refused(tmp_path, monkeypatch):
    """torchvision of another build than torch's raises this when it is imported, and
    timm imports it.
    """
    (tmp_path / "timm.py").write_text(
        "raise RuntimeError('operator torchvision::nms does not exist')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    with pytest.raises(delegraph.errors.PluginUnavailable) as caught:
        read_model("timm:resnet18")
    assert "torchvision::nms does not exist (with timm " in str(caught.value)
    assert f"torch {torch.__version__})" in str(caught.value)
    assert "in one command" in caught.value.hint
