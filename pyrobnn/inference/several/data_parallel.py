"""Data-parallel SVI: several processes, each with a share of every batch, which average their gradients."""

import dataclasses
import functools
import itertools
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated, Any

import torch
import torch.distributed as dist
from pydantic import BeforeValidator
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.random import seeded
from pyrobnn._core.settings import setting, to_dict
from pyrobnn._core.tree_files import digest
from pyrobnn._torch.processes import is_main_process, num_processes
from pyrobnn.bnn import BNN
from pyrobnn.data.batches import State, TensorBatches
from pyrobnn.data.loader import Loader
from pyrobnn.inference.data import Source, make_source
from pyrobnn.inference.method import AroundAnother, Callback, Offer, Progress, Run, registry
from pyrobnn.inference.svi.svi import SVI
from pyrobnn.inference.training.checkpoint import fingerprint
from pyrobnn.inference.training.session import Declared, opened
from pyrobnn.inference.training.state import TrainingState
from pyrobnn.inference.training.watch import asks_to_stop
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.record import EngineRecord

_TIMEOUT = timedelta(minutes=10)
"""How long a process waits for another that is alive but does not come."""
_FITS = itertools.count()


@registry.register
@setting
class DataParallel(AroundAnother[Posterior]):
    """SVI in W processes started by torchrun, on one or several machines; in a single process it is plain SVI.

    Each process takes every W-th example of each batch (of all data without a batch size), and draws its noise
    independently. The average of their estimates is an unbiased estimate of the ELBO for the whole batch, with the
    noise of the guide averaged over W draws. A single all-reduce per step averages the gradients and the two terms of
    the ELBO, so that parameters stay equal in all processes, bit for bit. Steps run eagerly.

    All processes must be given the same model, data, method and seed. Data are in memory everywhere.

    Attributes:
        method: the method of the fit; `batch_size` counts the examples of all processes together, a multiple of W.

    Examples:
        >>> method = bnn.DataParallel(bnn.SVI(steps=20, batch_size=16))  # in a script that torchrun starts
        >>> posterior = bnn.fit(bnn.BNN(bnn.MLP(1, [10], 1)), bnn.datasets.sinusoid(), method, seed=0, progress=False)
        >>> posterior.predict([[0.0], [1.0]]).mean.shape
        torch.Size([2])
    """

    method: Annotated[SVI, BeforeValidator(registry.resolve)] = SVI()

    def __post_init__(self) -> None:
        """Refuse to stop by a validation score, which `fit` follows for SVI only."""
        if self.method.patience is not None:
            raise InputError("DataParallel: processes run the same number of steps: leave `patience` out.")

    def offer(self) -> Offer:
        """Return the features of the method beside `infer`."""
        return dataclasses.replace(super().offer(), starts_at_mode=True)

    def infer(self, bnn: BNN, data: Any, run: Run) -> Posterior:
        """Fit; every process returns the same posterior. The first process shows progress and calls the callbacks."""
        backend = None
        if num_processes() == 1:
            posterior = self.method.infer(bnn, data, run)
        else:
            device = _own_device(run.device)
            backend = "nccl" if device.startswith("cuda") else "gloo"
            with _processes(backend) as group:
                posterior = self._run_share(bnn, data, _Processes(group), dataclasses.replace(run, device=device))
            if run.engine == "captured" and is_main_process():
                warnings.warn("The fit runs eagerly, since it averages gradients over processes.", stacklevel=3)
            posterior.history.engine = EngineRecord(run.engine, "eager", "gradients are averaged over processes")
        guide = posterior.record.guide
        posterior.record = dataclasses.replace(
            posterior.record,
            method=repr(self) if guide is None else to_dict(self) | {"guide": guide},
            engine=posterior.history.engine,
            data_parallel={"world_size": num_processes(), "backend": backend},
        )
        return posterior

    def _run_share(self, bnn: BNN, data: Any, processes: "_Processes", run: Run) -> Posterior:
        method, is_first = self.method, processes.rank == 0
        source = make_source(data, bnn, method.batch_size, seed=run.seed)
        batch_size = source.batch_size(method.batch_size)
        if method.batch_size is None and batch_size < source.num_data:
            batch_size = max(processes.world, batch_size - batch_size % processes.world)
            method = dataclasses.replace(method, batch_size=batch_size)
        _check_share(source, method, processes.world)
        shared = [processes.shared(run.callbacks)] if run.callbacks else []
        run = dataclasses.replace(run, engine="eager", progress=run.progress and is_first, callbacks=shared)
        with opened([Declared(bnn, method, source, run.seed)], run, processes=processes.world) as session:
            fit = session.fits[0].state
            processes.check_same(seed=run.seed, method=repr(method), data=fingerprint(source), model=repr(bnn))
            processes.copy_first(fit)
            _take_share(fit, batch_size, source.num_data, processes)
            fit.all_reduce = processes.average
            with seeded(run.seed, f"process {processes.rank}"):
                session.train()
            processes.warn_if_different(fit)
            processes.copy_first(fit)
        return session.complete()[0]


def _own_device(device: str) -> str:
    """Return the device of this process: with GPUs, the GPU with the process's number on its machine."""
    if device not in ("auto", "cuda") or not torch.cuda.is_available():
        return "cpu" if device == "auto" else device
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if local >= torch.cuda.device_count():
        raise InputError(
            f"Process {local} of this machine has no GPU for itself, there are {torch.cuda.device_count()}: start as "
            "many processes (torchrun --nproc-per-node), or pass device='cpu'."
        )
    torch.cuda.set_device(local)
    return f"cuda:{local}"


@contextmanager
def _processes(backend: str) -> Iterator[dist.ProcessGroup]:
    """Connect the processes for a block; if a process fails, it releases the others, which then fail too."""
    begun = not dist.is_initialized()
    with _told():
        if begun:
            store, rank, world = _meeting_point()
            # under a new name, since entries of an earlier fit in the store would mislead this fit
            fit_store = dist.PrefixStore(f"fit {next(_FITS)}", store)  # type: ignore[attr-defined]
            dist.init_process_group(backend, store=fit_store, rank=rank, world_size=world, timeout=_TIMEOUT)
        group: Any = dist.group.WORLD if begun else dist.new_group(backend=backend, timeout=_TIMEOUT)
    try:
        yield group
        with _told():
            dist.barrier(group)
    except BaseException:
        group.abort()
        raise
    finally:
        dist.destroy_process_group(None if begun else group)


@functools.cache
def _meeting_point() -> tuple[Any, int, int]:
    """Return the store that torchrun's environment names, and rank and number of this process and the others."""
    return next(dist.rendezvous("env://", timeout=_TIMEOUT))  # type: ignore[attr-defined]


@contextmanager
def _told() -> Iterator[None]:
    """Explain the error when processes lose each other."""
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(
            "This process lost the others of its data-parallel fit: one of them failed or does not answer, see its own "
            f"message. ({str(error).splitlines()[0]})"
        ) from error


class _Processes:
    """The processes of a fit, seen from this process.

    Attributes:
        rank: the number of this process.
        world: number of processes.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group, self.rank, self.world = group, dist.get_rank(group), dist.get_world_size(group)

    def average(self, tensors: list[Tensor]) -> None:
        """Replace tensors by their averages over the processes, in a single message per precision."""
        with _told(), torch.no_grad():
            for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
                alike = [tensor for tensor in tensors if tensor.dtype == dtype]
                flat = torch.cat([tensor.reshape(-1) for tensor in alike])
                dist.all_reduce(flat, group=self._group)
                parts = flat.div_(self.world).split([tensor.numel() for tensor in alike])
                for tensor, part in zip(alike, parts, strict=True):
                    tensor.copy_(part.view_as(tensor))

    def _from_first(self, value: Any) -> Any:
        with _told():
            values = [value]
            dist.broadcast_object_list(values, group=self._group, group_src=0)
            return values[0]

    def _from_all(self, value: Any) -> list[Any]:
        with _told():
            values = [None] * self.world
            dist.all_gather_object(values, value, group=self._group)
            return values

    def check_same(self, **facts: Any) -> None:
        """Refuse processes that were not given the same.

        Raises:
            InputError: with the first fact that differs, in every process.
        """
        for rank, others in enumerate(self._from_all(facts)):
            different = [name for name in facts if others[name] != facts[name]]
            if different:
                raise InputError(
                    f"Processes {self.rank} and {rank} were not given the same {different[0]}: start all with the same "
                    "arguments; each takes its share of the data by itself."
                )

    def copy_first(self, fit: TrainingState) -> None:
        """Take parameters and buffers of the first process."""
        state = {name: value.cpu() for name, value in fit.trained.state_dict().items()}
        fit.trained.load_state_dict(self._from_first(state if self.rank == 0 else None))

    def warn_if_different(self, fit: TrainingState) -> None:
        """Warn if the parameters did not stay the same; buffers, such as running means of a layer, need not."""
        if len(set(self._from_all(digest([*fit.trained.parameters()])))) > 1:
            warnings.warn(
                "The processes of the data-parallel fit ended with different parameters, those of the first are kept: "
                "do not change parameters in callbacks, and use machines of one kind.",
                stacklevel=2,
            )

    def shared(self, callbacks: Sequence[Callback]) -> Callback:
        """Return a callback that runs the callbacks in the first process; if a callback asks, all processes stop."""

        def ask(progress: Progress) -> bool:
            answers = [callback(progress) for callback in callbacks] if self.rank == 0 else []
            return bool(self._from_first(any(map(asks_to_stop, answers))))

        return ask


def _check_share(source: Source, method: SVI, world: int) -> None:
    """Refuse data that cannot be shared out evenly."""
    if isinstance(source.data, Loader):
        raise InputError(
            "DataParallel shares out the examples of each batch itself, which it cannot for a DataLoader: pass "
            "Data(x, y)."
        )
    batch_size = source.batch_size(method.batch_size)
    if batch_size < source.num_data and batch_size % world:
        raise InputError(
            f"`batch_size` must be a multiple of the number of processes, {world}, to be shared out evenly, got "
            f"{batch_size}."
        )
    if source.num_data < world:
        raise InputError(f"There are {source.num_data} examples for {world} processes: start fewer.")


def _take_share(fit: TrainingState, batch_size: int, num_data: int, processes: _Processes) -> None:
    """Give a fit its share of every batch, weighted so that the average of all shares is the whole batch."""
    batches, rank, world = fit.batches, processes.rank, processes.world
    if isinstance(batches, TensorBatches) and batches.batch_size is not None:
        batches.order = _SharedRows(batches.order, rank, world)  # type: ignore[assignment]
    elif isinstance(batches, TensorBatches):
        fit.batches = TensorBatches(tuple(values[rank::world] for values in batches.data), None, 0)
    if batch_size == num_data:
        fit.num_data = world * len(range(rank, num_data, world))


class _SharedRows:
    """Every W-th row of each batch of a stream of rows."""

    def __init__(self, rows: Any, rank: int, world: int) -> None:
        self._rows, self._rank, self._world = rows, rank, world
        self.state: Callable[[], State] = rows.state
        self.restore: Callable[[State], None] = rows.restore

    def __next__(self) -> Tensor:
        return next(self._rows)[self._rank :: self._world]
