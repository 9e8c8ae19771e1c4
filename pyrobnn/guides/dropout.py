"""The dropout guide: a network that loses input units of its layers at random, as variational inference."""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any

import pyro
import pyro.distributions as dist
import torch
from pydantic import Field
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from pyrobnn._core.errors import InputError
from pyrobnn._core.settings import Positive, setting
from pyrobnn._torch.layers import dropout_rate, kind_of
from pyrobnn._torch.per_example import InputNoise, attach
from pyrobnn.guides.base import BuiltGuide, Model, registry
from pyrobnn.guides.map import DrawnPoint, MapGuide
from pyrobnn.guides.sites import Site, latent_sites

Rate = Annotated[float, Field(ge=0, lt=1)]


@dataclasses.dataclass(frozen=True)
class FedWeight:
    """A weight that multiplies the input units of a layer, which may be the first of the network.

    Input units lie on its first or its second axis; each group of channels of a convolution has separate units.
    """

    name: str
    shape: torch.Size
    inputs_first: bool
    groups: int
    is_first: bool

    @property
    def num_units(self) -> int:
        """The number of input units: features, channels, or entries of an embedding's table."""
        return self.shape[0] if self.inputs_first else self.shape[1] * self.groups

    def spread(self, mask: Tensor) -> Tensor:
        """Return factors for the input units (units,) as factors for the weight, expanding to its shape."""
        ones = [1] * (len(self.shape) - 2)
        if self.inputs_first:
            return mask.view(-1, 1, *ones)
        by_group = mask.view(self.groups, 1, -1).expand(-1, self.shape[0] // self.groups, -1)
        return by_group.reshape(*self.shape[:2], *ones)


def fed_weights(model: Callable[..., Any]) -> list[FedWeight]:
    """Return the weights of a model's network whose input units are known, in order; a tied weight counts once."""
    net = getattr(model, "net", None)
    if not isinstance(net, nn.Module):
        said = f"Dropout masks the inputs of the layers of `model.net`, and {type(model).__name__} has no network there"
        raise InputError(f"{said}: pass a BNN.")
    weights: list[FedWeight] = []
    for prefix, module in net.named_modules():
        p, kind = dropout_rate(module), kind_of(module)
        if p > 0:
            raise InputError(
                f"The network has a dropout layer, {prefix!r} with p={p} ({type(module).__name__}), which "
                "would act beside the masks of the guide Dropout, and in training only: leave it out, or set it to 0."
            )
        if kind is not None and kind.inputs is not None:
            groups = module.groups if kind.channel == 1 else 1
            for name, value in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
                if "weight" in name and value.ndim > 1:
                    full = f"{prefix}.{name}".lstrip(".")
                    weights.append(FedWeight(full, value.shape, kind.inputs == 0, groups, is_first=not weights))
    return weights


@registry.register
@setting
class Dropout:
    """q(w): each layer's weight is M diag(eps), eps_i ~ Bernoulli(1 - p) for its input units, other sites are points.

    Gal & Ghahramani 2016, "Dropout as a Bayesian Approximation". A mask serves a whole mini-batch in training, and all
    inputs of a posterior draw. The posterior mean, M (1 - p), is the usual rescaled network: `predict(at_mean=True)`.

    log q(w) is the log probability of the masks. Under N(0, s^2) the prior term of the ELBO is -(1 - p) |M|^2 / (2
    s^2), the L2 penalty of dropout training. q puts all its mass on finitely many networks, so this ELBO is no bound on
    the log evidence: compare it only with that of other point masses.

    Masks apply to weights of linear, convolutional (whole channels), recurrent (the same units at every time step) and
    attention layers, and of embeddings (whole words). Other parameters and latents of prior and likelihood are points.

    Attributes:
        rate: p, the probability that a unit is dropped.
        input_rate: the same for the network's inputs, the input units of its first layer.
        learned: learn a rate for each layer, from these starts; a rate that starts at 0 stays there. In training the
            masks are relaxed to lie between 0 and 1 (Gal, Hron & Kendall 2017, "Concrete Dropout").
        temperature: temperature of the relaxation; lower is less biased, with noisier gradients.
        per_example: in training, draw separate masks for the examples of a mini-batch, as dropout layers do, in linear
            and convolutional layers. The ELBO has the same mean and less noisy gradients.

    Examples:
        >>> guide = bnn.guides.Dropout(rate=0.2)
        >>> posterior = bnn.BNN(bnn.MLP(1, [5], 1)).fit(bnn.datasets.sinusoid(), guide=guide, steps=20, progress=False)
        >>> posterior.predict([[0.0], [1.0]]).epistemic_std.shape
        torch.Size([2])
    """

    rate: Rate = 0.1
    input_rate: Rate = 0.0
    learned: bool = False
    temperature: Positive = 0.1
    per_example: bool = False

    def build(self, model: Model, *args: Any) -> PyroModule:
        sites = latent_sites(model, *args)
        real = {site.name for site in sites if site.transform is None}
        weights = [weight for weight in fed_weights(model) if weight.name in real]
        if not any(self._rate(weight) for weight in weights) and (self.learned or self.rate or self.input_rate):
            raise InputError(
                f"{self!r} has nothing to drop: it masks the inputs of linear, convolutional, recurrent, attention and "
                f"embedding layers, here {', '.join(weight.name for weight in weights) or 'none'}, and `input_rate` is "
                "the rate of the first layer. Give a rate above 0, or use Map()."
            )
        if self.learned:
            weights = [weight for weight in weights if self._rate(weight)]
        rates = sites[0].start.new_tensor([self._rate(weight) for weight in weights])
        masks = ConcreteMasks(rates, rates.new_tensor(self.temperature)) if self.learned else BernoulliMasks(rates)
        return DropoutGuide(sites, weights, masks, per_example=self.per_example)

    def _rate(self, weight: FedWeight) -> float:
        return self.input_rate if weight.is_first else self.rate


class DropoutGuide(BuiltGuide, PyroModule):
    """A point for every site; masked weights are multiplied by masks on the input units of their layers."""

    vmappable = True

    def __init__(
        self,
        sites: list[Site],
        weights: list[FedWeight],
        masks: "BernoulliMasks | ConcreteMasks",
        *,
        per_example: bool = False,
    ) -> None:
        super().__init__()
        self._weights = weights
        self.points = MapGuide(sites)
        self.masks = masks
        self.per_example = per_example

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        uniform = self._uniform((sum(weight.num_units for weight in self._weights),))
        by_weight = uniform.split([weight.num_units for weight in self._weights])
        masked = {weight.name: (index, weight) for index, weight in enumerate(self._weights)}
        drawn = {}
        for name, value in self.points.values().items():
            if name in masked:
                index, weight = masked[name]
                drawn[name] = self._draw(value, index, weight, by_weight[index])
            else:
                drawn[name] = pyro.sample(name, dist.Delta(value, event_dim=value.ndim))
        return drawn

    def _draw(self, value: Tensor, index: int, weight: FedWeight, uniform: Tensor) -> Tensor:
        mask = self.masks.draw(index, uniform)
        log_probability = self.masks.log_probability(index, mask)
        point = MaskedPoint(value * weight.spread(mask), log_probability, event_dim=value.ndim)
        drawn = pyro.sample(weight.name, point)
        if self.per_example:
            attach(drawn, InputNoise(value, lambda x: self.masks.draw(index, self._uniform(x.shape))))
        return drawn

    def _uniform(self, shape: tuple[int, ...]) -> Tensor:
        like = self.masks.rates()
        return torch.rand(shape, dtype=like.dtype, device=like.device)

    def fixed_sites(self) -> frozenset[str]:
        return self.points.fixed_sites() - {weight.name for weight in self._weights}

    def mean(self) -> dict[str, Tensor]:
        """Return the mean of each site: masked weights times 1 - p, all others at their points."""
        kept = {name: 1 - rate for name, rate in self.rates().items()}
        return {name: value * kept.get(name, 1.0) for name, value in self.points.mean().items()}

    def rates(self) -> dict[str, Tensor]:
        """Return the dropout rate of each masked weight by name."""
        names = (weight.name for weight in self._weights)
        return dict(zip(names, self.masks.rates().detach(), strict=True))


class BernoulliMasks(PyroModule):
    """Masks of fixed rates."""

    def __init__(self, rates: Tensor) -> None:
        super().__init__()
        self.register_buffer("p", rates, persistent=False)

    def rates(self) -> Tensor:
        return self.p

    def draw(self, index: int, uniform: Tensor) -> Tensor:
        """Return masks for the rate p of that index: 1 where a uniform number is below 1 - p, else 0."""
        return (uniform < 1 - self.p[index]).to(uniform.dtype)

    def log_probability(self, index: int, mask: Tensor) -> Tensor:
        """Return the log probability of a mask (units,), a scalar."""
        p, num_kept = self.p[index], mask.sum()
        return torch.xlogy(num_kept, 1 - p) + torch.xlogy(len(mask) - num_kept, p)


class ConcreteMasks(PyroModule):
    """Masks with learned rates: relaxed while gradients are recorded, of 0 and 1 otherwise.

    A mask is sigmoid((log((1 - p) / p) + log((1 - u) / u)) / temperature) for uniform u (Gal, Hron & Kendall 2017), or
    its limit at temperature 0. The log probability is linear in the mask, and equals the Bernoulli's at 0 and 1.
    """

    def __init__(self, rates: Tensor, temperature: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(rates.logit())
        self.register_buffer("temperature", temperature, persistent=False)

    def rates(self) -> Tensor:
        return self.logits.sigmoid()

    def draw(self, index: int, uniform: Tensor) -> Tensor:
        """Return masks for the rate of that index, near 1 where a uniform number is below 1 - p."""
        log_odds = -self.logits[index] - uniform.logit()
        if torch.is_grad_enabled():
            return torch.sigmoid(log_odds / self.temperature)
        return (log_odds > 0).to(uniform.dtype)

    def log_probability(self, index: int, mask: Tensor) -> Tensor:
        logit, num_kept = self.logits[index], mask.sum()
        return num_kept * logsigmoid(-logit) + (len(mask) - num_kept) * logsigmoid(logit)


class MaskedPoint(DrawnPoint):
    """A point that a mask made, with the log probability of the mask as its density."""
