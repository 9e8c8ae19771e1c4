"""Types used across the package."""

from collections.abc import Mapping

from torch import Tensor

Draws = Mapping[str, Tensor]
"""Values of latent sites by name; every tensor has the draws on its leading axes."""
