"""The derivatives of a network's outputs in its weights, for a part of the data, as products of small tensors."""

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vmap

from pyrobnn._core.errors import InputError
from pyrobnn._torch.inputs import X, shape_of
from pyrobnn._torch.matrices import from_matrix
from pyrobnn._torch.transforms import once, vmap_or_loop
from pyrobnn._torch.vectorize import pairs_at_once, widest_activation
from pyrobnn.bnn import BNN
from pyrobnn.curvature.metric import Columns, DiagonalLess, Outer
from pyrobnn.curvature.uses import Recorder, Use

_DERIVATIVE_ENTRIES_AT_ONCE = 2**24
"""Entries of a per-example derivative that are held at once, roughly."""
_NORMALISES_BATCHES = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_COMPARED_EXAMPLES, _FEW_COLUMNS = 3, 3
"""Examples for the comparison of batched results with loops, and columns for which a loop is as quick."""
Gradients = Callable[[Tensor, list[Tensor], Tensor], list[Tensor]]
"""Takes f (B, C), tensors that it is made of, and columns (K, B, C) to the derivatives of sum_bc columns[k, b, c]
f[b, c] in these tensors, with K in front."""


def _all_columns(f: Tensor, tensors: list[Tensor], columns: Tensor, *, retain_graph: bool = False) -> list[Tensor]:
    settings = {"is_grads_batched": True, "allow_unused": True, "retain_graph": retain_graph}
    gradients = torch.autograd.grad(f, tensors, columns, **settings)
    return [
        value.new_zeros(()).expand(len(columns), *value.shape) if gradient is None else gradient
        for gradient, value in zip(gradients, tensors, strict=True)
    ]


def _column_by_column(f: Tensor, tensors: list[Tensor], columns: Tensor) -> list[Tensor]:
    with torch.enable_grad():  # gradients of numbers, since torch imports sympy for those in given directions
        numbers = [(f * column).sum() for column in columns]
    each = [torch.autograd.grad(one, tensors, retain_graph=True, materialize_grads=True) for one in numbers]
    return [torch.stack(parts) for parts in zip(*each, strict=True)]


_COPYING_NODES = {"AliasBackward0", "CloneBackward0", "ReshapeAliasBackward0", "SqueezeBackward0", "SqueezeBackward1"}
_COPYING_NODES |= {"ToCopyBackward0", "UnsafeViewBackward0", "UnsqueezeBackward0", "ViewBackward0"}
"""Steps of autograd that keep all values."""


class Way(NamedTuple):
    """Whether torch batches the columns, and the examples, of a network with the same results as a loop."""

    takes_columns: bool = False
    takes_examples: bool = False


class Look(NamedTuple):
    """What a pass of a single example tells of a network and the sites."""

    known: frozenset[str]  # names of the sites whose layers are known
    matrices: frozenset[str]  # of those, linear maps
    width: int  # the largest number of values that a layer outputs
    num_outputs: int
    held: int  # numbers that the Jacobian of an example needs, in parts
    is_last_layer: bool  # whether the sites are a linear layer whose outputs are the network's


@dataclasses.dataclass(frozen=True, eq=False)
class Recording:
    """A pass through a network: outputs (B, C), and the uses of weights whose layers are known.

    `others` are the sites that are used differently, or more than once, `last` the site that is used last, if any.
    """

    f: Tensor
    uses: list[Use]
    others: list[str]
    last: str | None = None

    def pull_back(self, columns: Tensor, gradients: Gradients) -> list[Tensor]:
        """Return the derivatives of sum_bc columns[k, b, c] f[b, c] in the outputs of each use, (K, B, T, O) each."""
        if not self.uses:
            return []
        derivatives = gradients(self.f, [use.output for use in self.uses], columns)
        return [use.positions(gradient) for use, gradient in zip(self.uses, derivatives, strict=True)]

    @property
    def is_last_layer(self) -> bool:
        """Whether the only use is a matrix at one position whose outputs are the network's, by autograd's steps."""
        if len(self.uses) != 1 or self.others or self.uses[0].kind != "matrix":
            return False
        output = self.uses[0].output
        if output.shape != self.f.shape:
            return False
        step = self.f.grad_fn
        while step is not None and step is not output.grad_fn:
            step = step.next_functions[0][0] if step.name() in _COPYING_NODES else None
        return step is not None


@dataclasses.dataclass(frozen=True, eq=False)
class Pulled:
    """J^T v for K columns v and B examples, split by layers.

    `information` is the sum of the columns' outer products where they are not held and K is 0, for the last layer.
    """

    f: Tensor
    uses: list[Use]
    gradients: list[Tensor]  # derivative in the outputs of each layer, (K, B, T, O)
    dense: dict[str, Tensor]  # derivatives for sites of other layers, (K, B, *shape)
    shapes: dict[str, torch.Size]
    is_last_layer: bool = False  # whether the only layer is a matrix whose outputs are the network's
    information: DiagonalLess | None = None
    counts: Tensor | None = None  # weight of each example in means over examples, (B,), or None for 1

    def outer(self, place: int) -> Outer:
        """Return the sum over columns of the outer products of a layer's derivatives, if examples pass it once."""
        return Columns(self.gradients[place][:, :, 0]) if self.information is None else self.information

    def only_matrix(self, sites: list[str]) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return derivatives (K, B, O), inputs (B, I), 1 for the bias, and places if the sites are a linear layer's.

        The places are those of each entry of the sites, weight first, in the (O, I) matrix. None if the sites are not a
        single layer that each example passes once.
        """
        if len(self.uses) != 1 or self.dense or self.uses[0].sites != sites:
            return None
        use, g = self.uses[0], self.gradients[0]
        if use.kind != "matrix" or use.weight is None or g.shape[2] > 1:
            return None
        a = use.inputs_of(sites, use.inputs[:, 0])
        places = torch.arange(g.shape[3] * a.shape[1], device=g.device).view(g.shape[3], a.shape[1])
        weight = places if use.bias is None else places[:, :-1]
        first = from_matrix(weight, self.shapes[use.weight], transposed=use.transposed)
        parts = [first, *([] if use.bias is None else [places[:, -1]])]
        return g[:, :, 0], a, torch.cat(parts)

    def rows(self, sites: Iterable[str]) -> Tensor:
        """Return the derivatives in some sites, flat and in their order, (K, B, D)."""
        return torch.cat([self._derivative_in(name) for name in sites], 2)

    def _derivative_in(self, name: str) -> Tensor:
        if name in self.dense:
            return self.dense[name].reshape(*self.dense[name].shape[:2], -1)
        use, g = next(pair for pair in zip(self.uses, self.gradients, strict=True) if name in pair[0].sites)
        return self._derivative(use, g, name)

    def squares(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Return the sum over columns and examples of the squared derivatives in some sites, in their shapes."""
        wanted = set(names)
        squares = {name: self.dense[name].square().sum((0, 1)) for name in wanted & set(self.dense)}
        for place, use in enumerate(self.uses):
            squares |= self._squares(place, [name for name in use.sites if name in wanted])
        return {name: value.reshape(self.shapes[name]) for name, value in squares.items()}

    def _squares(self, place: int, sites: list[str]) -> dict[str, Tensor]:
        use, g = self.uses[place], self.gradients[place]
        if sites and use.kind == "matrix" and g.shape[2] == 1:
            squares = self.outer(place).squares()
            totals = ((name, squares.T @ use.inputs_of([name], use.inputs[:, 0]).square()) for name in sites)
            return {name: from_matrix(total, self.shapes[name], transposed=use.transposed) for name, total in totals}
        return {name: self._squares_in_parts(use, g, name) for name in sites}

    def _squares_in_parts(self, use: Use, g: Tensor, name: str) -> Tensor:
        size = examples_at_once(g.shape[0] * self.shapes[name].numel())
        parts = [
            self._derivative(dataclasses.replace(use, inputs=a), part, name).square().sum((0, 1))
            for a, part in zip(use.inputs.split(size), g.split(size, 1), strict=True)
        ]
        return torch.stack(parts).sum(0)

    def _derivative(self, use: Use, g: Tensor, name: str) -> Tensor:
        """Return the derivative in the weight or bias of a use, (K, B, size)."""
        if name == use.bias:
            return g.sum(2)
        if use.kind == "scale":
            return (g * use.inputs).sum(2)
        return from_matrix(g.transpose(-1, -2) @ use.inputs, self.shapes[name], transposed=use.transposed)


def mixes_examples(net: nn.Module) -> bool:
    """Return whether outputs of an example depend on the others of its batch, also in evaluation mode."""
    return any(isinstance(module, _NORMALISES_BATCHES) and module.running_mean is None for module in net.modules())


def refuse_mixed_examples(net: nn.Module) -> None:
    """Refuse a network whose outputs have no derivatives example by example, with `InputError`."""
    if mixes_examples(net):
        fault = "The network normalises by the statistics of each batch (track_running_stats=False), so that the"
        effect = "outputs of an example depend on the others, and have no separate derivatives or curvature"
        remedy = "use batch normalisation with running statistics, layer normalisation, or a guide without curvature"
        raise InputError(f"{fault} {effect}: {remedy}.", page="how-to/own-network")


class Tracker:
    """Runs a network in evaluation mode at fixed weights, and takes derivatives in the weights of some sites.

    A layer counts as known if its inputs have one row per example. A run of a single example (1, *in) confirms this,
    since the length of a sequence on the first axis may equal the batch size.
    """

    def __init__(self, bnn: BNN, weights: Mapping[str, Tensor], sites: list[str], example: X) -> None:
        refuse_mixed_examples(bnn.net)
        self._bnn, self._sites, self._example = bnn, sites, example
        self._fixed = {name: value.detach() for name, value in weights.items()}
        self._tracked = self._fixed | {name: self._fixed[name].clone().requires_grad_() for name in sites}
        self._known = frozenset(sites)
        self.look = once(bnn, ("look", tuple(sites), shape_of(example)), self._first_look)
        self._known = self.look.known

    def _first_look(self) -> Look:
        runs = list[Recording]()
        held = dict(self._bnn.net.named_buffers())
        width = widest_activation(self._bnn.net, lambda: runs.append(self.run(self._example)), held)
        (alone,) = runs
        num_outputs = alone.f.shape[1]
        return Look(
            known=frozenset(name for use in alone.uses for name in use.sites),
            matrices=frozenset(name for use in alone.uses if use.kind == "matrix" for name in use.sites),
            width=width,
            num_outputs=num_outputs,
            held=self._held(alone, num_outputs),
            is_last_layer=alone.is_last_layer,
        )

    @cached_property
    def alone(self) -> Recording:
        return self.run(self._example)

    def run(self, x: X) -> Recording:
        """Record a pass with inputs (B, *in)."""
        recorder = Recorder({id(self._tracked[name]): name for name in self._sites}, len(x))
        with torch.enable_grad(), recorder:
            f = self._bnn.outputs(self._tracked, x)
        uses = [use for use in recorder.uses if not recorder.is_shared(use) and self._known.issuperset(use.sites)]
        covered = {name for use in uses for name in use.sites}
        return Recording(f, uses, [name for name in self._sites if name not in covered], recorder.last)

    def pull(self, x: X, columns_at: Callable[[Tensor], Tensor] | None = None) -> Pulled:
        """Return columns pulled back through a pass with inputs (B, *in).

        `columns_at` gives columns (K, B, C) for outputs (B, C); by default a column per output, for the Jacobian.
        """
        recording = self.run(x)
        f = recording.f.detach()
        columns = torch.eye(f.shape[1]).to(f)[:, None].expand(-1, len(f), -1) if columns_at is None else columns_at(f)
        others = recording.others
        is_last = self.look.is_last_layer and not others
        asks = others or not (is_last or len(columns) <= _FEW_COLUMNS)
        way = self._way(x[:_COMPARED_EXAMPLES], others) if asks else Way()
        dense = (self._side_by_side if way.takes_examples else self._one_by_one)(others, x, columns) if others else []
        names = [*(name for use in recording.uses for name in use.sites), *others]
        shapes = {name: self._fixed[name].shape for name in names}
        if is_last:
            gradients = [columns[:, :, None]]
        else:
            gradients = recording.pull_back(columns, _all_columns if way.takes_columns else _column_by_column)
        dense_by_site = dict(zip(others, dense, strict=True))
        return Pulled(f, recording.uses, gradients, dense_by_site, shapes, is_last_layer=is_last)

    def _way(self, few: X, others: list[str]) -> Way:
        def ask() -> Way:
            recording = self.run(few)
            f, outputs = recording.f, [use.output for use in recording.uses]
            columns = torch.arange(2 * f.numel()).view(2, *f.shape).cos().to(f)
            together = partial(_all_columns, retain_graph=True)
            takes_columns = not outputs or together is vmap_or_loop(together, _column_by_column, f, outputs, columns)
            if not others or len(few) == 1:
                return Way(takes_columns=takes_columns)
            side_by_side = self._side_by_side
            chosen = vmap_or_loop(side_by_side, self._one_by_one, others, few, columns)
            return Way(takes_columns=takes_columns, takes_examples=chosen is side_by_side)

        return once(self._bnn, (tuple(self._sites), tuple(others), len(few)), ask)

    def _side_by_side(self, names: list[str], x: X, columns: Tensor) -> list[Tensor]:
        """Return the derivatives of sum_c columns[k, b, c] f[b, c] in some weights, (K, B, *shape) each.

        Each example has its weights in a run under vmap, through which autograd goes back: vmap of a vector-Jacobian
        product is wrong for some operations of torch (`prelu`, `cdist`).
        """
        weights = {name: self._fixed[name].expand(len(x), *self._fixed[name].shape) for name in names}
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")  # for operations without a rule
            leaves = {name: value.requires_grad_() for name, value in weights.items()}
            f = vmap(lambda row_weights, row: self._bnn.outputs(self._fixed | row_weights, row[None])[0])(leaves, x)
            return _all_columns(f, list(leaves.values()), columns)

    def _one_by_one(self, names: list[str], x: X, columns: Tensor) -> list[Tensor]:
        """Return the same, by a run for each example."""
        weights = [self._tracked[name] for name in names]
        each = []
        for row, row_columns in zip(x, columns.transpose(0, 1), strict=True):
            with torch.enable_grad():
                f = self._bnn.outputs(self._tracked, row[None])[0]
            each.append(_column_by_column(f, weights, row_columns))
        return [torch.stack(parts, 1) for parts in zip(*each, strict=True)]

    def examples_at_once(self, num_columns: int, numbers: int) -> int:
        """Return how many examples to pull at once, if the result holds so many numbers for each column of each."""
        held = self._held(self.alone, num_columns)
        return self.inputs_at_once(examples_at_once(max(held, num_columns * numbers)))

    def _held(self, recording: Recording, num_columns: int) -> int:
        """Return how many numbers are held for some columns, pulled back through a recorded pass."""
        held = sum(use.inputs.numel() + num_columns * use.output.numel() for use in recording.uses)
        return held + (num_columns + 1) * sum(self._fixed[name].numel() for name in recording.others)

    def inputs_at_once(self, most: int) -> int:
        """Return how many inputs to run at once, at most some number, so that activations stay in the cache."""
        num_weights = sum(value.numel() for value in self._fixed.values())
        return min(most, pairs_at_once(self.look.width, self._example.device, num_weights))


def examples_at_once(numbers: int) -> int:
    """Return how many examples to take at once if each needs that many numbers."""
    return max(1, _DERIVATIVE_ENTRIES_AT_ONCE // max(1, numbers))
