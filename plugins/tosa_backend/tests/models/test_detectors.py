"""Verification accepts detectors whose best boxes tie, and still detects wrong numbers."""

from __future__ import annotations

import delegraph
import pytest
import torch
from delegraph_analysis import verify_ties
from delegraph_tosa.runtime import TOSARuntime
from torch import nn


class Yolo(nn.Module):
    """Images [N,3,32,32] -> the best 20 of 80 cells: scores [N,20], labels [N,20]
    int64, boxes [N,20,4].

    Scores are rounded, as those of a detector with integers are.
    """

    def __init__(self, rounds: bool = True) -> None:
        super().__init__()
        stem = [
            nn.Conv2d(3, 8, 3, 2, 1),
            nn.SiLU(),
            nn.Conv2d(8, 16, 3, 2, 1),
            nn.SiLU(),
        ]
        self.stem = nn.Sequential(*stem)
        self.down = nn.Sequential(nn.Conv2d(16, 16, 3, 2, 1), nn.SiLU())
        self.heads = nn.ModuleList(nn.Conv2d(16, 7, 1) for _ in range(2))
        self.rounds = rounds

    def forward(self, images):
        fine = self.stem(images)
        cells = [
            head(x).flatten(2)
            for head, x in zip(self.heads, (fine, self.down(fine)), strict=True)
        ]
        boxes, classes = torch.cat(cells, 2).transpose(1, 2).split((4, 3), 2)
        scores, labels = classes.sigmoid().max(2)
        if self.rounds:
            scores = (scores * 64).round() / 64
        best = scores.topk(20, 1)
        wide = best.indices[..., None].expand(-1, -1, 4)
        return (
            best.values,
            labels.gather(1, best.indices),
            boxes.sigmoid().gather(1, wide),
        )


def plant_error(monkeypatch, wanted, where, by):
    """Delegates whose result of the shape of ``wanted`` is wrong at one place."""
    load = TOSARuntime.load

    def wrong(*parts):
        run = load(*parts)

        def call(*args):
            results = [r.clone() for r in run(*args)]
            alike = (
                r
                for r in results
                if r.is_floating_point() == wanted.is_floating_point()
            )
            fitting = next(r for r in alike if r.shape == wanted.shape)
            fitting[where] += by
            return tuple(results)

        return call

    monkeypatch.setattr(TOSARuntime, "load", wrong)


@pytest.fixture
def images():
    return torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def detector(quantizes, images):
    torch.manual_seed(0)
    model = Yolo(rounds=not quantizes).eval()
    return (
        delegraph.quantize(model, [(images,)], backend="tosa") if quantizes else model
    )


@pytest.mark.parametrize("quantizes", [False, True], ids=["float", "int8"])
def test_a_yolo_with_top_k(quantizes, images, monkeypatch):
    model = detector(quantizes, images)
    lower = lambda: delegraph.lower(model, (images,), backends=["tosa"])
    lowered = lower()
    assert lowered.host_operators == 0
    found = verify_ties(lowered, images)
    assert found.agrees(), found
    assert "compared with another run of eager at" in str(found), found
    for output, where, by in ((2, (0, 5, 1), 0.05), (1, (0, 19), 1), (0, (0, 0), 0.05)):
        with monkeypatch.context() as patched:
            plant_error(patched, lowered(images)[output], where, by)
            wrong = verify_ties(lower(), images)
            assert not wrong.agrees(), wrong
            assert not wrong.outputs[output].agrees(), wrong


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the package, and there are many
def test_d_fine(images, monkeypatch):
    transformers = pytest.importorskip("transformers")
    stages = {
        "stem_channels": [3, 8, 8],
        "stage_in_channels": [8, 16, 32, 64],
        "stage_mid_channels": [8, 8, 16, 16],
    }
    stages |= {
        "stage_out_channels": [16, 32, 64, 128],
        "stage_num_blocks": [1] * 4,
        "stage_numb_of_layers": [1] * 4,
    }
    stages |= {
        "stage_downsample": [False, True, True, True],
        "stage_light_block": [False] * 4,
    }
    stages |= {
        "stage_kernel_size": [3] * 4,
        "hidden_sizes": [16, 32, 64, 128],
        "embedding_size": 8,
        "depths": [1] * 4,
    }
    backbone = transformers.HGNetV2Config(
        **stages, out_features=["stage2", "stage3", "stage4"]
    )
    sizes = {
        "encoder_hidden_dim": 32,
        "d_model": 32,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
        "num_queries": 30,
    }
    sizes |= {
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "decoder_layers": 2,
        "num_labels": 5,
    }
    channels = {"encoder_in_channels": [32, 64, 128], "decoder_in_channels": [32] * 3}
    config = transformers.DFineConfig(backbone_config=backbone, **sizes, **channels)
    torch.manual_seed(0)
    model = Boxes(transformers.DFineForObjectDetection(config)).eval()
    images = nn.functional.interpolate(images, scale_factor=2)
    lowered = delegraph.lower(model, (images,), backends=["tosa"])
    found = verify_ties(lowered, images)
    assert found.agrees(), found
    assert found.relative_error < 1e-3, found
    assert "compared with another run of eager at" in str(found), found
    plant_error(monkeypatch, lowered(images)[0], (0, 5, 1), 0.1)
    wrong = verify_ties(delegraph.lower(model, (images,), backends=["tosa"]), images)
    assert not wrong.agrees(), wrong


class Boxes(nn.Module):
    def __init__(self, model) -> None:
        super().__init__()
        self.model = model

    def forward(self, images):
        found = self.model(pixel_values=images)
        return found.logits, found.pred_boxes
