"""Networks that several measures train and predict with, beside those of `bnn.MLP`."""

import torch
from torch import Tensor, nn


class LSTM(nn.Module):
    """An LSTM with ten outputs, by default one that reads the rows of an image of 28 x 28."""

    def __init__(self, inputs: int = 28, units: int = 128) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(inputs, units, batch_first=True), nn.Linear(units, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs after the last step."""
        last: Tensor = self.head(self.cell(x)[0][:, -1])
        return last


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
