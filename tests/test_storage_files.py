"""A saved posterior that was damaged is refused, folders appear whole or not at all, and old formats are read."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch

import pyrobnn as bnn
from pyrobnn import InputError
from pyrobnn._core import folders
from pyrobnn._core.folders import new_folder
from pyrobnn.storage import files

FIXTURES = Path(__file__).parent / "fixtures"
X = torch.linspace(-1, 1, 12)[:, None].repeat(1, 2)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folders of a posterior and of a mixture, not to be changed."""
    folder = tmp_path_factory.mktemp("saved")
    model, data = bnn.BNN(bnn.MLP(2, [3], 1), prior=bnn.priors.Normal(1.0)), (X, X.sum(1))
    settings = {"seed": 0, "engine": "eager", "progress": False}
    bnn.fit(model, data, bnn.SVI(steps=2), **settings).save(folder / "p")
    bnn.fit(model, data, bnn.Ensemble(bnn.SVI(guide="map", steps=2), members=2), **settings).save(folder / "m")
    return folder


@pytest.fixture
def copy(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "saved")
    return tmp_path / "saved"


@pytest.fixture(scope="module")
def posterior(saved):
    return bnn.load(saved / "p")


# Damage


def read(folder):
    return json.loads((folder / files.SETTINGS).read_text())


def write(folder, content):
    (folder / files.SETTINGS).write_text(json.dumps(content))


def sealed(**changes):
    """A damage that changes settings and gives them a new digest: a file that was forged rather than damaged."""

    def damage(folder):
        content = read(folder / "p") | changes
        content = {key: value for key, value in content.items() if value is not ... and key != "content_sha256"}
        write(folder / "p", {"content_sha256": files._digest_of(content)} | content)

    return damage


def with_tensors(change):
    """A damage that changes the tensors and puts their new digest into the settings."""

    def damage(folder):
        path = folder / "p" / files.TENSORS
        tensors = safetensors.torch.load(path.read_bytes())
        change(tensors)
        digest = files.write_tensors(tensors, folder / "p")
        sealed(tensors_sha256=digest)(folder)

    return damage


def flip_a_byte(name):
    def damage(folder):
        content = bytearray((folder / name).read_bytes())
        content[-20] ^= 1
        (folder / name).write_bytes(bytes(content))

    return damage


def reorder(folder):
    content = read(folder / "p")
    content["parts"] = dict(reversed(content["parts"].items()))
    write(folder / "p", content)


def edit(name, *keys, value):
    def damage(folder):
        content = read(folder / name)
        table = content
        for key in keys[:-1]:
            table = table[key]
        table[keys[-1]] = value
        write(folder / name, content)

    return damage


def swap(folder):
    first, second = folder / "m" / "member_000", folder / "m" / "member_001"
    first.rename(folder / "aside")
    second.rename(first)
    (folder / "aside").rename(second)


def link(name):
    def damage(folder):
        (folder / name).rename(folder / "elsewhere")
        (folder / name).symlink_to(folder / "elsewhere")

    return damage


def exchange(source):
    """A damage that puts another folder in the place of a member."""

    def damage(folder):
        shutil.rmtree(folder / "m/member_001")
        shutil.copytree(folder / source, folder / "m/member_001")

    return damage


V1 = FIXTURES / "posterior_v1"
P, M = "p/posterior.json", "m/posterior.json"
DAMAGES = {
    "no tensors": ("p", lambda f: (f / "p/tensors.safetensors").unlink(), "it has no tensors.safetensors"),
    "no settings": ("p", lambda f: (f / P).unlink(), "it has no posterior.json"),
    "no folder": ("nothing", lambda f: None, "it has no posterior.json"),
    "not json": ("p", lambda f: (f / P).write_text("{"), "posterior.json is damaged"),
    "not text": ("p", lambda f: (f / P).write_bytes(b"\xff\xfe{}"), "posterior.json is damaged"),
    "deep json": ("p", lambda f: (f / P).write_text("[" * 100_000), "posterior.json is damaged"),
    "other json": ("p", lambda f: (f / P).write_text("[]"), "posterior.json is damaged"),
    "no version": ("p", sealed(format_version=...), "posterior.json is damaged"),
    "version in words": ("p", sealed(format_version="2"), "posterior.json is damaged"),
    "other version": ("p", sealed(format_version=3), "format version 3, this pyrobnn reads 1 and 2"),
    "older version": ("p", sealed(format_version=1), "does not fit .*content_sha256"),
    "changed tensors": ("p", flip_a_byte("p/tensors.safetensors"), "is not the file that was saved"),
    "changed value": ("p", edit("p", "info", "num_data", value=13), "posterior.json is damaged"),
    "changed seed": ("p", edit("p", "seed", value=1), "posterior.json is damaged"),
    "a number of another kind": ("p", edit("p", "seed", value=0.0), "posterior.json is damaged"),
    "not a number": ("p", edit("p", "info", "seconds", value=float("nan")), "posterior.json is damaged"),
    "a strange number": ("p", sealed(info={"seconds": {"$float": "1e5"}}), "posterior.json is damaged"),
    "changed digest": ("p", edit("p", "content_sha256", value="0" * 64), "posterior.json is damaged"),
    "other order": ("p", reorder, "posterior.json is damaged"),
    "other guide": ("p", sealed(guide={"type": "map"}), "does not fit the guide: 'loc' is saved but not"),
    "a key less": ("p", sealed(seed=...), r"does not fit \(`seed` is missing\): restore it, or save"),
    "a key more": ("p", sealed(self=1), "does not fit .unknown setting `self`"),
    "seed in words": ("p", sealed(seed="0"), r"does not fit \(`seed` must be a whole number"),
    "a part less": ("p", sealed(parts={"net": {"type": "mlp"}}), "does not fit .`parts`: Dictionary should have at l"),
    "a tensor less": ("p", with_tensors(lambda t: t.pop("example.x")), "'example.x' is expected but not saved"),
    "a tensor more": ("p", with_tensors(lambda t: t.update(z=X)), "'z' is saved but not expected"),
    "a weight more": ("p", with_tensors(lambda t: t.update({"bnn.z": X})), "the bnn: 'z' is saved but not expected"),
    "another shape": ("p", with_tensors(lambda t: t.update({"guide.loc": X})), r"'loc' was saved as float32\(12, 2\)"),
    "other units": ("p", with_tensors(lambda t: t.update({"x_scaler.loc": X})), "scaler of x and a row of x differ"),
    "two rows": ("p", with_tensors(lambda t: t.update({"example.y": X[:2, 0]})), "the scaler of y and a row of y"),
    "no tensors inside": (
        "p",
        lambda f: [(f / "p" / files.TENSORS).write_bytes(b"x"), sealed(tensors_sha256=SHA_OF_X)(f)],
        "is no file of safetensors",
    ),
    "linked tensors": ("p", link("p/tensors.safetensors"), "is a link to another place: a saved posterior"),
    "linked member": ("m", link("m/member_001"), "is a link to another place: a saved mixture"),
    "swapped members": ("m", swap, "member_000 is not the member that was saved there"),
    "a member less": ("m", lambda f: shutil.rmtree(f / "m/member_001"), "it has no posterior.json"),
    "a member more": (
        "m",
        lambda f: shutil.copytree(f / "p", f / "m/member_002"),
        "has member_002, which does not belong to it",
    ),
    "another member": ("m", exchange("p"), "member_001 is not the member that was saved there"),
    "an old member": ("m", exchange(V1 / "mean_field"), "member_001 is not the member that was saved there"),
    "a mixture in a mixture": ("m", exchange("m"), "member_001 is not the member that was saved there"),
    "tensors of a mixture": (
        "m",
        lambda f: shutil.copy(f / "p/tensors.safetensors", f / "m"),
        "has tensors.safetensors, which does not belong to it",
    ),
    "a member in a posterior": (
        "p",
        lambda f: shutil.copytree(f / "m/member_000", f / "p/member_000"),
        "has member_000, which does not belong to it",
    ),
}
SHA_OF_X = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"


@pytest.mark.parametrize(("name", "damage", "message"), DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_folder_is_refused(name, damage, message, copy):
    damage(copy)
    with pytest.raises(InputError, match=message):
        bnn.load(copy / name)


def test_what_is_not_part_of_the_posterior_may_lie_beside_it(copy, posterior):
    (copy / "p" / "notes.txt").write_text("kept")
    assert torch.equal(bnn.load(copy / "p").predict(X, num_draws=3).mean, posterior.predict(X, num_draws=3).mean)


# Older formats


def v(version):
    return [pytest.param(path.parent, id=path.parent.name) for path in sorted(version.glob("*/posterior.json"))]


@pytest.mark.parametrize("folder", [*v(V1), *v(FIXTURES / "posterior_v2")])
def test_stored_posteriors_load_and_predict_what_they_did(folder):
    """To 3e-6 of the largest number: other machines draw and multiply with other last digits in single precision."""
    expected = json.loads((folder.parent / "answers.json").read_text())[folder.name]
    loaded = bnn.load(folder)
    prediction = loaded.predict([[-0.5, 3.0], [0.0, 0.0], [2.0, -40.0]], num_draws=6, seed=5)
    classes = prediction.is_classification
    found = {
        "values": prediction.class_probs if classes else prediction.mean,
        "spread": prediction.entropy if classes else prediction.std,
    }
    for name, values in found.items():
        wanted = torch.tensor(expected[name], dtype=values.dtype)
        torch.testing.assert_close(values, wanted, rtol=0, atol=3e-6 * float(wanted.abs().max()))


def test_the_first_version_kept_no_record_and_an_old_posterior_saves_as_a_new_one(tmp_path):
    kinds = [{path.parent.name for path in folder.glob("*/posterior.json")} for folder in FIXTURES.glob("posterior_v*")]
    assert len(kinds) == files.FORMAT_VERSION
    assert all(kind == kinds[0] for kind in kinds)
    old = bnn.load(V1 / "mixture")
    assert old.members[0].history is None
    assert old.history is None
    new = bnn.load(old.save(tmp_path / "p"))
    assert read(tmp_path / "p")["format_version"] == files.FORMAT_VERSION
    assert torch.equal(new.predict(X, num_draws=4).mean, old.predict(X, num_draws=4).mean)


def test_a_damaged_folder_of_the_first_version_is_refused(tmp_path):
    shutil.copytree(V1 / "nuts", tmp_path / "p")
    flip_a_byte("p/tensors.safetensors")(tmp_path)
    with pytest.raises(InputError, match="is not the file that was saved"):
        bnn.load(tmp_path / "p")
    shutil.copytree(V1 / "mixture", tmp_path / "m")
    edit("m", "members", value=10**9)(tmp_path)
    with pytest.raises(InputError, match="does not fit .`members`"):
        bnn.load(tmp_path / "m")


# Writing


def test_an_existing_folder_is_refused_and_kept(copy, posterior):
    (copy / "file").write_text("kept")
    (copy / "link").symlink_to(copy / "nowhere")
    for name in ("p", "file", "link"):
        with pytest.raises(InputError, match="exists already: choose another folder"):
            bnn.save(posterior, copy / name)
    bnn.load(copy / "p")
    assert (copy / "file").read_text() == "kept"
    assert sorted(path.name for path in copy.iterdir()) == ["file", "link", "m", "p"]


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    def fail_inside():
        with new_folder(tmp_path / "a" / "b") as folder:
            (folder / "file").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail_inside()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "reason"),
    {
        "file/p": "file is a file",
        "nul\0": "null",
        "n" * 300: "File name too long",
        "n" * 300 + "/p": "too long",
    }.items(),
    ids=["below a file", "no name", "long name", "below a long name"],
)
def test_a_folder_that_cannot_be_made_is_refused(name, reason, tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(InputError, match=rf"cannot be made \(.*{reason}.*\): choose another place"),
        new_folder(tmp_path / name),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_read_only_folder_is_refused(tmp_path, posterior, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(folders.tempfile, "mkdtemp", refuse)  # permissions do not bind the root user
    with pytest.raises(InputError, match=r"p cannot be made \(Permission denied\): choose another place"):
        posterior.save(tmp_path / "new" / "p")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs limits of the system")
def test_a_full_disk_gives_one_line_and_leaves_nothing(tmp_path, posterior):
    """The system refuses files of more than 1500 bytes, in this process alone."""
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, limits[1]))
    try:
        with pytest.raises(OSError, match=r"p could not be written \(File too large\): make room") as caught:
            posterior.save(tmp_path / "p")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("call", ["fsync", "write_bytes"])
def test_a_disk_that_fills_up_leaves_what_was_there(call, copy, posterior, monkeypatch):
    def fail(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(*{"fsync": (os, "fsync", fail), "write_bytes": (Path, "write_bytes", fail)}[call])
    with (
        pytest.raises(OSError, match=r"could not be written \(No space left on device\)"),
        new_folder(copy / "p", replaces=lambda path: True) as folder,
    ):
        (folder / "file").write_bytes(b"")
    monkeypatch.undo()
    bnn.load(copy / "p")
    assert sorted(path.name for path in copy.iterdir()) == ["m", "p"]


def test_everything_is_on_the_disk_before_it_takes_its_name_and_the_name_after(tmp_path, posterior, monkeypatch):
    events = []
    fsync, rename = os.fsync, Path.rename

    def note_sync(handle):
        events.append(("sync", Path(os.readlink(f"/proc/self/fd/{handle}")).name))
        fsync(handle)

    def note_rename(path, target):
        events.append(("rename", Path(target).name))
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "rename", note_rename)
    bnn.save(bnn.Mixture([posterior]), tmp_path / "p")
    assert sorted(events[:5]) == [
        ("sync", name) for name in sorted(["member_000", *[files.SETTINGS] * 2, files.TENSORS, "p"])
    ]
    assert events[4:] == [("sync", "p"), ("rename", "p"), ("sync", tmp_path.name)]


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_that_cannot_sync_is_no_error(code, tmp_path, monkeypatch):
    def fail(handle):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    with new_folder(tmp_path / "p"):
        pass
    assert (tmp_path / "p").is_dir()


def test_a_replaced_folder_survives_an_error(tmp_path):
    old = tmp_path / "p"
    old.mkdir()
    (old / "old").write_text("")
    with (
        pytest.raises(InputError, match="is not a run folder, so it is not overwritten"),
        new_folder(old, replaces=lambda path: False),
    ):
        pass
    with pytest.raises(FileNotFoundError, match="nothing"), new_folder(tmp_path / "q"):
        (tmp_path / "nothing").read_text()
    with new_folder(old, replaces=lambda path: True) as folder:
        (folder / "new").write_text("")
    assert [path.name for path in old.iterdir()] == ["new"]

    def replace_by_nothing():
        with new_folder(old, replaces=lambda path: True) as folder:
            folder.rmdir()

    with pytest.raises(OSError, match="No such file"):
        replace_by_nothing()
    assert [path.name for path in old.iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["p"]
