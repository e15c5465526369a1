"""``timm:NAME`` and ``torchvision:NAME`` name models with their example inputs.

Small stand-ins replace both libraries, except in the slow test.
"""

import sys
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

import delegraph
import pytest
import torch
from delegraph.command import read_model
from torch import nn


class Small(nn.Module):
    """Takes any number of images, each [1, C, ...]."""

    def __init__(self):
        super().__init__()
        self.pretrained_cfg = {"input_size": (3, 8, 8)}
        self.linear = nn.Linear(3, 2)

    def forward(self, *images):
        return self.linear(sum(image.flatten(2).mean(2) for image in images))


def install_module(monkeypatch, module):
    """Make a stand-in importable."""
    name = module.__name__
    module.__spec__ = SimpleNamespace(
        name=name, loader=None, origin=name, submodule_search_locations=[]
    )
    monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def timm(monkeypatch):
    """Install a stand-in for timm."""
    module = ModuleType("timm")
    module.list_models = lambda: ["small_net", "big_net"]
    module.create_model = lambda name: Small()
    install_module(monkeypatch, module)


BUILDER_MODULES = {
    "net": "resnet",
    "clip": "video.resnet",
    "flow": "optical_flow.raft",
    "boxes": "detection.ssd",
    "masks": "segmentation.fcn",
}
"""Model of the stand-in -> the module in torchvision.models where such a model is."""
CROP_SIZES = {"net": [12], "masks": 10}


@pytest.fixture
def torchvision(monkeypatch):
    """Install a stand-in for torchvision.

    Return the list of the settings of all models that are made.
    """
    settings_of_models = []

    def get_model(name, **settings):
        settings_of_models.append(settings)
        return Small()

    def get_model_builder(name):
        return SimpleNamespace(__module__=f"torchvision.models.{BUILDER_MODULES[name]}")

    def get_model_weights(name):
        transforms = SimpleNamespace()
        if name in CROP_SIZES:
            transforms.crop_size = CROP_SIZES[name]
        return [SimpleNamespace(transforms=lambda: transforms)]

    models = ModuleType("torchvision.models")
    models.list_models = lambda: list(BUILDER_MODULES)
    models.get_model = get_model
    models.get_model_builder = get_model_builder
    models.get_model_weights = get_model_weights
    module = ModuleType("torchvision")
    module.models = models
    install_module(monkeypatch, module)
    install_module(monkeypatch, models)
    return settings_of_models


class Read(NamedTuple):
    """A model and its example inputs."""

    model: nn.Module
    inputs: tuple


def read(text):
    found = read_model(text)
    return Read(found.programs["forward"], found.inputs["forward"])


def test_timm_names_give_a_model_and_an_image_of_its_size(timm):
    model, (image,) = read("timm:small_net")

    assert image.shape == (1, 3, 8, 8)
    assert not model.training


def test_a_name_gives_equal_weights_and_inputs_each_time(timm):
    first = read("timm:small_net")
    second = read("timm:small_net")

    assert torch.equal(first.inputs[0], second.inputs[0])
    assert torch.equal(first.model.linear.weight, second.model.linear.weight)


def test_named_models_can_be_lowered(timm):
    model, inputs = read("timm:small_net")

    lowered = delegraph.lower(model, inputs, backends=["tosa"])

    assert lowered.host_operators == 0
    assert lowered.verify(*inputs).agrees()


@pytest.mark.parametrize("is_checkpoint", [False, True])
def test_weights_come_from_a_file(is_checkpoint, timm, tmp_path):
    file = tmp_path / "weights.pth"
    weights = nn.Linear(3, 2).state_dict(prefix="linear.")
    torch.save({"state_dict": weights} if is_checkpoint else weights, file)

    model, _ = read(f"timm:small_net@{file}")

    torch.testing.assert_close(model.state_dict(), weights)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("other.pth", "does not contain weights"),
        ("broken.pth", "does not contain"),
        ("no.pth", "does not exist"),
    ],
)
def test_files_without_weights_of_the_model_are_refused(file, message, timm, tmp_path):
    torch.save({"other": torch.ones(1)}, tmp_path / "other.pth")
    (tmp_path / "broken.pth").write_bytes(b"PK\x03\x04 but no more")

    with pytest.raises(delegraph.errors.InputError, match=message):
        read(f"timm:small_net@{tmp_path / file}")


def test_errors_without_a_text_are_shown_by_their_class(timm, tmp_path, monkeypatch):
    def load(*args, **settings):
        raise EOFError

    monkeypatch.setattr(torch, "load", load)
    (tmp_path / "empty.pth").write_bytes(b"")

    with pytest.raises(
        delegraph.errors.InputError,
        match=r"empty.pth' does not contain weights of this model: EOFError",
    ):
        read(f"timm:small_net@{tmp_path / 'empty.pth'}")


def test_unknown_names_suggest_similar_ones(timm):
    message = (
        r"timm has no model 'smal_net'\n  raised by reading of models of from_timm"
        r" [^?]*hint: did you mean small_net"
    )

    with pytest.raises(delegraph.errors.InputError, match=message):
        read("timm:smal_net")


def test_unknown_names_without_similar_ones_give_the_count(torchvision):
    with pytest.raises(delegraph.errors.InputError, match=r"torchvision has 5 models"):
        read("torchvision:zzz")


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("net", [(1, 3, 12, 12)]),  # the crop size of its weights
        ("masks", [(1, 3, 10, 10)]),
        ("clip", [(1, 3, 16, 224, 224)]),  # 16 images of a video
        ("flow", [(1, 3, 224, 224), (1, 3, 224, 224)]),  # two images
    ],
)
def test_inputs_fit_the_kind_of_torchvision_model(name, shapes, torchvision):
    _, inputs = read(f"torchvision:{name}")

    assert [tuple(image.shape) for image in inputs] == shapes


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("net", {"weights": None}),
        ("clip", {"weights": None}),
        ("flow", {"weights": None}),
        ("masks", {"weights": None, "weights_backbone": None}),
    ],
)
def test_torchvision_models_load_no_weights(name, settings, torchvision):
    """By default, the backbone of a segmentation model would be downloaded."""
    read(f"torchvision:{name}")

    assert torchvision == [settings]


def test_detectors_are_refused(torchvision):
    with pytest.raises(delegraph.errors.InputError, match="takes a list of images"):
        read("torchvision:boxes")


@pytest.mark.skipif(find_spec("timm") is not None, reason="timm is installed")
def test_missing_libraries_are_named_with_an_install_command():
    with pytest.raises(
        delegraph.errors.PluginUnavailable,
        match=r'pip install "delegraph-vision\[timm\]"',
    ):
        read("timm:small_net")


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ["timm:efficientnet_b0", "torchvision:mobilenet_v3_small"]
)
def test_real_models_are_delegated_whole(text):
    pytest.importorskip(text.partition(":")[0])
    model, inputs = read(text)

    lowered = delegraph.lower(model, inputs, backends=["tosa"])

    assert lowered.host_operators == 0
    assert lowered.verify(*inputs).agrees()


def test_libraries_that_do_not_fit_torch_are_refused(tmp_path, monkeypatch):
    """timm imports torchvision, which raises this error for another build of torch."""
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
