"""A file that was damaged or forged is refused before it costs memory or time; files appear whole or not at all."""

import copy
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import full_disk

import pyrobnn as bnn
from pyrobnn import InputError, guides
from pyrobnn._core import tree_files
from pyrobnn._core.folders import new_folder
from pyrobnn._core.tree_files import read_tree, write_tree
from pyrobnn.storage import load as loading

X = torch.linspace(-1, 1, 12)[:, None].repeat(1, 2)
MANY, HUGE = 10**7, 10**30
SETTINGS = {"seed": 0, "engine": "eager", "progress": False}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The trees of a posterior and of a mixture by name, and their folder; not to be changed."""
    folder = tmp_path_factory.mktemp("saved")
    model, data = bnn.BNN(bnn.MLP(2, [3], 1), prior=bnn.priors.Normal(1.0)), (X, X.sum(1))
    bnn.fit(model, data, bnn.SVI(steps=2), **SETTINGS).save(folder / "p")
    bnn.fit(model, data, bnn.Ensemble(bnn.SVI(guide="map", steps=2), members=2), **SETTINGS).save(folder / "m")
    return folder, {name: read_tree(folder / name) for name in "pm"}


@pytest.fixture(scope="module")
def posterior(saved):
    return bnn.load(saved[0] / "p")


def digest_of(path):
    loaded = bnn.load(path)
    return [loaded.predict(X, num_draws=3).draw_means.tolist(), loaded.record.to_table(), loaded.history.elbo.tolist()]


def test_a_file_with_a_byte_changed_or_cut_is_refused_or_the_same(saved, tmp_path):
    content, expected, place = (saved[0] / "p").read_bytes(), digest_of(saved[0] / "p"), tmp_path / "p"
    chance, refused = random.Random(0), 0
    for index in range(150):
        at = chance.randrange(len(content))
        changed = content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :]
        place.write_bytes(content[:at] if index % 3 == 0 else changed)
        try:
            found = digest_of(place)
        except InputError:
            refused += 1
        else:
            assert found == expected
    assert refused > 140


def edited(tree, *keys, value):
    tree = copy.deepcopy(tree)
    inside = tree
    for key in keys[:-1]:
        inside = inside[key]
    if value is ...:
        del inside[keys[-1]]
    else:
        inside[keys[-1]] = value
    return tree


CHANGES = {
    "other version": ("p", ("format_version",), 2, "format version 2, this pyrobnn reads 3"),
    "no version": ("p", ("format_version",), ..., "format version None"),
    "other guide": ("p", ("guide",), {"type": "map"}, "fit the guide: points.0 is missing in the file and float32"),
    "a key less": ("p", ("seed",), ..., r"does not fit \(`seed` is missing\): restore it, or save"),
    "a key more": ("p", ("self",), 1, "does not fit .unknown setting `self`"),
    "seed in words": ("p", ("seed",), "0", r"does not fit \(`seed` must be a whole number"),
    "seed of another kind": ("p", ("seed",), 0.0, r"does not fit \(`seed` must be a whole number"),
    "a part less": ("p", ("parts",), {"net": {"type": "mlp"}}, "does not fit .`parts`: Dictionary should have at l"),
    "an unknown part": ("p", ("parts", "prior"), {"type": "zebra"}, "Unknown prior 'zebra'"),
    "no tensor": ("p", ("model_state", "net.0.bias"), "text", "does not fit .`model_state"),
    "a row less": ("p", ("example", "x"), ..., "'x' is missing, or too much"),
    "a row more": ("p", ("example", "z"), X, "'z' is missing, or too much"),
    "a unit less": ("p", ("scalers", "x.loc"), ..., "'x.loc' is missing, or too much"),
    "a weight more": ("p", ("model_state", "z"), X, "the model: z is float32.12, 2. in the file and missing here"),
    "a weight less": ("p", ("guide_state", "loc"), ..., "the guide: loc is missing in the file"),
    "another shape": ("p", ("guide_state", "loc"), X, r"loc is float32\(12, 2\) in the file"),
    "another width": ("p", ("parts", "net", "hidden"), [4], r"net.0.weight is float32\(3, 2\) in .* and .*\(4, 2\)"),
    "other units": ("p", ("scalers", "x.loc"), X, "scaler of x and a row of x differ"),
    "ranks in part": ("p", ("scalers", "x.columns"), X[:1, 0].long(), "scaler of x and a row of x differ"),
    "two rows": ("p", ("example", "y"), X[:2, 0], "the scaler of y and a row of y"),
    "outputs of two rows": ("p", ("example", "f"), X, "'f' is no row of outputs"),
    "no members": ("m", ("members",), [], "does not fit .`members`"),
    "a member without settings": ("m", ("members", 1, "info"), ..., "does not fit .`info` is missing"),
    "a mixture in a mixture": ("m", ("members", 1), {"seed": 0, "info": {}, "members": [{}]}, "unknown setting"),
}
"""Of a tree: keys, the value there (... takes it away), and what is said; the file has a new digest: it is forged."""


@pytest.mark.parametrize("case", CHANGES)
def test_a_changed_tree_is_refused(case, saved, tmp_path):
    name, keys, value, message = CHANGES[case]
    write_tree(tmp_path / "p", edited(saved[1][name], *keys, value=value))
    with pytest.raises(InputError, match=message):
        bnn.load(tmp_path / "p")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is no file: pass a file that bnn.save wrote"),
        ("folder", "is a folder, as earlier versions wrote them"),
        (b"", "p is damaged"),
        (b"{}", "p is damaged"),
        (b"\xff" * 99, r"p is damaged \(its header is too long\)"),
    ],
)
def test_what_is_no_such_file_is_refused(content, message, tmp_path):
    if content == "folder":
        (tmp_path / "p").mkdir()
    elif content is not None:
        (tmp_path / "p").write_bytes(content)
    with pytest.raises(InputError, match=message):
        bnn.load(tmp_path / "p")


def test_more_text_than_any_is_neither_written_nor_read(saved, tmp_path, monkeypatch):
    monkeypatch.setattr(tree_files, "MOST_TEXT", 1000)
    with pytest.raises(InputError, match="take .* bytes, more than 1,000: keep less"):
        write_tree(tmp_path / "p", saved[1]["p"])
    with pytest.raises(InputError, match="its header is too long"):
        bnn.load(saved[0] / "p")


def net(*hidden):
    return {"net": {"type": "mlp", "in_features": 2, "hidden": list(hidden), "out_features": 1}}


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


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads the size of a process from Linux")
def test_forged_posteriors_of_every_guide_are_refused_within_memory_and_time(saved, tmp_path):
    """Each in at most 3 s of one processor, the faster of two, in a process that may take 256 MiB more than it has."""
    assert {name.partition(" ")[0] for name in FORGERIES} >= set(guides.registry.names)
    fair = saved[1]["p"]
    for index, changes in enumerate(FORGERIES.values()):
        parts = fair["parts"] | {key: changes[key] for key in changes if key in fair["parts"]}
        write_tree(tmp_path / str(index), fair | {"guide": changes["guide"], "parts": parts})
    command = [sys.executable, "-c", CHILD, saved[0] / "p", *(tmp_path / str(i) for i in range(len(FORGERIES)))]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    found = dict(zip(FORGERIES, json.loads(done.stdout.splitlines()[-1]).values(), strict=True))
    assert {name: outcome for name, (outcome, _) in found.items() if not outcome.startswith("InputError: ")} == {}
    assert {name: seconds for name, (_, seconds) in found.items() if seconds > 3} == {}


def test_a_network_of_ones_own_may_have_activations_larger_than_its_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "_BYTES", 2**16)
    grown = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Upsample(scale_factor=2**16), torch.nn.MaxPool1d(2**16))
    own = torch.nn.Sequential(torch.nn.Unflatten(1, (1, 1)), *grown, torch.nn.Flatten())
    model = bnn.BNN(own, likelihood=bnn.likelihoods.Gaussian(0.2), prior=bnn.priors.Normal(1.0))
    posterior = bnn.fit(model, (X[:1, :1], X[:1, 0]), bnn.SVI(steps=1), **SETTINGS)
    posterior.save(tmp_path / "p")
    assert torch.equal(bnn.load(tmp_path / "p", net=own).guide.loc, posterior.guide.loc)


STORED = sorted(path for path in (Path(__file__).parent / "fixtures/posterior_v3").iterdir() if not path.suffix)


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.name)
def test_stored_posteriors_load_and_predict_what_they_did(path):
    """To 3e-6 of the largest number: other machines draw and multiply with other last digits in single precision."""
    expected = json.loads(path.with_name("answers.json").read_text())[path.name]
    loaded = bnn.load(path)
    prediction = loaded.predict([[-0.5, 3.0], [0.0, 0.0], [2.0, -40.0]], num_draws=6, seed=5)
    classes = prediction.is_classification
    found = {
        "values": prediction.class_probs if classes else prediction.mean,
        "spread": prediction.entropy if classes else prediction.std,
    }
    for name, values in found.items():
        wanted = torch.tensor(expected[name], dtype=values.dtype)
        torch.testing.assert_close(values, wanted, rtol=0, atol=3e-6 * float(wanted.abs().max()))


def test_an_existing_file_is_refused_and_kept(tmp_path, posterior):
    (tmp_path / "file").write_text("kept")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "folder", "link"):
        with pytest.raises(InputError, match="exists already: choose another name"):
            bnn.save(posterior, tmp_path / name)
    assert (tmp_path / "file").read_text() == "kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder", "link"]


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    def fail_inside():
        with new_folder(tmp_path / "a" / "b") as folder:
            (folder / "file").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail_inside()
    assert list(tmp_path.iterdir()) == []


IMPOSSIBLE = {"file/p": "file is a file", "nul\0": "null", "n" * 300: "name too long", "n" * 300 + "/p": "too long"}
IDS = ["below a file", "no name", "long name", "below a long name"]


@pytest.mark.parametrize(("name", "reason"), IMPOSSIBLE.items(), ids=IDS)
def test_a_folder_that_cannot_be_made_is_refused(name, reason, tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(InputError, match=rf"cannot be made \(.*{reason}.*\): choose another place"),
        new_folder(tmp_path / name),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs limits of the system")
def test_a_full_disk_gives_one_line_and_leaves_nothing(tmp_path, posterior):
    with full_disk(1500), pytest.raises(OSError, match=r"not be written \(File too large\): make room") as caught:
        posterior.save(tmp_path / "p")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_everything_is_on_the_disk_before_it_takes_its_name_and_the_name_after(tmp_path, posterior, monkeypatch):
    events = []
    fsync, replace = os.fsync, Path.replace

    def note_sync(handle):
        events.append(("sync", Path(os.readlink(f"/proc/self/fd/{handle}")).name))
        fsync(handle)

    def note_replace(path, target):
        events.append(("replace", Path(target).name))
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "replace", note_replace)
    bnn.save(posterior, tmp_path / "p")
    assert events == [("sync", "p"), ("replace", "p"), ("sync", tmp_path.name)]


def test_a_replaced_folder_survives_an_error(tmp_path):
    old = tmp_path / "p"
    old.mkdir()
    (old / "old").write_text("")

    def replace_by(write):
        with new_folder(old) as folder:
            write(folder)

    with pytest.raises(FileNotFoundError, match="nothing"):
        replace_by(lambda folder: (folder / "nothing").read_text())
    assert [path.name for path in old.iterdir()] == ["old"]
    replace_by(lambda folder: (folder / "new").write_text(""))
    assert [path.name for path in old.iterdir()] == ["new"]
