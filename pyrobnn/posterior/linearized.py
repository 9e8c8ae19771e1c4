"""The distribution of a network's outputs under a Gaussian of curvature, in closed form, by linearising it."""

from typing import Any

from pyrobnn._core.errors import InputError
from pyrobnn._core.modes import gradients, under
from pyrobnn._core.random import seeded
from pyrobnn.guides.built import built
from pyrobnn.posterior.mixture import require_single
from pyrobnn.posterior.normal_outputs import FunctionalNormal, linear_outputs
from pyrobnn.posterior.posterior import Posterior


@under(gradients)
def functional(posterior: Posterior, x: Any, *, joint: bool = False) -> FunctionalNormal:
    """Return the distribution of the outputs under the network linearised around the mode.

    Args:
        posterior: of a `Laplace` guide.
        x: inputs (N, *in) in original units.
        joint: whether to return the covariance of all inputs together.

    Raises:
        InputError: a mixture, a posterior of another guide, or inputs without the columns of training.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [10], 1))
        >>> posterior = model.fit(bnn.datasets.sinusoid(), guide="laplace", steps=20, seed=0, progress=False)
        >>> outputs = bnn.functional(posterior, [[0.0], [0.25], [1.0]], joint=True)
        >>> outputs.mean.shape, outputs.covariance.shape
        (torch.Size([3, 1]), torch.Size([3, 1, 3, 1]))
    """
    require_single(posterior, "functional")
    guide = posterior.guide
    blocks = built(guide).gaussian_blocks()
    if not blocks:
        raise InputError(
            "The distribution of the outputs has a closed form for Laplace guides alone, this is "
            f"{type(guide).__name__}: use predict(x, linearized=True)."
        )
    inputs = posterior.inputs(x)
    values = guide.mean()
    weights = {name: values[name] for name in posterior.bnn.site_names}
    with seeded(posterior.seed, "functional"):
        return linear_outputs(posterior.bnn, blocks, weights, inputs, joint=joint)
