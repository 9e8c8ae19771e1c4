"""The Bayesian neural network: a PyroModule that is itself the Pyro model."""

import copy
import dataclasses
import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import chain
from typing import TYPE_CHECKING, Any, overload

import pyro
import torch
from pyro import poutine
from pyro.nn import PyroModule, PyroSample
from torch import Tensor, nn
from torch.func import functional_call

from pyrobnn import likelihoods, nets, priors
from pyrobnn._core.errors import InputError
from pyrobnn._core.lock import ONE_THREAD
from pyrobnn._core.modes import callers_modes
from pyrobnn._core.random import seeded
from pyrobnn._torch import parameters
from pyrobnn._torch.inputs import Inputs, X, shape_of, single, tensors_of
from pyrobnn._torch.kernels import plain_kernels
from pyrobnn._torch.layers import LAYERS
from pyrobnn._torch.per_example import PerExample, carries_noise, without_noise
from pyrobnn._torch.pyro import allow_new_home, local_parameters
from pyrobnn.distributions.units import Scaler
from pyrobnn.likelihoods.base import as_likelihood, open_numbers
from pyrobnn.priors.base import as_prior, covered, starts_of
from pyrobnn.priors.given import by_site

if TYPE_CHECKING:
    from pyrobnn.posterior.posterior import Posterior
    from pyrobnn.posterior.prediction import Prediction

_LOOKS_UP = LAYERS["embedding"].modules
_PAGE = "how-to/own-network"
_AFTER_A_FIT = {"predict": "x", "save": '"folder"'}


@dataclasses.dataclass(frozen=True)
class StartState:
    """Tensors by name: states that network and likelihood start at, deviations of the weights, and kept latents.

    Guides start with the deviations, and keep the latents. None leaves them as they are built.
    """

    net: Mapping[str, Tensor] | None = None
    likelihood: Mapping[str, Tensor] | None = None
    scales: Mapping[str, Tensor] | None = None
    kept: Mapping[str, Tensor] | None = None


class BNN(PyroModule):
    """A network whose weights have a prior and whose outputs have a likelihood.

    The trainable parameters that the prior covers are `PyroSample` sites named as in the network ("0.weight"); frozen
    parameters (requires_grad=False) and the padding row of an embedding keep their values. The targets are the
    observed site "y" in a plate "data" over the examples. It works with `pyro.infer.SVI`, `Predictive`, `NUTS` and
    every autoguide. Called with a part of N examples and `num_data=N`, it scales the log-likelihood by N / B.

    Weights in half precision are inferred in float32. A module of frozen parameters alone stays in its precision and in
    evaluation mode. See docs/how-to/own-network.md for custom networks, whose outputs may be `logits` of an object.

    Args:
        net: a declared network such as `MLP`, its name, or any `torch.nn.Module`, which is copied; a fit starts from
            its weights. A function that returns a module, such as `lambda: Net(10)`, is called for each fit, so that
            members of an ensemble have new starting weights.
        prior: a prior, its name, a distribution of Pyro, or a mapping from patterns of parameter names to priors (None:
            not Bayesian).
        likelihood: a likelihood or its name.

    Attributes:
        net: the network, its Bayesian parameters held as buffers with their starting values.
        prior, likelihood: the modules of these parts.
        settings: the three parts as given, by name.
        site_names: names of the Bayesian parameters.
        frozen_names: names of frozen parameters, and of the buffers of frozen modules, in the state of `net`.
        units: maps of inputs and targets to the units of the prior, for every fit; None for the units of the data.
        start: where its copies, such as the model of a fit, start.
        moving: in the model of a fit, what each call of the network changes in Python, in words.

    Raises:
        InputError: an unknown name, a pattern that matches nothing, or a network without parameters, or whose weights
            cannot be replaced.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [20], 1), prior="normal", likelihood=bnn.likelihoods.Gaussian(scale=0.1))
        >>> model(torch.zeros(3, 1)).shape
        torch.Size([3, 1])
    """

    def __init__(self, net: Any, *, prior: Any = "normal", likelihood: Any = "gaussian") -> None:
        with local_parameters():
            super().__init__()
            net, prior, likelihood = nets.owned(net), priors.resolve(prior), likelihoods.resolve(likelihood)
        self.settings: dict[str, Any] = {"net": net, "prior": prior, "likelihood": likelihood}
        self.units: tuple[Scaler, Scaler] | None = None
        self.start = StartState()
        self.moving: str | None = None
        self._known_outputs: Tensor | None = None
        with local_parameters():
            self._build()

    def _build(self) -> None:
        given = self.settings["net"]
        net = copy.deepcopy(given) if isinstance(given, nn.Module) else given.build()
        allow_new_home(net)
        self.net = net
        self._frozen = parameters.frozen_modules(self.net)
        parameters.train_in_full_precision(self.net, self._frozen)
        prior = self.settings["prior"]
        self.site_names: tuple[str, ...] = tuple(covered(prior, parameters.trained_names(self.net)))
        if taken := set(self.site_names) & ({"prior", "likelihood", "y", "data"} | set(dir(self))):
            text = f"The network's parameter {min(taken)!r} has a name that BNN needs itself"
            raise InputError(f"{text}: put the network inside another module, torch.nn.Sequential(net).")
        self.frozen_names: tuple[str, ...] = tuple(parameters.frozen_values(self.net, self._frozen))
        parameters.refuse_max_norm(self.net, self.site_names)
        self._aliases = parameters.make_buffers(self.net, self.site_names)
        self._padding = parameters.padding_rows(self.net)
        self._time_first = any(not getattr(module, "batch_first", True) for module in self.net.modules())
        if self.site_names:
            self.prior = prior.build(self._weights)
        for name in self.site_names:
            setattr(self, name, PyroSample(functools.partial(_site_prior, name)))
        self.scale_targets(torch.tensor(1.0))

    def scale_targets(self, target_scale: Tensor) -> None:
        """Rebuild the likelihood for targets of so many original units per unit of the model, () or (K,)."""
        with local_parameters():
            self.likelihood = self.settings["likelihood"].build(self.like, target_scale)
        if self.start.likelihood:
            self.likelihood.load_state_dict(self.start.likelihood)

    def train(self, mode: bool = True) -> "BNN":  # noqa: FBT001, FBT002
        """Set the mode of all parts but modules of frozen parameters alone, which stay in evaluation."""
        super().train(mode)
        for name in self._frozen:
            self.net.get_submodule(name).eval()
        return self

    @property
    def like(self) -> Tensor:
        """A tensor with the precision and device of the weights that are trained."""
        with ONE_THREAD:
            trained = (value for value in self.net.parameters() if value.requires_grad)
            return next(chain(self._weights.values(), trained))

    @property
    def initial_values(self) -> dict[str, Tensor]:
        """Starting values by site name: the network's weights, and the prior's values for the sites it adds."""
        added = starts_of(self.prior, self._weights) if self.site_names else {}
        return self._weights | added | {name: value.to(self.like) for name, value in self.kept_sites.items()}

    @property
    def kept_sites(self) -> dict[str, Tensor]:
        """Values of latents, by site name, that a fit has measured and guides keep."""
        return dict(self.start.kept or {})

    def has_open_numbers(self, *, inferred: bool) -> bool:
        """Whether a number is "tuned", or with `inferred` a prior infers its scale, for a fit to measure."""
        given = [as_prior(prior) for prior in by_site(self.settings["prior"], self.site_names).values()]
        has_scales = any(prior.has_open_scale or (inferred and prior.infers_scale) for prior in given)
        return has_scales or bool(open_numbers(self.settings["likelihood"], ("tuned",)))

    @property
    def initial_scales(self) -> dict[str, Tensor]:
        """Standard deviations to start from by site name, where a fit has measured them."""
        return dict(self.start.scales or {})

    @property
    def _weights(self) -> dict[str, Tensor]:
        with ONE_THREAD:
            return {name: self.net.get_buffer(name) for name in self.site_names}

    @property
    def sizes(self) -> dict[str, int]:
        """The number of weights of each site by name."""
        return {name: value.numel() for name, value in self._weights.items()}

    @property
    def num_weights(self) -> int:
        """The number of Bayesian weights."""
        return sum(self.sizes.values())

    def forward(
        self, x: X, y: Tensor | None = None, weights: Tensor | None = None, *, num_data: int | None = None
    ) -> Tensor:
        """Draw the weights and the targets of a batch, and return the outputs (B, outputs); this is the Pyro model.

        Args:
            x: inputs (B, *in), or several tensors; with an offset of the likelihood as the last column.
            y: targets (B,) or (B, K) to condition on, or None to draw them.
            weights: factors (B,) on the log-likelihoods of the examples; 1 if not given.
            num_data: N, the size of the whole data set; B if not given.
        """
        drawn = {name: getattr(self, name) for name in self.site_names}
        for name, value in drawn.items():
            if value.ndim != self.net.get_buffer(name).ndim:
                text = f"The model takes one draw at a time, got {tuple(value.shape)} at {name!r}"
                raise InputError(f"{text}: leave out `vectorize_particles=True` and `parallel=True`.")
        if any(part.dtype != next(iter(drawn.values()), part).dtype for part in tensors_of(x)):
            x = self.cast_inputs(x)
        f = self.outputs(drawn, x)
        distribution = self.likelihood(f)
        observed = None if y is None else self.cast_targets(y, f)
        expected = distribution.batch_shape + distribution.event_shape
        if observed is not None and observed.shape != expected:
            raise InputError(f"`y` must have shape {tuple(expected)} for these inputs, got {tuple(observed.shape)}.")
        counted = nullcontext() if weights is None else poutine.scale(scale=weights)
        with pyro.plate("data", size=num_data or len(x), subsample=range(len(x))), counted:
            pyro.sample("y", distribution, obs=observed)
        return f

    def outputs(self, weights: Mapping[str, Tensor], x: X) -> Tensor:
        """Return the outputs (B, outputs) for values of the Bayesian parameters; in training, with attached noise."""
        if (known := self._known_outputs) is not None:
            return known if len(known) == len(x) else known[torch.arange(len(x), device=known.device) % len(known)]
        with ONE_THREAD, plain_kernels():
            is_perturbed = self.training and carries_noise(weights.values())
            return self.perturbed_outputs(weights, x) if is_perturbed else self._call(weights, x)

    @contextmanager
    def without_network(self, outputs: Tensor) -> Iterator[None]:
        """Have these outputs stand for the network's in the block, which finds or scores latent sites alone."""
        self._known_outputs = outputs
        try:
            yield
        finally:
            self._known_outputs = None

    def perturbed_outputs(self, weights: Mapping[str, Tensor], x: X) -> Tensor:
        """Return the outputs (B, outputs), each example with the noise attached to the values, in any mode."""
        tied = [name for name, aliases in self._aliases.items() if len(aliases) > 1]
        weights = {name: without_noise(value) if name in tied else value for name, value in weights.items()}
        with PerExample(weights, len(x), time_first=self._time_first):
            return self._call(weights, x)

    @property
    def has_offset(self) -> bool:
        """Whether the last column of inputs is the offset of the likelihood, which the network does not see."""
        return as_likelihood(self.settings["likelihood"]).offset is not None

    def _call(self, weights: Mapping[str, Tensor], x: X) -> Tensor:
        offset = single(x, "An offset")[:, -1:] if self.has_offset else None
        x = x if offset is None else single(x, "An offset")[:, :-1]
        every_name = {alias: weights[name] for name, aliases in self._aliases.items() for alias in aliases}
        for name, row in self._padding.items():
            if (value := every_name.get(name)) is not None:
                every_name[name] = torch.cat([value[:row], self.net.get_buffer(name)[row, None], value[row + 1 :]])
        try:
            args, kwargs = x.arguments if isinstance(x, Inputs) else ((x,), {})
            with callers_modes():
                f = functional_call(self.net, every_name, args, kwargs, tie_weights=False)
        except (IndexError, ValueError) as error:
            tables: Any = [(name, part) for name, part in self.net.named_modules() if isinstance(part, _LOOKS_UP)]
            if tables and "out of range in self" in str(error):
                rows = ", ".join(f"{name!r} has rows 0 to {table.num_embeddings - 1}" for name, table in tables)
                text = f"The inputs hold a number that is no row of an embedding: {rows}."
            elif "Expected more than 1 value per channel" in str(error):
                text = "The network normalises by statistics of a batch, which one row has not: pass two rows or more."
            else:
                raise
            raise InputError(text, page=_PAGE) from error
        f = f.get("logits", f) if isinstance(f, Mapping) else getattr(f, "logits", f)
        is_real = isinstance(f, Tensor) and not f.is_complex()
        given = tuple(f.shape) if is_real else f"a complex tensor, or no tensor ({type(f).__name__})"
        if is_real:
            f = as_likelihood(self.settings["likelihood"]).flat_outputs(f[:, None] if f.ndim == 1 else f)
        if not (is_real and f.ndim == 2 and (torch.compiler.is_compiling() or len(f) == len(x))):
            text = "The network must map inputs (N, ...) to one tensor (N, outputs), or an object with one as `logits`,"
            remedy = (
                "Return the outputs alone, by .squeeze(-1) or .flatten(1); for pixels or tokens take DenseCategorical"
            )
            raise InputError(f"{text} for a single row too; {shape_of(x)} became {given}. {remedy}.", page=_PAGE)
        dtype = next((value.dtype for value in weights.values()), None) or self.like.dtype
        f = f.to(dtype) if f.is_floating_point() else f
        return f if offset is None else as_likelihood(self.settings["likelihood"]).shifted(f, offset)

    def cast_targets(self, y: Tensor, like: Tensor) -> Tensor:
        """Return targets in the type that the likelihood asks for, on the device of the outputs, (B,) or (B, K)."""
        y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
        return y.to(like.device, torch.int64 if self.settings["likelihood"].integer_targets else like.dtype)

    def cast_inputs(self, x: X) -> X:
        """Return inputs on the network's device, in its precision, and whole numbers so if it may look them up."""
        with ONE_THREAD:
            first = next(value for value in self.net.state_dict().values() if value.is_floating_point())
        keeps = isinstance(x, Inputs) or any(isinstance(module, _LOOKS_UP) for module in self.net.modules())

        def cast(values: Tensor) -> Tensor:
            return values.to(first.device, first.dtype if values.is_floating_point() or not keeps else values.dtype)

        return x.map(cast) if isinstance(x, Inputs) else cast(x)

    @overload
    def fit(self, x: Any, y: Any = None, *, replicates: None = None, **arguments: Any) -> "Posterior": ...
    @overload
    def fit(self, x: Any, y: Any = None, *, replicates: int, **arguments: Any) -> "list[Posterior]": ...
    def fit(
        self, x: Any, y: Any = None, *, seed: int = 0, replicates: int | None = None, **arguments: Any
    ) -> "Posterior | list[Posterior]":
        """Infer the posterior by SVI: shorthand for `pyrobnn.fit(model, Data(x, y), SVI(...), seed=seed)`.

        Args:
            x: inputs, or `Data`, or a DataLoader.
            y: targets, if x is inputs.
            seed: seed of the fit.
            replicates: number of independent fits to run side by side, for a list of posteriors (`fit_replicates`).
            **arguments: settings of `SVI` (guide, steps, lr, ...), `standardize` of `Data`, and arguments of
                `pyrobnn.fit` (device, engine, progress, validation, callbacks).

        Examples:
            >>> model, x, y = bnn.BNN(bnn.MLP(1, [20], 1)), [[0.0], [1.0], [2.0]], [0.1, 0.9, 2.2]
            >>> posterior = model.fit(x, y, guide="full_rank", steps=20, seed=0, progress=False)
            >>> posterior.predict([[0.5]]).mean.shape
            torch.Size([1])
        """
        from pyrobnn.inference.fit import fit_svi

        return fit_svi(self, x, y, seed=seed, replicates=replicates, **arguments)

    def sample_prior_predictive(self, x: Any, *, num_draws: int = 500, seed: int = 0) -> "Prediction":
        """Predict targets with draws from the prior; parameters that are optimised keep their starting values.

        Args:
            x: inputs (N, *in) in the units that the model sees, or a loader of them; or `Data`, which is scaled as in
                `fit`, with predictions in original units.
            num_draws: number of draws S.
            seed: seed of the draws.

        Examples:
            >>> prediction = bnn.BNN(bnn.MLP(1, [20], 1)).sample_prior_predictive([[0.0], [3.0]], seed=0)
            >>> bool(prediction.std[1] > prediction.std[0])  # functions fan out away from 0
            True
        """
        from pyrobnn.inference.around import predict_from_prior

        return predict_from_prior(self, x, num_draws=num_draws, seed=seed)

    def with_parts(self, **parts: Any) -> "BNN":
        """Return an independent copy with some parts replaced, of the same units and the same start.

        Examples:
            >>> bnn.BNN(bnn.MLP(1, [20], 1)).with_parts(prior=bnn.priors.Normal(0.5)).settings["prior"]
            Normal(scale=0.5, loc=0.0)
        """
        return self.fresh(parts)

    def fresh(
        self,
        parts: dict[str, Any] | None = None,
        *,
        start: StartState = StartState(),
        device: torch.device | str | None = None,
        target_scale: Tensor | None = None,
        state: Mapping[str, Tensor] | None = None,
    ) -> "BNN":
        """Return an independent copy with other parts, start, device, or units of targets (see `scale_targets`).

        A declared network gets new starting weights from the current random state if no parts are given. This copy
        alone, not copies of it, holds the tensors of `state`, by their names in `state_dict`.
        """
        parts = parts or {}
        with seeded(0, "parts") if parts else nullcontext():  # a fit draws first weights, and anchors, anew
            copied = BNN(**(self.settings | parts))
        first = self.start if "likelihood" not in parts else dataclasses.replace(self.start, likelihood=None)
        known = {name: value for name, value in vars(start).items() if value is not None}
        copied.units, copied.start = self.units, dataclasses.replace(first, **known)
        if copied.start.net:
            copied.net.load_state_dict(copied.start.net)
        copied.to(device)
        if target_scale is not None:
            copied.scale_targets(target_scale)
        copied.load_state_dict(state or {}, strict=False)
        return copied

    def state_at(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return a copy of the network's state with given values of the Bayesian and tied parameters."""
        state = {name: value.detach().clone() for name, value in self.net.state_dict().items()}
        return state | {alias: weights[name] for name, aliases in self._aliases.items() for alias in aliases}

    def __getattr__(self, name: str) -> Any:
        if (given := _AFTER_A_FIT.get(name)) is not None:
            raise AttributeError(f"Fit the model first: posterior = bnn.fit(model, (x, y)), posterior.{name}({given}).")
        return super().__getattr__(name)

    def __repr__(self) -> str:
        parts = ", ".join(f"{kind}={setting!r}" for kind, setting in self.settings.items())
        return f"BNN({parts})"


def _site_prior(name: str, bnn: BNN) -> Any:
    """Return the prior of one site, asked of the model's prior module when the site is drawn."""
    return bnn.prior(name, bnn.net.get_buffer(name))
