"""The same random numbers on every device, for steps that are to be compared number by number."""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_MOST = 2**20
_IN_PLACE = {Tensor.cauchy_, Tensor.exponential_, Tensor.bernoulli_, Tensor.log_normal_}
_SAMPLERS = _IN_PLACE | {torch.normal, torch._standard_gamma, torch._sample_dirichlet, torch.bernoulli, torch.poisson}


class SameNoise(TorchFunctionMode):
    """Answers every request for normal or uniform numbers with the first of one fixed table, rounded to its precision.

    Every step sees the same noise, so that an eager step, and a captured one in which it becomes a constant, agree with
    each other and with a CPU in float64. At most 2^20 numbers a request. Other laws are drawn on the CPU in float64,
    from one seed at each request; so are the initial weights of layers.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        kinds = {
            "normal": torch.randn(_MOST, generator=generator, dtype=torch.float64),
            "uniform": torch.rand(_MOST, generator=generator, dtype=torch.float64).clamp(1e-6, 1 - 1e-6),
        }
        self._tables = {
            (kind, dtype, place): values.to(place, dtype)
            for kind, values in kinds.items()
            for dtype in (torch.float32, torch.float64)
            for place in {"cpu", device}
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.randn_like, torch.rand_like):
            return self._take("normal" if func is torch.randn_like else "uniform", args[0])
        if func in (torch.randn, torch.rand):
            like = torch.empty(*args, **{key: kwargs[key] for key in ("dtype", "device") if key in kwargs})
            return self._take("normal" if func is torch.randn else "uniform", like)
        if func is Tensor.normal_:
            mean, std = _pair(args, kwargs, ("mean", "std"))
            return args[0].copy_(self._take("normal", args[0]) * std + mean)
        if func is Tensor.uniform_:
            low, high = _pair(args, kwargs, ("from", "to"))
            return args[0].copy_(self._take("uniform", args[0]) * (high - low) + low)
        if func in _SAMPLERS:
            return self._on_cpu(func, args, kwargs)
        if getattr(func, "__module__", None) == "torch.nn.init":
            torch.manual_seed(0)
        return func(*args, **kwargs)

    @staticmethod
    def _on_cpu(func: Any, args: Any, kwargs: Any) -> Tensor:
        torch.manual_seed(0)
        like = next(value for value in args if isinstance(value, Tensor))
        there = [value.cpu().double() if isinstance(value, Tensor) else value for value in args]
        drawn = func(*there, **kwargs).to(like)
        return like.copy_(drawn) if func in _IN_PLACE else drawn

    def _take(self, kind: str, like: Tensor) -> Tensor:
        return self._tables[kind, like.dtype, like.device.type][: like.numel()].view(like.shape)


def _pair(args: Any, kwargs: Any, names: tuple[str, str]) -> tuple[float, float]:
    given = dict(zip(names, args[1:], strict=False)) | kwargs
    return given.get(names[0], 0.0), given.get(names[1], 1.0)
