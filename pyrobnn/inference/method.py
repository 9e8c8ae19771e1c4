"""What a method of inference is: a setting whose `run` gives a posterior."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from pyrobnn._registry import Registry
from pyrobnn.bnn import BNN
from pyrobnn.inference.engine import Engine
from pyrobnn.inference.monitor import Callback


@runtime_checkable
class Method[R](Protocol):
    """A method other than `SVI`, which `fit` runs itself. Any setting with this function will do."""

    def run(
        self,
        bnn: BNN,
        data: Any,
        *,
        seed: int,
        device: str,
        engine: Engine,
        progress: bool,
        callbacks: Sequence[Callback],
    ) -> R:
        """Infer the posterior; the arguments are those of `pyrobnn.fit`.

        Returns:
            A `Posterior`, or what draws and predicts like one. Its `info` has the method with its settings and, under
            "guide", the setting that builds the guide anew when the posterior is loaded.
        """
        ...


registry = Registry("method", accepts=lambda value: isinstance(value, Method))
