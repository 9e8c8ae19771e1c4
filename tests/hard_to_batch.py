"""Networks with operations that torch batches wrongly or not at all, or has no forward-mode derivative of."""

import functools

import torch
from helpers import Net
from torch import nn
from torch.func import functional_call

from pyrobnn._core.random import seeded


class Applied(nn.Module):
    """head(f(tanh(first(x)), weight))."""

    def __init__(self, function, shape, width):
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.rand(shape) + 0.2)
        self.first, self.head = nn.Linear(3, 4), nn.Linear(width, 2)

    def forward(self, x):
        return self.head(self.function(torch.tanh(self.first(x)), self.weight))


def packed():
    """An LSTM on packed sequences."""

    def run(net, x):
        lengths = torch.full((len(x),), x.shape[1])
        sequences = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return net.head(net.cell(sequences)[1][0][-1])

    return Net(run, cell=nn.LSTM(2, 3, batch_first=True), head=nn.Linear(3, 2))


def cells():
    """A loop over time in Python."""
    run = lambda net, x: net.head(functools.reduce(lambda state, step: net.cell(step, state), x.unbind(1), None))  # noqa: E731
    return Net(run, cell=nn.GRUCell(2, 3), head=nn.Linear(3, 2))


def padded():
    """An encoder that does not look at the last position."""

    def run(net, x):
        padding = torch.zeros(x.shape[:2], dtype=torch.bool)
        padding[:, -1] = True
        return net.head(net.encoder(x, src_key_padding_mask=padding)[:, 0])

    layer = nn.TransformerEncoderLayer(4, 2, 5, dropout=0.0, batch_first=True)
    return Net(run, encoder=nn.TransformerEncoder(layer, 2), head=nn.Linear(4, 2))


class OwnSquare(torch.autograd.Function):
    """A function whose gradient is no operation of torch."""

    generate_vmap_rule = False

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx, gradient):
        return torch.from_numpy(2 * ctx.saved_tensors[0].detach().numpy() * gradient.numpy())


def _activation(module):
    return nn.Sequential(nn.Linear(3, 4), module, nn.Linear(4, 2))


_bag = nn.functional.embedding_bag
HARD_TO_BATCH = {
    "prelu": (lambda: _activation(nn.PReLU()), (3,)),
    "prelu by unit": (lambda: _activation(nn.PReLU(4)), (3,)),
    "prelu of the inputs": (lambda: nn.Sequential(nn.PReLU(init=0.5), nn.Linear(3, 2)), (3,)),
    "prelu of images": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 2), nn.PReLU(2), nn.Flatten(), nn.Linear(8, 2)),
        (1, 3, 3),
    ),
    "rrelu": (lambda: _activation(nn.RReLU()), (3,)),
    "rrelu in place": (lambda: _activation(nn.RReLU(inplace=True)), (3,)),
    "celu in place": (lambda: _activation(nn.CELU(0.5, inplace=True)), (3,)),
    "cdist": (lambda: Applied(torch.cdist, (5, 4), 5), (3,)),
    "cdist, 1-norm": (lambda: Applied(lambda h, w: torch.cdist(h, w, p=1.0), (5, 4), 5), (3,)),
    "bilinear": (lambda: Applied(lambda h, w: nn.functional.bilinear(h, h, w), (4, 4, 4), 4), (3,)),
    "group norm": (lambda: Applied(lambda h, w: nn.functional.group_norm(h, 2, 2 * w), (4,), 4), (3,)),
    "interpolate": (lambda: Applied(lambda h, w: nn.functional.interpolate((h * w)[:, None], 6)[:, 0], (4,), 6), (3,)),
    "fold": (
        lambda: Applied(lambda h, w: nn.functional.fold((h * w).reshape(-1, 4, 1), 2, 2).flatten(1), (4,), 4),
        (3,),
    ),
    "solve": (lambda: Applied(lambda h, w: torch.linalg.solve(w @ w.T + torch.eye(4).to(w), h.mT).mT, (4, 4), 4), (3,)),
    "in-place sums": (lambda: Applied(lambda h, w: torch.zeros(len(h), 4).to(h).add_(h * w), (4,), 4), (3,)),
    "bag": (lambda: Applied(lambda h, w: h + _bag(torch.zeros(len(h), 2).long(), w), (3, 4), 4), (3,)),
    "embedding bag": (lambda: nn.Sequential(nn.EmbeddingBag(6, 3), nn.Tanh(), nn.Linear(3, 2)), None),
    "weight norm": (
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 2)),
        (3,),
    ),
    "a function": (lambda: Applied(lambda h, w: OwnSquare.apply(h * w), (4,), 4), (3,)),
    "packed": (packed, (4, 2)),
    "cells": (cells, (4, 2)),
    "padded": (padded, (3, 4)),
}


def hard_to_batch(name, num=5):
    """A network of the table in float64, and inputs."""
    make, shape = HARD_TO_BATCH[name]
    with seeded(5):
        net = make().double().eval()
        return net, torch.randint(0, 6, (num, 4)) if shape is None else torch.randn(num, *shape, dtype=torch.float64)


def looped_jacobian(net, weights, x):
    """Derivatives of each output in all weights, flat, by a run for each example: (N, C, D)."""
    leaves = {name: value.detach().clone().requires_grad_() for name, value in weights.items()}
    rows = []
    for row in x:
        outputs = functional_call(net, leaves, (row[None],))[0]
        for output in outputs:
            parts = torch.autograd.grad(output, list(leaves.values()), retain_graph=True)
            rows.append(torch.cat([part.reshape(-1) for part in parts]))
    return torch.stack(rows).view(len(x), len(outputs), -1)
