"""How close each method comes to NUTS: three small problems, distances between predictions.

The references are `benchmarks/results/nuts/*.npz`, 1000 thinned draws of four chains of NumPyro;
`python -m benchmarks.tasks.nuts [PROBLEM...]` makes them anew (minutes to an hour). Distances are means over test
inputs, between NUTS and the method:

- function: Wasserstein-1 distance of the draws of the mean function (for classes: of the probability of class 1), in
  units of the standard deviation of the targets, or in probability;
- predictive: total variation distance of the predictive distributions of a target, on a grid of 200 cells;
- agreement: share of test inputs with the same most probable class (classes only);
- member: for ensembles, the predictive distance of one member alone, mean and standard deviation over the members. A
  mixture is never farther than its members are on average, for total variation is convex.

Two halves of NUTS, chains 1-2 against 3-4, give the floor: what Monte Carlo error alone leaves.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from pydantic import BaseModel
from scipy.stats import wasserstein_distance
from sklearn.datasets import make_moons
from torch import Tensor

import pyrobnn as bnn
from benchmarks.report.nuts import FLOOR, figures, tables
from benchmarks.tasks import schema

__all__ = ["PROBLEMS", "datasets", "distances", "figures", "jobs", "run", "tables"]

HERE = Path(__file__).parents[1]
DATA_SEED = 0
CELLS = 200


class Entry(TypedDict, total=False):
    """An entry: a method."""

    name: str
    guide: Any
    fit: dict[str, Any]


class SuiteSettings(BaseModel):
    """What a suite may set, with defaults."""

    problems: list[str] = ["sinusoid", "motorcycle", "moons"]
    seeds: schema.Seeds = [0]
    draws: schema.Count = 1000
    engine: Any = "captured"
    entries: schema.Tables = []


@dataclass(frozen=True)
class Problem:
    """A model, its data, and the inputs at which posteriors are compared.

    Attributes:
        widths: units of each layer, inputs first; tanh between, N(0, 1) priors on weights and biases.
        kind: "gaussian" with a known noise, "heteroscedastic" or "categorical".
        data: training data.
        test: inputs (T, *in), inside and outside the data.
        noise: standard deviation, if it is known.
        range: values of the targets that the grid covers; None for classes.
    """

    widths: tuple[int, ...]
    kind: str
    data: bnn.Data
    test: Tensor
    noise: float = 1.0
    range: tuple[float, float] | None = None

    def model(self) -> bnn.BNN:
        """Return the network as a BNN."""
        inputs, *hidden, outputs = self.widths
        likelihoods: dict[str, Any] = {
            "gaussian": bnn.likelihoods.Gaussian(scale=self.noise),
            "heteroscedastic": bnn.likelihoods.Gaussian(scale="heteroscedastic"),
            "categorical": "categorical",
        }
        net = bnn.MLP(inputs, hidden, outputs, activation="tanh")
        return bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood=likelihoods[self.kind])


def sinusoid() -> Problem:
    """Return 1-10-1 with known noise on a gap in a sinusoid."""
    generator = torch.Generator().manual_seed(DATA_SEED)
    x = torch.cat([torch.linspace(-1, -0.3, 16), torch.linspace(0.3, 1, 16)])[:, None]
    y = torch.sin(3 * x[:, 0]) + 0.1 * torch.randn(32, generator=generator)
    test = torch.linspace(-1.5, 1.5, 61)[:, None]
    return Problem((1, 10, 1), "gaussian", bnn.Data(x, y), test, noise=0.1, range=(-4.0, 4.0))


def motorcycle() -> Problem:
    """Return 1-10-2 with heteroscedastic noise on the motorcycle data (Silverman 1985)."""
    loaded = bnn.datasets.load("motorcycle").data
    values = torch.stack([loaded.x[:, 0], loaded.y], 1).float()
    values = (values - values.mean(0)) / values.std(0)
    data, test = bnn.Data(values[:, :1], values[:, 1]), torch.linspace(-2.5, 3.5, 61)[:, None]
    return Problem((1, 10, 2), "heteroscedastic", data, test, range=(-5.0, 5.0))


def moons() -> Problem:
    """Return 2-8-2 on two moons."""
    x, y = make_moons(100, noise=0.2, random_state=DATA_SEED)
    axis = torch.linspace(-2, 3, 15)
    grid = torch.stack(torch.meshgrid(axis, axis - 0.5, indexing="xy"), -1).reshape(-1, 2)
    data = bnn.Data(torch.tensor(x, dtype=torch.float32), torch.tensor(y))
    return Problem((2, 8, 2), "categorical", data, grid)


PROBLEMS: dict[str, Callable[[], Problem]] = {"sinusoid": sinusoid, "motorcycle": motorcycle, "moons": moons}


class Settings(SuiteSettings):
    """The settings of a job: those of its suite, its data and its entry."""

    entry: str
    data: str
    reference: str
    guide: Any
    fit: dict[str, Any]


def jobs(suite: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a job for each problem and entry, and a job for each problem that compares the two halves of NUTS."""
    settings = schema.check_suite(suite, SuiteSettings)
    _check_problems(settings["problems"])
    schema.check_entries(suite, Entry)
    schema.check_names([FLOOR, *(entry["name"] for entry in suite["entries"])])
    if len(set(settings["seeds"])) < len(settings["seeds"]):
        raise bnn.InputError(f"`seeds` has a seed twice: {settings['seeds']}. Each is to be a fit of its own.")
    for entry in suite["entries"]:
        schema.check_fit(entry["name"], entry, "engine")
        _method(entry)
    return [job for name in settings["problems"] for job in _jobs_of(name, settings, suite["entries"])]


def _jobs_of(name: str, settings: dict[str, Any], entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    common = {"data": name, "draws": settings["draws"], "reference": _checksum(name), "engine": settings["engine"]}
    fits = [
        {"entry": entry["name"], **common, "seeds": settings["seeds"]}
        | {key: entry[key] for key in ("guide", "fit") if key in entry}
        for entry in entries
    ]
    return [{"entry": FLOOR, **common, "seeds": []}, *fits]


def _check_problems(given: list[str]) -> None:
    unknown = sorted(set(given) - set(PROBLEMS))
    if unknown:
        raise bnn.InputError(f"Unknown problem `{unknown[0]}`. Known: {', '.join(PROBLEMS)}.")


def _method(settings: dict[str, Any]) -> Any:
    """Return the method that the sections [guide] and [fit] stand for."""
    sections = {key: settings[key] for key in ("guide", "fit") if key in settings}
    return schema.make_spec(sections, "motorcycle", predict={"num_draws": 1000}).fit.method


def datasets(settings: Settings) -> tuple[str, ...]:
    """Return the names of the data sets: the other problems are made up."""
    return ("motorcycle",) if settings.data == "motorcycle" else ()


def reference_path(name: str) -> Path:
    """Return the file of a problem's reference."""
    return HERE / "results" / "nuts" / f"{name}.npz"


def make_reference(name: str, problem: Problem) -> None:
    """Run NUTS, in a separate environment, and store the parts of its predictions."""
    uv = shutil.which("uv")
    if uv is None:
        raise FileNotFoundError("uv was not found: pip install uv")
    reference_path(name).parent.mkdir(parents=True, exist_ok=True)
    numbers = {"widths": problem.widths, "kind": problem.kind, "noise": problem.noise}
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder) / "problem.npz"
        np.savez(given, x=problem.data.x, y=problem.data.y, test=problem.test, **numbers)
        command = [uv, "run", "--quiet", "--script", str(HERE / "tasks" / "nuts_reference.py"), str(given)]
        subprocess.run([*command, str(reference_path(name))], check=True)
    kept = np.load(reference_path(name))
    print(f"{name}: NUTS took {kept['seconds']:.0f} s, largest R-hat {kept['max_rhat']:.3f}")


def parameters(prediction: bnn.Prediction) -> dict[str, np.ndarray]:
    """Return mean and standard deviation, or class probabilities, of each draw at each input."""
    if prediction.is_classification:
        return {"probs": prediction.draw_means.detach().numpy()[..., 1]}
    distribution = prediction.distribution
    return {"mean": distribution.mean.detach().numpy(), "std": distribution.stddev.detach().numpy()}


def distances(draws: dict[str, np.ndarray], reference: dict[str, np.ndarray], problem: Problem) -> dict[str, float]:
    """Return the distances between two sets of draws."""
    function = "mean" if problem.range else "probs"
    unit = float(problem.data.y.float().std()) if problem.range else 1.0
    pairs = zip(draws[function].T, reference[function].T, strict=True)
    scores = {"function": float(np.mean([wasserstein_distance(a, b) for a, b in pairs])) / unit}
    if problem.range is None:
        a, b = (parts["probs"].mean(0) for parts in (draws, reference))
        same = float(np.mean((a > 0.5) == (b > 0.5)))
        return scores | {"predictive": float(np.abs(a - b).mean()), "agreement": same}
    a, b = (grid_probabilities(parts, problem.range) for parts in (draws, reference))
    return scores | {"predictive": float(0.5 * np.abs(a - b).sum(-1).mean())}


def grid_probabilities(parts: dict[str, np.ndarray], limits: tuple[float, float]) -> np.ndarray:
    """Return the predictive probability of each cell of a grid at each input, both tails included, (T, cells + 2)."""
    edges = torch.linspace(*limits, CELLS + 1)
    mean, std = (torch.tensor(parts[key].astype(np.float32)) for key in ("mean", "std"))
    below = torch.stack([torch.special.ndtr((edge - mean) / std).mean(0) for edge in edges], -1)
    ends = torch.zeros(len(below), 1)
    return np.diff(torch.cat([ends, below, ends + 1], -1).numpy(), axis=-1)


def distance_of(posterior: Any, reference: dict[str, np.ndarray], problem: Problem, draws: int) -> dict[str, float]:
    """Return the distances of a posterior to the reference, from that many draws."""
    return distances(parameters(posterior.predict(problem.test, num_draws=draws)), reference, problem)


def halves(reference: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Return the draws of the first two and of the last two chains."""
    return [{key: np.split(value, 2)[half] for key, value in reference.items()} for half in (0, 1)]


def run(settings: Settings, keep: Path | None = None) -> list[dict[str, Any]]:
    """Measure the distances of a method on a problem, a row a seed; or the distances between the halves of NUTS."""
    name = settings.data
    if _checksum(name) != settings.reference:
        raise bnn.InputError(
            f"{reference_path(name)} has the checksum {_checksum(name)}, and the job was made for "
            f"{settings.reference}: make the job anew from the suite."
        )
    problem = PROBLEMS[name]()
    stored = np.load(reference_path(name))
    reference = {key: stored[key].astype(np.float32) for key in stored.files if stored[key].ndim}
    if settings.entry == FLOOR:
        notes = {key: float(stored[key]) for key in stored.files if not stored[key].ndim}
        return [{"entry": FLOOR, "data": name, "seed": 0, **distances(*halves(reference), problem), **notes}]
    return [{"entry": settings.entry, "data": name, **_fit(settings, problem, reference, s)} for s in settings.seeds]


def _fit(settings: Settings, problem: Problem, reference: dict[str, np.ndarray], seed: int) -> dict[str, Any]:
    started = time.perf_counter()
    how: dict[str, Any] = {"seed": seed, "device": "cpu", "engine": settings.engine, "progress": False}
    method = _method(settings.model_dump(exclude_unset=True))
    posterior = bnn.fit(problem.model(), problem.data, method, **how)
    row = {"seed": seed, "seconds": time.perf_counter() - started}
    draws = settings.draws
    row |= distance_of(posterior, reference, problem, draws)
    if isinstance(posterior, bnn.Mixture):
        singles = [distance_of(member, reference, problem, draws)["predictive"] for member in posterior.members]
        row |= {"member": float(np.mean(singles)), "member_std": float(np.std(singles, ddof=1))}
    return row


def _checksum(name: str) -> str:
    return hashlib.sha256(reference_path(name).read_bytes()).hexdigest()[:16]


if __name__ == "__main__":
    for chosen in sys.argv[1:] or PROBLEMS:
        make_reference(chosen, PROBLEMS[chosen]())
