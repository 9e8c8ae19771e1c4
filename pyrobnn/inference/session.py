"""Fits by SVI, one or several side by side: the one place where they are assembled, trained and recorded."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from pyrobnn import guides
from pyrobnn._core.errors import InputError
from pyrobnn._core.random import seeded
from pyrobnn._core.settings import to_dict
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.bnn import BNN
from pyrobnn.guides.sites import latent_sites
from pyrobnn.inference.checkpoint import Checkpoint
from pyrobnn.inference.history import EngineRecord, History
from pyrobnn.inference.laplace.curve import curve
from pyrobnn.inference.monitor import Callback, Monitor
from pyrobnn.inference.preparing import running, start
from pyrobnn.inference.source import Source
from pyrobnn.inference.svi.eager import Eager
from pyrobnn.inference.svi.engine import Engine
from pyrobnn.inference.svi.svi import SVI
from pyrobnn.inference.training import MOST_REWINDS, train
from pyrobnn.posterior.posterior import Posterior


@dataclasses.dataclass
class Session:
    """R fits of one shape.

    Attributes:
        posteriors: what is trained, R of them.
        fits: their steps.
        methods: their settings; the first one's lengths hold for all.
        sources: their data.
        started: when the first of it began, by `time.perf_counter`.
        threads: threads that a step uses.
    """

    posteriors: list[Posterior]
    fits: list[Eager]
    methods: Sequence[SVI]
    sources: Sequence[Source]
    started: float
    threads: int = 1

    def steps(
        self,
        engine: Engine,
        *,
        progress: bool,
        callbacks: Sequence[Callback],
        validate: Callable[[], float] | None = None,
        checkpoint: Checkpoint | None = None,
        block: int | None = None,
        most_rewinds: int = MOST_REWINDS,
    ) -> tuple[Monitor, EngineRecord]:
        """Do the steps of all fits, and return what watched them and which engine ran them."""
        method, source = self.methods[0], self.sources[0]
        num_steps = method.num_steps(source.batches_per_epoch(method.batch_size))
        monitor = Monitor(
            self.posteriors[0].bnn,
            self.posteriors[0].guide,
            num_steps=num_steps,
            progress=progress,
            callbacks=callbacks,
            validate=validate,
            eval_every=method.eval_every,
            patience=method.patience,
            **({} if block is None else {"block": block}),
        )
        record = train(self.fits, engine, monitor, num_steps, checkpoint=checkpoint, most_rewinds=most_rewinds)
        monitor.restore_best()
        return monitor, record

    def train(self, engine: Engine, **settings: Any) -> None:
        """Do the steps of all fits, and note in each posterior how it was fitted; settings are those of `steps`."""
        monitor, record = self.steps(engine, **settings)
        parts = zip(self.posteriors, self.methods, self.sources, monitor.recorder.histories(record), strict=True)
        for index, (posterior, method, source, history) in enumerate(parts):
            note(posterior, method, source, history)
            posterior.info |= monitor.summary(index) | {"threads": self.threads}

    def complete(self, *, progress: bool) -> list[Posterior]:
        """Return the posteriors after the second phase of their guides, where these have one."""
        seconds = time.perf_counter() - self.started
        for posterior, method, source in zip(self.posteriors, self.methods, self.sources, strict=True):
            posterior.info["seconds"] = seconds
            if isinstance(method.guide, guides.Laplace):
                started = time.perf_counter()
                with seeded(posterior.seed, "latent sites"), fast_pyro():
                    latents = latent_sites(posterior.bnn, *posterior.example)
                curve(posterior, method.guide, source, latents, progress=progress)
                posterior.info["seconds"] += time.perf_counter() - started
        return self.posteriors


@contextmanager
def opened(
    bnns: Sequence[BNN],
    methods: Sequence[SVI],
    sources: Sequence[Source],
    seeds: Sequence[int],
    *,
    seed: int,
    device: str,
    started: float,
    replicates: bool = False,
    processes: int = 1,
) -> Iterator[Session]:
    """Yield the session of fits that have begun, with the random state and the settings that their steps need.

    Args:
        bnns: the models, R of them.
        methods: their methods.
        sources: their data.
        seeds: their seeds.
        seed: of all together.
        device: as in `pyrobnn.fit`.
        started: when the work began, by `time.perf_counter`.
        replicates: whether each fit starts under a seed of its own and all share a stream of noise.
        processes: how many share out a batch.

    Raises:
        InputError: parts that do not go together.
    """
    batch_size = sources[0].batch_size(methods[0].batch_size) // processes
    with running(bnns[0], batch_size, seed, "replicates" if replicates else "fit", copies=len(bnns)) as threads:
        pairs = []
        for bnn, method, source, own in zip(bnns, methods, sources, seeds, strict=True):
            with seeded(own, "fit") if replicates else nullcontext():
                pairs.append(start(bnn, method, source, own, device))
        posteriors, fits = map(list, zip(*pairs, strict=True))
        yield Session(posteriors, fits, methods, sources, started, threads)


def note(posterior: Posterior, method: SVI, source: Source, history: History) -> None:
    """Note in the posterior how it was fitted."""
    posterior.history = history
    posterior.info = {
        "method": to_dict(method) if _is_declared(method) else repr(method),
        "num_data": source.num_data,
        "feature_names": source.feature_names,
        "num_steps": len(history),
        "device": str(posterior.example[0].device),
        "engine": dataclasses.asdict(history.engine),
    }


def _is_declared(method: SVI) -> bool:
    try:
        to_dict(method)
    except InputError:
        return False
    return True
