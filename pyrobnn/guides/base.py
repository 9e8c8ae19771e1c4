"""Guides: settings whose `build` gives a Pyro guide over the latent sites, and the interface of a built guide."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from pyro.nn import PyroModule
from torch import Tensor

from pyrobnn._core.registry import Registry

Model = Callable[..., Any]
"""A Pyro model, such as a `BNN`: it takes inputs and targets, draws its latent sites and observes the targets.

Examples:
    >>> def names_of(model: bnn.guides.Model) -> list[str]:
    ...     return [site.name for site in bnn.guides.latent_sites(model, torch.zeros(3, 1), torch.zeros(3))]
    >>> names_of(bnn.BNN(bnn.MLP(1, [], 1)))
    ['0.weight', '0.bias']
"""
Noise = Literal["auto", "shared", "local", "flipout"]
WIDE, NARROW = -3.0, -10.0
"""Where rho starts in a fit of a given length, and in one that ends by itself."""


@runtime_checkable
class Guide(Protocol):
    """A guide setting. Any object with this method will do.

    See docs/how-to/guides.md for which guide to choose, and docs/how-to/own-part.md for how to write one.

    Examples:
        >>> from pyro.infer.autoguide import AutoDiagonalNormal
        >>> class Diagonal:
        ...     def build(self, model, *args):
        ...         guide = AutoDiagonalNormal(model)
        ...         guide(*args)  # makes its parameters
        ...         return guide
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1))
        >>> model.fit(bnn.datasets.sinusoid(), guide=Diagonal(), steps=20, seed=0, progress=False).predict([[0.0]])
        Prediction(Normal, num_draws=500, num_inputs=1)
    """

    def build(self, model: Model, *args: Any) -> PyroModule:
        """Return a Pyro guide for the model.

        Args:
            model: a Pyro model; `initial_values`, if it has them, are starting values by site name, `net` is its
                network.
            *args: a batch of its inputs and observed targets, to run it once.

        Returns:
            A `PyroModule` that draws every latent site when called, with or without the model's arguments, and whose
            parameters all exist. `BuiltGuide` lists optional features: inherit from it, or have attributes of these
            names.
        """
        ...


class BaseGuide:
    """What is asked of a guide setting beside `build`; one that does not inherit from it has these defaults.

    Attributes:
        seeks_mode: whether a point is trained, the mode of the posterior.
        curvature: the curvature that makes a Gaussian of this point after training, by a guide with the fields of
            `Laplace`; None for guides that training completes.

    Examples:
        >>> bnn.guides.Laplace().seeks_mode, bnn.guides.Laplace().curvature
        (True, 'ggn')
    """

    seeks_mode: ClassVar[bool] = False
    curvature: str | None = None


def as_guide(guide: Any) -> BaseGuide:
    """Return a setting as what is asked of it: itself, or the defaults where it does not inherit from the base."""
    return guide if isinstance(guide, BaseGuide) else BaseGuide()


class StartsNarrow:
    """Base of the settings of guides whose scales start at softplus of their field `init_rho`.

    A fit that ends by itself starts them narrow: its first steps lead to the mode, and the scales widen from there.
    Noise at the width of the posterior, before the means are near a mode, can keep a fit from the better modes.
    """

    init_rho: float | None

    @property
    def start_rho(self) -> float:
        """Where rho starts: -3, softplus of which is 0.049, if nothing else is said."""
        return WIDE if self.init_rho is None else self.init_rho


class NoisePerExample:
    """Base of the settings of guides that can give the examples of a mini-batch noise of their own, by a field `noise`.

    The objective is the same. "shared": all examples see one draw. "flipout": each sees it with random signs (Wen et
    al. 2018). "local": the outputs of linear layers are drawn for each example (Kingma, Salimans & Welling 2015); where
    that would not be exact, in convolutions and along sequences, it is flipout. Linear and convolutional layers have
    both; others, tied weights, and sites with a constrained support see the shared draw. They cost a second product a
    layer. "auto": "shared" where `SVI` is given its length, `steps` or `epochs`, and where the guide is used without
    it; else "local" where a linear layer takes rows, "flipout" where each step sees all data, and "shared".
    """

    noise: Noise


class BuiltGuide:
    """Optional features of a built guide beside its draws; the defaults fit a guide that can only draw.

    Attributes:
        vmappable: whether calls can be vmapped over independent draws.
        linearized: whether predictions take the network linearised around the mean.
        path_derivative: whether the gradient follows log q along the draws, without its score.
        trainable: whether steps of SVI may train it further, which its parameters are for.

    Examples:
        >>> posterior = bnn.BNN(bnn.MLP(1, [5], 1)).fit(bnn.datasets.sinusoid(), steps=20, seed=0, progress=False)
        >>> isinstance(posterior.guide, bnn.guides.BuiltGuide), posterior.guide.vmappable
        (True, True)
        >>> loc, scale = posterior.guide.moments()["0.weight"]
        >>> loc.shape
        torch.Size([5, 1])
    """

    vmappable: bool = False
    linearized: bool = False
    path_derivative: bool = False
    trainable: bool = True

    def mean(self) -> dict[str, Tensor] | None:
        """Return the mean of each site by name; None where it takes draws."""
        return None

    def fixed_sites(self) -> frozenset[str]:
        """Return the names of the sites whose value is the same in every draw."""
        return frozenset()

    def pruned_sites(self) -> frozenset[str]:
        """Return the names of the sites some of whose entries are set to zero in every draw."""
        return frozenset()

    def gaussian_blocks(self) -> list[Any]:
        """Return the blocks of a Gaussian with a known covariance, as `Laplace` makes it; none for other guides."""
        return []

    def moments(self) -> dict[str, tuple[Tensor, Tensor]] | None:
        """Return mean and standard deviation of each site by name, on the unconstrained side for constrained sites.

        None where they take draws.
        """
        return None

    def log_density(self, draws: Mapping[str, Tensor]) -> Tensor | None:
        """Return log q of joint draws (S, *event) by site, wherever they come from, in float64, (S,).

        None where it is known at the guide's own draws alone, or a site is at a point.
        """
        return None

    def rate_factors(self) -> dict[str, float]:
        """Return factors on the learning rate by the name of a parameter, 1 for those that are not named.

        Where many entries of a parameter move a draw together, their noise adds up, and each takes a smaller step.
        """
        return {}

    def chains(self) -> dict[str, Tensor] | None:
        """Return stored draws of Markov chains in their order, (chain, draw, *event) by site; None without any."""
        return None

    def picks(self, num_draws: int) -> Tensor | None:
        """Return the numbers of stored draws that make up so many, each as often as any other up to one, (S,).

        A guide that returns them takes one as `pick` when it is called. None where each draw is made anew.
        """
        return None

    def sample_stats(self) -> dict[str, Tensor]:
        """Return the numbers kept with stored draws, (chain, draw) by name."""
        return {}


registry = Registry("guide", accepts=lambda value: isinstance(value, Guide), page="how-to/guides")
"""Guides by name; `register` adds one.

Examples:
    >>> "mean_field" in bnn.guides.registry.names
    True
    >>> bnn.guides.registry.get("mean_field") is bnn.guides.MeanField
    True
"""
