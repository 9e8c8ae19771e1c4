"""A forged folder is refused before it costs memory or time: what settings ask for must stand in the tensors."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import safetensors.torch
import torch

import pyrobnn as bnn
from pyrobnn import InputError, guides
from pyrobnn.storage import budget, files

X = torch.linspace(-1, 1, 12)[:, None].repeat(1, 2)
MANY, HUGE = 10**7, 10**30


def net(*hidden):
    return {"net": {"type": "mlp", "in_features": 2, "hidden": hidden, "out_features": 1}}


def nested(depth):
    return {"type": "pruned", "guide": nested(depth - 1)} if depth else {"type": "map"}


def blocks(**spec):
    return {"guide": {"type": "block_gaussian", "blocks": [{"sites": ["0.weight"], **spec}]}}


def auto(name, **options):
    return {"guide": {"type": "auto", "name": name, "options": options}}


def wide(guide):
    """Settings of a network whose weights would need 2 GB, with this guide."""
    return {"guide": guide, **net(4, 20_000, 20_000)}


FORGERIES = {
    "empirical": {"guide": {"type": "empirical", "num_chains": 4, "num_draws": MANY}},
    "empirical statistics": {"guide": {"type": "empirical", "num_chains": MANY, "num_draws": 1, "statistics": ["a"]}},
    "empirical without end": {"guide": {"type": "empirical", "num_chains": HUGE, "num_draws": HUGE}},
    "block_gaussian": blocks(kind="full", size=200_000),
    "block_gaussian low rank": blocks(kind="low_rank", size=10**9),
    "block_gaussian blocks": {"guide": {"type": "block_gaussian", "blocks": [{"kind": "diag", "sites": ["a"]}] * 9000}},
    "auto": auto("AutoLowRankMultivariateNormal", rank=10**9),
    "auto without end": auto("AutoLowRankMultivariateNormal", rank=HUGE),
    "auto of another kind": auto("AutoLowRankMultivariateNormal", rank="many"),
    "auto wide": wide({"type": "auto", "name": "AutoMultivariateNormal"}),
    "low_rank": {"guide": {"type": "low_rank", "rank": MANY}},
    "full_rank": {"guide": {"type": "full_rank"}, **net(10_000)},
    "flow": {"guide": {"type": "flow", "num_transforms": 10**6}},
    "flow wide": {"guide": {"type": "flow"}, **net(4000)},
    "matrix_normal": {"guide": {"type": "matrix_normal"}, **net(20_000)},
    "mean_field": wide({"type": "mean_field"}),
    "map": wide({"type": "map"}),
    "radial": wide({"type": "radial"}),
    "dropout": wide({"type": "dropout"}),
    "laplace": wide({"type": "laplace"}),
    "map deep": {"guide": {"type": "map"}, **net(*[1] * 10_000)},
    "map less deep": {"guide": {"type": "map"}, **net(*[1] * 2000)},
    "pruned": {"guide": nested(20)},
    "pruned deep": {"guide": nested(200)},
    "by name": {"guide": {f"{i}*": "map" for i in range(20_000)}},
}
"""Changes to the settings of a posterior with 13 weights: of the guide, or of the network."""

CHILD = """
import json, resource, sys, time
import pyrobnn as bnn
fair, *forged = sys.argv[1:]
bnn.load(fair)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, -1))
found = {}
for folder in 2 * forged:
    started = time.process_time()
    try:
        bnn.load(folder)
        outcome = "loaded"
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}"
    seconds = time.process_time() - started
    found[folder] = (outcome, min(seconds, found.get(folder, (outcome, seconds))[1]))
bnn.load(fair)
print(json.dumps(found))
"""


def seal(folder, changes):
    content = json.loads((folder / files.SETTINGS).read_text())
    content.pop("content_sha256")
    parts = content["parts"] | {key: changes[key] for key in changes if key in content["parts"]}
    content |= {"parts": parts} | {key: value for key, value in changes.items() if key in {*content, "categories"}}
    content = json.loads(json.dumps(content))
    (folder / files.SETTINGS).write_text(json.dumps({"content_sha256": files._digest_of(content)} | content))


@pytest.fixture(scope="module")
def fair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fair") / "p"
    model = bnn.BNN(bnn.MLP(2, [3], 1), likelihood=bnn.likelihoods.Gaussian(0.2), prior=bnn.priors.Normal(1.0))
    return bnn.fit(model, (X, X.sum(1)), bnn.SVI(steps=1), seed=0, engine="eager", progress=False).save(folder)


@pytest.fixture
def copy(fair, tmp_path):
    return shutil.copytree(fair, tmp_path / "p")


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads the size of a process from Linux")
def test_forged_posteriors_of_every_guide_are_refused_within_memory_and_time(fair, tmp_path):
    """Each in at most 3 s of one processor, the faster of two, in a process that may take 256 MiB more than it has."""
    assert {name.partition(" ")[0] for name in FORGERIES} >= set(guides.registry.names)
    for index, changes in enumerate(FORGERIES.values()):
        seal(shutil.copytree(fair, tmp_path / str(index)), changes)
    command = [sys.executable, "-c", CHILD, str(fair), *(str(tmp_path / str(i)) for i in range(len(FORGERIES)))]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    found = dict(zip(FORGERIES, json.loads(done.stdout.splitlines()[-1]).values(), strict=True))
    assert {name: outcome for name, (outcome, _) in found.items() if not outcome.startswith("InputError: ")} == {}
    assert {name: seconds for name, (_, seconds) in found.items() if seconds > 3} == {}


def test_a_network_of_ones_own_may_have_activations_larger_than_its_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(budget, "_BYTES", 2**16)
    grown = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Upsample(scale_factor=2**16), torch.nn.MaxPool1d(2**16))
    own = torch.nn.Sequential(torch.nn.Unflatten(1, (1, 1)), *grown, torch.nn.Flatten())
    model = bnn.BNN(own, likelihood=bnn.likelihoods.Gaussian(0.2), prior=bnn.priors.Normal(1.0))
    posterior = bnn.fit(model, (X[:1, :1], X[:1, 0]), bnn.SVI(steps=1), seed=0, engine="eager", progress=False)
    posterior.save(tmp_path / "p")
    assert torch.equal(bnn.load(tmp_path / "p", net=own).guide.loc, posterior.guide.loc)


@pytest.mark.parametrize("categories", [[[0, 2]], [[-1]], [[HUGE]], "all"])
def test_categories_that_are_no_columns_are_refused(copy, categories):
    seal(copy, {"categories": [[0, 1], []]})
    assert bnn.load(copy).donors.categories == [[0, 1], []]
    seal(copy, {"categories": categories})
    with pytest.raises(InputError, match="does not fit"):
        bnn.load(copy)


def test_settings_longer_than_any_are_neither_written_nor_read(fair, copy, tmp_path):
    posterior = bnn.load(fair)
    posterior.info |= {"notes": "x" * files._MOST_TEXT}
    with pytest.raises(InputError, match="take .* bytes as text, more than 4,194,304: keep less in `info`"):
        posterior.save(tmp_path / "q")
    seal(copy, {"info": {"notes": posterior.info["notes"]}})
    with pytest.raises(InputError, match=r"posterior.json is damaged"):
        bnn.load(copy)


def test_a_table_of_contents_longer_than_any_is_not_read(copy):
    tensors = safetensors.torch.load((copy / files.TENSORS).read_bytes())
    more = {f"guide.{index:0100d}": torch.zeros(0) for index in range(30_000)}
    seal(copy, {"tensors_sha256": files.write_tensors(tensors | more, copy)})
    with pytest.raises(InputError, match="has too many tensors for a posterior"):
        bnn.load(copy)


WIDE, TALL = torch.zeros(1, 300, dtype=torch.complex128), torch.zeros(200, 1)


@pytest.mark.parametrize(
    ("name", "arguments"),
    {
        "mul.Tensor": (WIDE, TALL),
        "clone.default": (TALL.expand(200, 50),),
        "where.self": (TALL > 0, WIDE, TALL),
        "cat.default": ([TALL, TALL],),
        "cumsum.default": (TALL.to(torch.uint8), 0),
        "logsumexp.default": (TALL.expand(200, 9), [1], True),
    }.items(),
)
def test_the_quick_bound_on_memory_is_never_below_the_need(name, arguments):
    packet, overload = name.split(".")
    func = getattr(getattr(torch.ops.aten, packet), overload)
    need = func(*arguments).nbytes
    assert budget._planned(func, arguments, {}) == need
    assert need <= budget._at_most(func, arguments, {}) < float("inf")
