"""The posterior: a trained model and its guide, which draw weights and predict."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from pyro import poutine
from pyro.nn import PyroModule
from torch import Tensor

from pyrobnn._core.checks import check_count, check_range, wrong_shape
from pyrobnn._core.errors import REFUSALS, InputError, listed
from pyrobnn._core.lock import ONE_THREAD
from pyrobnn._core.random import seeded
from pyrobnn._torch.inputs import Inputs, X, as_inputs, shape_of, single, tensors_of
from pyrobnn._torch.private import tree_map
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn._torch.transforms import first_sentence
from pyrobnn._torch.vectorize import DrawMap, draws_at_once, is_alike, run_stacked, stack_linear
from pyrobnn.bnn import BNN
from pyrobnn.data.loader import columns_by_name
from pyrobnn.distributions.latents import stack_likelihood
from pyrobnn.distributions.units import Scaler
from pyrobnn.guides.base import built
from pyrobnn.guides.empirical import require_density
from pyrobnn.likelihoods.base import as_likelihood
from pyrobnn.posterior.base import AbstractPosterior, Draws
from pyrobnn.posterior.output_draws import Tangent, output_draws
from pyrobnn.posterior.prediction import Prediction
from pyrobnn.posterior.predictor import FixedDraws
from pyrobnn.posterior.record import FitRecord, History

_DRAWS_FOR_MEAN = 1000


class Posterior(AbstractPosterior):
    """An approximate posterior q(w) over the weights of a `BNN`, as `fit` returns it.

    Args:
        bnn: the model with its trained parameters.
        guide: the trained guide.
        example: a few rows of inputs and targets, in the units of the model, for running model and guide.
        x_scaler: the map from inputs in original units to the units of the model.
        y_scaler: the same for targets.
        seed: default seed for draws.
        history: the ELBO along the fit.
        record: how it was fitted: method, device, seconds, number of examples.
        outputs: stand-in for the outputs of the network at the example, which is zeros after loading; None to run it.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [10], 1))
        >>> posterior = model.fit(bnn.datasets.sinusoid(), steps=20, seed=0, progress=False)
        >>> posterior.predict([[0.0], [0.3]])
        Prediction(Normal, num_draws=500, num_inputs=2)
        >>> posterior.record.num_steps, posterior.record.num_data
        (20, 32)
    """

    def __init__(
        self,
        bnn: BNN,
        guide: PyroModule,
        *,
        example: tuple[X, Tensor],
        x_scaler: Scaler,
        y_scaler: Scaler,
        seed: int,
        history: History | None = None,
        record: FitRecord | None = None,
        outputs: Tensor | None = None,
    ) -> None:
        self.bnn = bnn.eval()
        self.guide = guide
        self.example = example
        self.x_scaler = x_scaler
        self.y_scaler = y_scaler
        self.seed = seed
        self.history = history
        self.record = record or FitRecord()
        if outputs is None:
            with seeded(0, "outputs"), torch.no_grad():
                outputs = self.bnn.outputs(self.bnn.initial_values, example[0])
        self.outputs = outputs

    @classmethod
    def from_draws(
        cls, bnn: BNN, data: Any, draws: Mapping[str, Any], *, statistics: Mapping[str, Any] = {}, seed: int = 0
    ) -> "Posterior":
        """Return the posterior of draws that another sampler made, such as NumPyro's, BlackJAX's or Stan's.

        Args:
            bnn: the model, whose parameters all have a prior.
            data: the training data, as for `fit`, which also give the units of predictions.
            draws: arrays (chain, draw, *event) by site, or (draw, *event), or the posterior of an ArviZ DataTree, as a
                Dataset: constrained values, in the units that the model sees, which are those of standardised data.
            statistics: numbers (chain, draw) or (draw,) by ArviZ's name, such as "diverging".
            seed: default seed of `draw` and `predict`.

        Raises:
            InputError: names or shapes that are not those of the sites, or values outside the support of a prior.

        Examples:
            >>> model = bnn.BNN(bnn.MLP(1, [], 1), prior="normal", likelihood=bnn.likelihoods.Gaussian(1.0))
            >>> draws = {"0.weight": torch.randn(4, 50, 1, 1), "0.bias": torch.randn(4, 50, 1)}
            >>> bnn.Posterior.from_draws(model, bnn.datasets.sinusoid(), draws).predict([[0.0], [0.3]])
            Prediction(Normal, num_draws=200, num_inputs=2)
        """
        from pyrobnn.inference.around import from_draws

        return from_draws(bnn, data, draws, statistics, seed)

    @classmethod
    def from_guide(cls, bnn: BNN, data: Any, guide: PyroModule, *, seed: int = 0) -> "Posterior":
        """Return the posterior of a guide that Pyro's `SVI` trained on the model, which keeps its learned parameters.

        Args:
            bnn: the model.
            data: the training data, as for `fit`; the guide is in the units that the model sees.
            guide: a `PyroModule` that draws the sites, called as the model is. It is copied.
            seed: default seed of `draw` and `predict`.

        Raises:
            InputError: names or shapes that are not those of the sites, or parameters outside the module.

        Examples:
            >>> import pyro
            >>> model = bnn.BNN(bnn.MLP(1, [5], 1), prior="normal", likelihood=bnn.likelihoods.Gaussian(1.0))
            >>> data, guide = bnn.datasets.sinusoid(), pyro.infer.autoguide.AutoNormal(model)
            >>> svi = pyro.infer.SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), pyro.infer.Trace_ELBO())
            >>> loss = svi.step(data.x, data.y)  # take many steps
            >>> bnn.Posterior.from_guide(model, data, guide).save("file").name  # load("file", guide=AutoNormal)
            'file'
        """
        from pyrobnn.inference.around import from_guide

        return from_guide(bnn, data, guide, seed)

    @property
    def members(self) -> tuple["Posterior", ...]:
        """The posterior itself: it is its only member, where a mixture has several."""
        return (self,)

    def shares(self, num_draws: int, *, seed: int | None = None) -> list[tuple["Posterior", int, int]]:
        """Return itself with the number of draws and their seed, as a mixture does for each member."""
        return [(self, num_draws, self.seed if seed is None else seed)]

    def with_fields(self, **fields: Any) -> "Posterior":
        """Return a posterior with other values of some attributes, which shares the rest with this one."""
        other = copy.copy(self)
        vars(other).update(fields)
        return other

    def draw(self, num_draws: int = 500, *, seed: int | None = None) -> dict[str, Tensor]:
        """Draw all latent sites jointly, as values (S, *event) by site name.

        Args:
            num_draws: number of draws S, at least 1. Of T stored draws of chains each comes S / T times, rounded.
            seed: seed of the draws; the fit's if not given, so that the same call gives the same draws.

        Examples:
            >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(bnn.datasets.sinusoid(), steps=20, seed=0, progress=False)
            >>> {name: tuple(values.shape) for name, values in posterior.draw(100).items()}
            {'0.weight': (100, 10, 1), '0.bias': (100, 10), '2.weight': (100, 1, 10), '2.bias': (100, 1)}
        """
        parts = self.map_traces(latent_values, lambda draws: draws, num_draws, seed=seed)
        return {name: _joined([part[name] for part in parts]) for name in parts[0]}

    def map_draws[T](
        self, function: Callable[[dict[str, Tensor], Tensor], T], num_draws: int, *, seed: int | None = None
    ) -> list[T]:
        """Apply a function to consecutive blocks of the draws of `draw`, and return its results.

        Args:
            function: takes values (B, *event) by site name and log q (B,), the log density of each joint draw.
            num_draws: number of draws S in all blocks together.
            seed: seed of the draws; the fit's if not given.

        Raises:
            InputError: stored draws, which have no density.

        Examples:
            >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(bnn.datasets.sinusoid(), steps=20, seed=0, progress=False)
            >>> blocks = posterior.map_draws(lambda draws, log_q: draws["0.weight"].square().sum((1, 2)), 1000)
            >>> torch.cat(blocks).shape  # the squared norm of the first weight in each draw
            torch.Size([1000])
        """
        require_density(self.guide)

        def read(trace: Any) -> tuple[dict[str, Tensor], Tensor]:
            return latent_values(trace), trace.log_prob_sum()

        return self.map_traces(read, lambda block: function(*block), num_draws, seed=seed)

    def map_traces[R, T](
        self, read: Callable[[Any], R], function: Callable[[R], T], num_draws: int, *, seed: int | None = None
    ) -> list[T]:
        """Read nested tensors from a trace of the guide per draw, and apply a function to blocks of them stacked."""
        sizes = self._block_sizes(check_count(num_draws, "num_draws"))
        with seeded(self.seed if seed is None else seed, "draws"), fast_pyro(), torch.no_grad():
            picks = built(self.guide).picks(num_draws)
            blocks: Sequence[int | Tensor] = sizes if picks is None else picks.split(sizes)
            return [function(self._read_block(read, block)) for block in blocks]

    def _block_sizes(self, num_draws: int) -> list[int]:
        """Return how many draws are made at a time."""
        fixed = built(self.guide).fixed_sites()
        num_moving = sum(size for name, size in self.bnn.sizes.items() if name not in fixed)
        size = draws_at_once(num_moving, self.bnn.like.device)
        return [min(size, num_draws - start) for start in range(0, num_draws, size)]

    def num_distinct(self, num_draws: int) -> int:
        """Return how many of so many draws differ: of stored draws, no more than there are."""
        stored = next(iter((built(self.guide).chains() or {}).values()), None)
        return num_draws if stored is None else min(num_draws, stored.shape[0] * stored.shape[1])

    def _read_block(self, read: Callable[[Any], Any], block: int | Tensor) -> Any:
        """Return the values read from this many new draws, or from the stored draws of these numbers."""
        if isinstance(block, Tensor):
            return torch.func.vmap(lambda pick: read(self.trace(self.guide, pick=pick)))(block)
        if built(self.guide).vmappable:
            each = torch.func.vmap(lambda _: read(self.trace(self.guide)), randomness="different")
            return each(torch.empty(block, 0))
        return tree_map(lambda *values: torch.stack(values), *[read(self.trace(self.guide)) for _ in range(block)])

    def trace(self, function: Callable[..., Any], **picked: Tensor) -> Any:
        """Return the trace of the model under a handler, or of a guide, for latent sites; the network does not run."""
        with self.bnn.without_network(self.outputs), poutine.block():
            return poutine.trace(function).get_trace(*self.example, **picked)

    def mean(self) -> dict[str, Tensor]:
        """Return the posterior mean of each site by name: exact where the guide knows it, else over 1000 draws.

        Examples:
            >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(bnn.datasets.sinusoid(), steps=20, seed=0, progress=False)
            >>> posterior.mean()["2.weight"].shape
            torch.Size([1, 10])
        """
        with torch.no_grad():
            known = built(self.guide).mean()
        if known is not None:
            return known
        sums = self.map_traces(latent_values, lambda draws: {n: v.sum(0) for n, v in draws.items()}, _DRAWS_FOR_MEAN)
        return {name: torch.stack([part[name] for part in sums]).sum(0) / _DRAWS_FOR_MEAN for name in sums[0]}

    def _predict(
        self, x: Any, *, num_draws: int, seed: int | None, draws: Draws | None, at_mean: bool, linearized: bool | None
    ) -> Prediction:
        with ONE_THREAD, seeded(self.seed if seed is None else seed, "network"):  # of random numbers in the network
            inputs = self.inputs(x)
            if at_mean:
                draws = {name: value[None] for name, value in self.mean().items()}
            linear = not at_mean and (built(self.guide).linearized if linearized is None else linearized)
            if linear and draws is None:
                drawn = self._output_draws(inputs, num_draws, seed)
                if drawn is not None:
                    return drawn
            outputs_of = self._outputs_at(inputs, linear=linear)

            def apply(draws: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
                weights, others = self._split(draws)
                return outputs_of(weights), others

            count = self.num_distinct(num_draws)
            with torch.set_grad_enabled(any(part.requires_grad for part in tensors_of(inputs))):
                parts = [apply(draws)] if draws is not None else self.map_traces(latent_values, apply, count, seed=seed)
                outputs = _joined([f for f, _ in parts])
                others = {name: _joined([sites[name] for _, sites in parts]) for name in parts[0][1]}
                return Prediction(self._likelihood(outputs, others), self.y_scaler)

    def _outputs_at(self, inputs: X, *, linear: bool) -> Callable[[Mapping[str, Tensor]], Tensor]:
        """Return the outputs at inputs, (S, N, outputs), as a function of draws of the weights."""
        if linear:
            return Tangent(self.bnn, self._split(self.mean())[0], inputs).outputs
        network = DrawMap(self.bnn.outputs, inputs, self.bnn.net)
        is_table = isinstance(inputs, Tensor) and inputs.ndim == 2 and not (inputs.requires_grad or self.bnn.has_offset)

        def outputs(weights: Mapping[str, Tensor]) -> Tensor:
            layers = stack_linear(self.bnn.net, weights) if weights and is_table else None
            return network(weights) if layers is None else run_stacked(layers, single(inputs, "A stack of layers"))

        return outputs

    def _output_draws(self, inputs: X, num_draws: int, seed: int | None) -> Prediction | None:
        """Return the prediction of a Gaussian of curvature by draws of the outputs; None where draws of weights do."""
        blocks = built(self.guide).gaussian_blocks()
        if not blocks:
            return None
        sizes = self._block_sizes(check_count(num_draws, "num_draws"))
        seed = self.seed if seed is None else seed
        with seeded(seed, "draws"), torch.no_grad():
            point, others = self._split(built(self.guide).gaussian_points())
            outputs = output_draws(self.bnn, blocks, point, inputs, sizes, seed=seed)
            if outputs is None:
                return None
            latents = {name: value.expand(num_draws, *value.shape) for name, value in others.items()}
            return Prediction(self._likelihood(outputs, latents), self.y_scaler)

    def fixed_draws(self, num_draws: int, *, seed: int | None = None) -> FixedDraws:
        """Return what a predictor needs: draws as in `predict`, with the model and its units."""
        draws = self.draw(self.num_distinct(num_draws), seed=seed)
        mean = self.mean() if built(self.guide).linearized else None
        return FixedDraws(self.bnn, draws, mean, self.example[0], self.outputs, (self.x_scaler, self.y_scaler))

    def _split(self, draws: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the weights among draws of all sites, and the sites of the likelihood."""
        missing = [name for name in self.bnn.site_names if name not in draws]
        if missing:
            raise InputError(f"`draws` must hold every site, as `draw` returns them; {missing[0]!r} is not among them.")
        weights = {name: draws[name] for name in self.bnn.site_names}
        others = {name: value for name, value in draws.items() if name not in weights}
        return weights, {name: value for name, value in others.items() if not name.startswith("prior.")}

    def _likelihood(self, outputs: Tensor, others: dict[str, Tensor]) -> Any:
        """Return the distribution of targets in the model's units, (S, N)."""
        with fast_pyro(), poutine.block():
            return stack_likelihood(self.bnn.likelihood, outputs, others) if others else self.bnn.likelihood(outputs)

    def inputs(self, x: Any) -> X:
        """Return checked inputs in the units, precision and place of the model; columns of a frame go by name.

        Of several tensors, and where targets are labels (N, T), lengths may differ from those of training.
        """
        example = self.example[0]
        row = None if isinstance(example, Inputs) else self.x_scaler.row(example)
        given = as_inputs(columns_by_name(x, self.record.feature_names or []), row=row)
        if isinstance(x, Tensor) and x.requires_grad:
            given = x  # checked, and with its graph
        is_sequence = as_likelihood(self.bnn.settings["likelihood"]).has_positions and self.example[1].ndim == 2
        if isinstance(example, Inputs):
            if not isinstance(given, Inputs) or given.parts.keys() != example.parts.keys():
                raise InputError(f"`x` must hold {listed(example.parts)}, as in training, got {shape_of(given)}.")
            given = Inputs({name: given.parts[name] for name in example.parts})
        elif (isinstance(given, Inputs) or tuple(given.shape[1:]) != row) and not (
            is_sequence and given.ndim == example.ndim
        ):
            fault = wrong_shape(shape_of(given) if isinstance(given, Inputs) else tuple(given.shape), row)
            columns = f" New rows need their offset, one of the columns {listed(self.record.feature_names or [])}."
            raise InputError(fault + columns * self.bnn.has_offset)
        inputs = self.bnn.cast_inputs(self.x_scaler.transform(given))
        for part in tensors_of(inputs):
            check_range(part, "x")
        if shape_of(inputs[0]) != shape_of(example[0]):
            try:
                self.bnn.outputs(self.bnn.initial_values, inputs[:1])
            except REFUSALS as error:
                reason = first_sentence(error)
                raise InputError(f"The network does not take inputs of shape {shape_of(given)}: {reason}.") from None
        return inputs


def _joined(parts: list[Tensor]) -> Tensor:
    """Return blocks of draws as one tensor; equal draws share their memory, as in the blocks."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if is_alike(first) and all((is_alike(part) or len(part) == 1) and part[0].equal(first[0]) for part in parts[1:]):
        return first[:1].expand(sum(len(part) for part in parts), *first.shape[1:])
    return torch.cat(parts)


def latent_names(trace: Any) -> list[str]:
    """Return the names of the latent sites that a guide drew, without auxiliary sites."""
    drawn = {name: node["infer"] for name, node in trace.nodes.items() if node["type"] == "sample"}
    return [name for name, infer in drawn.items() if not infer.get("is_auxiliary")]


def latent_values(trace: Any) -> dict[str, Tensor]:
    """Return the values of the latent sites that a guide drew, by name."""
    return {name: trace.nodes[name]["value"].detach() for name in latent_names(trace)}
