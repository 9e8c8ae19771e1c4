"""Saved posteriors with something broken: each is refused, or loads and predicts the same bits."""

import hashlib
import json
import random
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

import pyrobnn as bnn
from benchmarks.faults import count_outcomes, page_of
from benchmarks.measures.harness import Options
from benchmarks.rows import Row

KEY = ("what",)
OPTIONS = {"count": 167}
ASKED = "refused with one line, or loaded with predictions identical in every bit"
X = torch.linspace(-1, 1, 12)[:, None].repeat(1, 2)
Y = X.sum(1)
KNOWN = bnn.likelihoods.Gaussian(scale=0.5)


def _fit(method: Any, y: torch.Tensor = Y, outputs: int = 1, **parts: Any) -> Any:
    model = bnn.BNN(bnn.MLP(2, [3], outputs), **parts)
    return bnn.fit(model, bnn.Data(X, y, standardize=True), method, seed=0, engine="eager", progress=False)


POSTERIORS: dict[str, Callable[[], Any]] = {
    "mean_field": lambda: _fit(bnn.SVI(steps=3), prior={"*.bias": None, "*": bnn.priors.ScaleMixture(learnable=True)}),
    "classes": lambda: _fit(bnn.SVI(steps=3), (X[:, 0] > 0).long(), 2, likelihood="categorical"),
    "laplace": lambda: _fit(bnn.SVI(guide=bnn.guides.Laplace(structure="kron"), steps=3)),
    "chains": lambda: _fit(bnn.NUTS(num_draws=4, warmup=3, num_chains=2, max_tree_depth=2), likelihood=KNOWN),
    "mixture": lambda: _fit(bnn.Ensemble(bnn.SVI(guide="map", steps=3), members=3, anchored=True)),
}


@cache
def saved() -> "tuple[tempfile.TemporaryDirectory[str], dict[str, bytes]]":
    """Return a folder with all posteriors, which goes when this process ends, and the bits of each."""
    place = tempfile.TemporaryDirectory()
    return place, {kind: _bits(bnn.load(make().save(Path(place.name) / kind))) for kind, make in POSTERIORS.items()}


def jobs(options: Options) -> list[Row]:
    """Return the kinds of damage."""
    return [{"what": what} for what in DAMAGES]


def run(job: Row, options: Options) -> list[Row]:
    """Return the row of a kind of damage."""
    torch.set_num_threads(1)
    damage, (folder, wanted) = DAMAGES[job["what"]], saved()

    def check(seed: int) -> str:
        chance = random.Random(f"{damage.__name__} {seed}")
        kind = sorted(wanted)[seed % len(wanted)]
        place = Path(folder.name) / "damaged"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(place.with_name(kind), place)
        damage(chance, place)
        try:
            loaded = bnn.load(place)
        except bnn.InputError as error:
            if "\n" in str(error):
                raise AssertionError(f"more than one line: {error}") from None
            return "refused"
        if _bits(loaded) != wanted[kind]:
            raise AssertionError(f"{kind} was loaded and predicts something else")
        return "identical"

    return [count_outcomes(job["what"], ASKED, range(options.count), check)]


page = page_of("Saved posteriors with something broken")


def _bits(posterior: Any) -> bytes:
    """Return a digest of everything that a posterior says: predictions, draws, record and information."""
    prediction = posterior.predict(X, num_draws=6)
    parts = [prediction.draw_means.numpy().tobytes(), *(v.numpy().tobytes() for v in posterior.draw(6).values())]
    members = getattr(posterior, "members", [posterior])
    records = [member.history.elbo.tobytes() for member in members if member.history is not None]
    words = json.dumps([posterior.info, [member.info for member in members]])
    return hashlib.sha256(b"".join([*parts, *records, words.encode()])).digest()


def _files(place: Path) -> list[Path]:
    return sorted(path for path in place.rglob("*") if path.is_file())


def flipped(chance: random.Random, place: Path) -> None:
    """Flip one to three bits."""
    path = chance.choice(_files(place))
    content = bytearray(path.read_bytes())
    for _ in range(chance.randint(1, 3)):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(bytes(content))


def truncated(chance: random.Random, place: Path) -> None:
    """Cut a file short, or put bytes at its end."""
    path = chance.choice(_files(place))
    content = path.read_bytes()
    longer = content + chance.choice([b"\0", b" ", b"\n", b"{}", content])
    path.write_bytes(chance.choice([content[: chance.randrange(len(content))], longer]))


def zeroed(chance: random.Random, place: Path) -> None:
    """Set a block of a file to zeros."""
    path = chance.choice(_files(place))
    content = bytearray(path.read_bytes())
    start = chance.randrange(len(content))
    stop = min(len(content), start + chance.choice([1, 16, 512, 4096]))
    content[start:stop] = bytes(stop - start)
    path.write_bytes(bytes(content))


def swapped(chance: random.Random, place: Path) -> None:
    """Swap two files or members, or overwrite one."""
    mine = [*_files(place), *(path for path in place.iterdir() if path.is_dir())]
    theirs = [path for kind in POSTERIORS for path in (place.parent / kind, *_files(place.parent / kind))]
    first = chance.choice(mine)
    inside = [path for path in mine if path != first and path.suffix == first.suffix]
    outside = [path for path in theirs if path.suffix == first.suffix]
    second = chance.choice(inside if inside and chance.random() < 0.5 else outside)
    if second in inside:
        first.rename(place / "aside")
        second.rename(first)
        (place / "aside").rename(second)
    elif first.is_dir():
        shutil.rmtree(first)
        shutil.copytree(second, first)
    else:
        shutil.copy(second, first)


def deleted(chance: random.Random, place: Path) -> None:
    """Delete, empty or double a file or a member."""
    path = chance.choice([*_files(place), *(path for path in place.iterdir() if path.is_dir())])
    if path.is_dir():
        if chance.random() < 0.5:
            shutil.rmtree(path)
        else:
            shutil.copytree(path, place / f"member_{chance.randint(0, 9):03d}", dirs_exist_ok=True)
    elif chance.random() < 0.5:
        path.unlink()
    else:
        path.write_bytes(b"")


def edited(chance: random.Random, place: Path) -> None:
    """Change a value in the JSON."""
    path = chance.choice([path for path in _files(place) if path.suffix == ".json"])
    content = json.loads(path.read_text())
    holder, keys = content, list(content)
    while True:
        key = chance.choice(keys)
        inner = holder[key]
        if isinstance(inner, (dict, list)) and inner:
            holder, keys = inner, list(inner) if isinstance(inner, dict) else list(range(len(inner)))
            continue
        break
    holder[key] = chance.choice([0, 1, -1, 1.5, 10**9, None, "x", "nan", [], {}, True, float("nan"), inner, f"{inner}"])
    path.write_text(json.dumps(content, indent=chance.choice([None, 2])))


DAMAGES: dict[str, Callable[[random.Random, Path], None]] = {
    "One to three bits flipped": flipped,
    "A file cut short, or with bytes put at its end": truncated,
    "A block of a file set to zeros, as after a crash of the system": zeroed,
    "Two files or members swapped, or one overwritten by that of the same or another posterior": swapped,
    "A file or a member deleted, emptied, or there twice": deleted,
    "A value in the JSON edited by hand": edited,
}
