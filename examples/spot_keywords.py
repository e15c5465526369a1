"""Train a keyword spotter that computes its log-mel spectrogram, and lower it in int8.

    pip install transformers && pip install --no-deps espeakng-loader
    python examples/spot_keywords.py

espeakng-loader has a synthesizer, which speaks the words. One voice is for the test.
The logarithm of the spectrogram stays in floats, because 8 bits cannot hold its range.
"""

import ctypes

import delegraph
import espeakng_loader
import torch
from torch import Tensor, nn
from transformers.audio_utils import mel_filter_bank

WORDS = ("yes", "no", "stop", "go")
spoken = bytearray()


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
def keep(samples: int | None, count: int, _: int) -> int:
    spoken.extend(ctypes.string_at(samples, 2 * count) if samples else b"")
    return 0


espeak = ctypes.CDLL(espeakng_loader.get_library_path())
RATE = espeak.espeak_Initialize(2, 0, espeakng_loader.get_data_path().encode(), 0)
espeak.espeak_SetSynthCallback(keep)


def speak(word: str, voice: str, pitch: int = 50) -> Tensor:
    """Return a second of sound with some noise."""
    spoken.clear()
    espeak.espeak_SetVoiceByName(f"en+{voice}".encode())
    espeak.espeak_SetParameter(3, pitch, 0)
    espeak.espeak_Synth(word.encode(), len(word) + 1, 0, 1, 0, 1, None, None)
    sound = torch.frombuffer(spoken[: 2 * RATE], dtype=torch.int16) / 2**15
    noise = 0.004 * torch.randn(1, RATE)
    return noise + nn.functional.pad(sound, (0, RATE - len(sound)))


class LogMel(nn.Module):
    bank = torch.from_numpy(mel_filter_bank(257, 40, 20, 8000, RATE)).float()
    window = torch.hann_window(512)

    def forward(self, sound: Tensor) -> Tensor:
        waves = torch.stft(sound, 512, 220, window=self.window, return_complex=True)
        power = torch.view_as_real(waves).square().sum(-1)
        return torch.log(power.transpose(1, 2) @ self.bank + 1e-6)[:, None]


torch.manual_seed(0)
layers = [nn.Conv2d(1, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU()]
layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, len(WORDS))]
model = nn.Sequential(LogMel(), nn.BatchNorm2d(1), *layers)
voices = ("m1", "m3", "m4", "f1", "f3", "f4")
sounds = [speak(w, v, p) for v in voices for p in (30, 50, 70) for w in WORDS]
spectrograms = model[0](torch.cat(sounds))
labels = torch.arange(len(sounds)) % len(WORDS)
optimizer = torch.optim.Adam(model.parameters(), 0.01)
for _ in range(80):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model[1:](spectrograms), labels).backward()
    optimizer.step()
model.eval()
for backend in ("tosa", "xnnpack"):
    quantized = delegraph.quantize(model, sounds[::3], backend=backend)
    lowered = delegraph.lower(quantized, backends=[backend])
    for word in WORDS:
        chances = lowered(speak(word, "m2"))[0].softmax(0)
        heard = WORDS[int(chances.argmax())]
        print(f'{backend} hears "{heard}", {chances.max():.0%} sure; "{word}" was said')
