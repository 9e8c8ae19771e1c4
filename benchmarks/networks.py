"""Networks that several measures train and predict with, beside those of `bnn.MLP`."""

import torch
from torch import Tensor, nn


def three_convolutions() -> nn.Module:
    """Return a small network of three convolutions for images of 3 x 32 x 32."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class LSTM(nn.Module):
    """An LSTM with ten outputs, by default one that reads the rows of an image of 28 x 28."""

    def __init__(self, inputs: int = 28, units: int = 128) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(inputs, units, batch_first=True), nn.Linear(units, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs after the last step."""
        last: Tensor = self.head(self.cell(x)[0][:, -1])
        return last


class VisionTransformer(nn.Module):
    """Patches of 4 x 4 of images of 3 x 32 x 32, four layers of attention, and the mean over patches."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.places = nn.Parameter(0.02 * torch.randn(64, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs."""
        patches = self.patches(x).flatten(2).mT + self.places
        outputs: Tensor = self.head(self.layers(patches).mean(1))
        return outputs


def resnet18(width: int = 64) -> nn.Sequential:
    """Return ResNet-18 (He et al. 2016) with a first convolution for small images; the paper has 64 channels there."""
    first = [nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    blocks, inputs = [], width
    for stage in range(4):
        for stride in (1 if stage == 0 else 2, 1):
            blocks.append(_Block(inputs, width * 2**stage, stride))
            inputs = width * 2**stage
    return nn.Sequential(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        shorter = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.beside = nn.Identity() if stride == 1 and inputs == outputs else shorter

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.main(x) + self.beside(x))
