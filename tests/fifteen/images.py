"""Networks on images. ``NAME_changed`` has the change that the hint names."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim


def convolution(inputs, outputs, kernel=3, stride=1, groups=1, activation=nn.ReLU6):
    conv = nn.Conv2d(
        inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False
    )
    return nn.Sequential(
        conv, nn.BatchNorm2d(outputs), *([activation()] if activation else [])
    )


class Inverted(nn.Module):
    """A block of EfficientNet: widen, filter each channel, weigh the channels, narrow."""

    def __init__(self, channels, activation=nn.ReLU6, squeeze=False):
        super().__init__()
        wide = 3 * channels
        self.widen = convolution(channels, wide, 1, activation=activation)
        self.filter = convolution(wide, wide, groups=wide, activation=activation)
        self.weigh = nn.Sequential(
            nn.Conv2d(wide, 4, 1), nn.SiLU(), nn.Conv2d(4, wide, 1), nn.Sigmoid()
        )
        self.narrow = convolution(wide, channels, 1, activation=None)
        self.squeeze = squeeze

    def forward(self, x):
        y = self.filter(self.widen(x))
        if self.squeeze:
            y = y * self.weigh(y.mean((2, 3), keepdim=True))
        return x + self.narrow(y)


class Classifier(nn.Module):
    def __init__(self, *body, channels=8):
        super().__init__()
        self.features = nn.Sequential(convolution(3, channels, stride=2), *body)
        self.head = nn.Linear(channels, 10)

    def forward(self, x):
        return self.head(F.adaptive_avg_pool2d(self.features(x), 1).flatten(1))


def mobilenet_v2():
    """MobileNet V2 with a dynamic batch."""
    model = Classifier(Inverted(8), Inverted(8)).eval()
    image = torch.randn(2, 3, 16, 16)
    return {
        "model": model,
        "args": (image,),
        "dynamic_shapes": ({0: Dim("batch", max=32)},),
    }


def mobilenet_v2_changed():
    """MobileNet V2 with a static batch."""
    return {**mobilenet_v2(), "dynamic_shapes": None}


def efficientnet():
    return Classifier(Inverted(8, nn.SiLU, squeeze=True)).eval(), (
        torch.randn(1, 3, 16, 16),
    )


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = convolution(channels, channels, activation=nn.ReLU)
        self.second = convolution(channels, channels, activation=None)

    def forward(self, x):
        return F.relu(x + self.second(self.first(x)), inplace=True)


class FromCamera(nn.Module):
    """A network that normalizes the bytes of an image [N, H, W, 3]."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1))

    def forward(self, image):
        x = image.permute(0, 3, 1, 2) / 255
        return self.model((x - self.mean) / self.std)


def resnet(dtype=torch.uint8):
    image = torch.randint(0, 256, (1, 16, 16, 3), dtype=dtype)
    return FromCamera(Classifier(Residual(8), nn.MaxPool2d(2), Residual(8))).eval(), (
        image,
    )


def resnet_changed():
    """The image is converted to int32 before the model."""
    return resnet(torch.int32)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = convolution(3, 8)
        self.bottom = convolution(8, 16)
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.join = convolution(16, 8)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x):
        beside = self.down(x)
        y = self.up(self.bottom(F.max_pool2d(beside, 2)))
        return self.head(self.join(torch.cat((beside, y), 1))).argmax(1)


def unet():
    """A U-Net for images of any even size."""
    height = 2 * Dim("half_height", min=4, max=64)
    width = 2 * Dim("half_width", min=4, max=64)
    return {**unet_changed(), "dynamic_shapes": ({2: height, 3: width},)}


def unet_changed():
    """A U-Net for one size."""
    return {"model": UNet().eval(), "args": (torch.randn(1, 3, 16, 24),)}


class YOLO(nn.Module):
    """Boxes and classes of each place. Those above a threshold go to NMS on the host."""

    def __init__(self, best):
        super().__init__()
        self.body = nn.Sequential(
            convolution(3, 8, stride=2, activation=nn.SiLU),
            convolution(8, 16, stride=2),
        )
        self.boxes = nn.Conv2d(16, 4, 1)
        self.classes = nn.Conv2d(16, 3, 1)
        self.best = best

    def forward(self, x):
        y = self.body(x)
        rows, columns = torch.meshgrid(
            torch.arange(y.shape[2]), torch.arange(y.shape[3]), indexing="ij"
        )
        places = torch.stack((columns, rows, columns, rows)).flatten(1).T + 0.5
        boxes = (places + self.boxes(y).flatten(2).mT) * 4
        scores, classes = self.classes(y).flatten(2).mT.sigmoid().max(-1)
        if self.best:
            scores, chosen = scores.topk(self.best)
            return (
                boxes.gather(1, chosen[..., None].expand(-1, -1, 4)),
                scores,
                classes.gather(1, chosen),
            )
        found = scores > 0.5
        return boxes[found], scores[found], classes[found]


def yolo(best=0):
    return YOLO(best).eval(), (torch.randn(1, 3, 32, 32),)


def yolo_changed():
    """The best eight places, instead of all places above a threshold."""
    return yolo(best=8)


class ViT(nn.Module):
    """A vision transformer whose positions were learned for another image size."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.first = nn.Parameter(torch.randn(1, 1, 16))
        self.places = nn.Parameter(torch.randn(1, 16, 3, 3))
        self.body = nn.TransformerEncoderLayer(
            16, 2, 32, batch_first=True, norm_first=True, activation="gelu"
        )
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        y = self.patches(x)
        y = y + F.interpolate(self.places, y.shape[2:], mode="bilinear")
        y = torch.cat((self.first.expand(len(x), -1, -1), y.flatten(2).mT), 1)
        return self.head(self.body(y)[:, 0])


def vit():
    return ViT().eval(), (torch.randn(1, 3, 16, 16),)


class Diffusion(nn.Module):
    """A denoising step. Noise is added unless it is an input."""

    def __init__(self):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 16))
        self.take = nn.Conv2d(3, 8, 3, 1, 1)
        self.norm = nn.GroupNorm(4, 8)
        self.down = nn.Conv2d(8, 8, 3, 2, 1)
        self.look = nn.MultiheadAttention(8, 2, batch_first=True)
        self.give = nn.Conv2d(16, 3, 3, 1, 1)
        self.register_buffer("noisiness", torch.linspace(0.1, 1, 50))

    def forward(self, x, time, noise=None):
        noise = torch.randn_like(x) if noise is None else noise
        angle = time[:, None].float() * torch.exp(-torch.arange(8) / 2)
        scale, shift = self.time(torch.cat((angle.sin(), angle.cos()), -1))[
            :, :, None, None
        ].chunk(2, 1)
        beside = F.silu(self.norm(self.take(x)) * (1 + scale) + shift)
        y = self.down(beside)
        tokens = y.flatten(2).mT
        y = y + self.look(tokens, tokens, tokens, need_weights=False)[0].mT.view_as(y)
        y = self.give(torch.cat((beside, F.interpolate(y, scale_factor=2.0)), 1))
        return x - y + noise * self.noisiness[time].view(-1, 1, 1, 1)


def diffusion():
    return Diffusion().eval(), (torch.randn(1, 3, 8, 8), torch.tensor([7]))


def diffusion_changed():
    """The noise is an input."""
    model, inputs = diffusion()
    return model, (*inputs, torch.randn(1, 3, 8, 8))
