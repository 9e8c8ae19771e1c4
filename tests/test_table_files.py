"""Tables of the user's own that name or hold what cannot be used."""

import datetime
import decimal

import pandas as pd
import pytest

from pyrobnn import InputError, _checks
from pyrobnn.datasets import load_table
from pyrobnn.nets import MLP
from pyrobnn.spec import RunSpec


@pytest.mark.parametrize(
    ("value", "kind"),
    [(b"\xff", "bytes"), ([1], "ndarray"), (decimal.Decimal(1), "Decimal"), (datetime.time(1), "time")],
    ids=["bytes", "list", "decimal", "time"],
)
def test_targets_that_are_neither_text_nor_numbers_are_refused(value, kind, tmp_path):
    pd.DataFrame({"a": [0.0, 1.0], "y": [value, value]}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(InputError, match=f"holds neither text nor numbers but .* of the kind {kind}: turn it into"):
        load_table(tmp_path / "t.parquet", "y")


@pytest.mark.parametrize("text", ["a\0b,y\n1,2\n3,4\n", "a,y\n1,k\0l\n2,m\n"], ids=["column", "class"])
def test_names_with_a_null_character_are_refused(text, tmp_path):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(InputError, match=r"has a column or class with a null character, '.*': rename it") as caught:
        load_table(tmp_path / "t.csv", "y")
    assert "\0" not in str(caught.value)


def test_two_columns_with_one_name_are_refused(tmp_path):
    import pyarrow
    import pyarrow.parquet

    columns = [pyarrow.array([0.0, 1.0])] * 3
    pyarrow.parquet.write_table(pyarrow.table(columns, names=["a", "a", "y"]), tmp_path / "t.parquet")
    with pytest.raises(InputError, match="has two columns with the name 'a'|cannot be read as a table"):
        load_table(tmp_path / "t.parquet", "y")


def test_columns_whose_names_become_one_as_text_are_refused(tmp_path, monkeypatch):
    (tmp_path / "t.parquet").write_bytes(b"")
    frame = pd.DataFrame([[0.0, 1.0, 2.0]], columns=["1", "y", "z"]).rename(columns={"z": 1})
    monkeypatch.setattr(pd, "read_parquet", lambda path: frame)
    with pytest.raises(InputError, match="has two columns with the name '1'"):
        load_table(tmp_path / "t.parquet", "y")


@pytest.mark.parametrize("width", [10**9, 10**18, 2**62])
def test_a_network_that_does_not_fit_into_the_machine_is_refused_before_it_is_made(width):
    spec = RunSpec.from_dict({"data": {"name": "sinusoid"}, "net": {"hidden": [width, width]}})
    with pytest.raises(InputError, match=r"weights or more, for which a fit needs [\d,]+ GiB of memory, and there are"):
        spec.prepare()


def test_the_memory_of_a_fit_is_that_of_the_machine_or_assumed(monkeypatch):
    _checks.check_size(MLP(1, [3], 1))
    monkeypatch.setattr(_checks, "_memory", lambda: 10 * 48)
    _checks.check_size(MLP(1, [3], 1))  # 10 weights
    with pytest.raises(InputError, match="has 13 weights or more"):
        _checks.check_size(MLP(1, [4], 1))
    monkeypatch.undo()
    monkeypatch.delattr(_checks.os, "sysconf")
    assert _checks._memory() == 64 * 2**30


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": 1.0}, "The prior 'from_posterior' does not take these settings: .*'scale'"),
        ({"moments": 3}, "`moments` must be pairs of tensors, mean and standard deviation, by"),
        ({"moments": {"0.weight": [1.0, 2.0]}}, "`moments` must be pairs of tensors"),
    ],
    ids=["unknown", "number", "lists"],
)
def test_a_prior_that_only_a_posterior_can_make_is_refused_in_a_spec(options, message):
    with pytest.raises(InputError, match=message):
        RunSpec.from_dict({"data": {"name": "sinusoid"}, "prior": {"type": "from_posterior"} | options})


def test_classes_without_bounds_are_refused():
    with pytest.raises(InputError, match="less than or equal to 10000"):
        RunSpec.from_dict({"data": {"name": "sinusoid"}, "likelihood": {"type": "ordinal", "num_classes": 10**18}})


@pytest.mark.parametrize(
    ("section", "table", "message"),
    [
        ("prior", {"type": "normal", "scale": 1e308}, r"Normal: `scale` must lie within ±3.4e\+38"),
        ("likelihood", {"type": "gaussian", "scale": [0.5, 1e39]}, "Gaussian: `scale` must lie within"),
        ("guide", {"type": "mean_field", "init_rho": -1e200}, "MeanField: `init_rho` must lie within"),
        ("fit", {"steps": 10**40}, r"SVI: `steps` must be a whole number of 64 bits, got 1000"),
    ],
)
def test_numbers_beyond_the_machine_are_refused(section, table, message):
    with pytest.raises(InputError, match=message):
        RunSpec.from_dict({"data": {"name": "sinusoid"}, section: table})
