"""The size of the house: lines of each room and of all, from the table of budgets in docs/architecture.md."""

import re
from pathlib import Path

import pytest

import pyrobnn

PACKAGE = Path(pyrobnn.__file__).parent
ROOT = PACKAGE.parent
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
BUDGETS = re.findall(r"^\| (.+?) \| ([\d,]+) (lines|files) \|", PAGE, re.MULTILINE)
"""Names of rooms and of folders, of which those after a "without" do not count, and what they may have at most."""


def files_of(text):
    counted, left_out = (re.findall(r"`([\w/]+)`", part) for part in text.partition(" without ")[::2])
    return sorted(
        {path for name in counted for path in files_in(name)} - {p for name in left_out for p in files_in(name)}
    )


def files_in(name):
    """Python files of a room, or of a folder beside the package."""
    place = next((place for place in (PACKAGE / name, ROOT / name) if place.is_dir()), None)
    found = [PACKAGE / f"{name}.py"] if place is None else sorted(place.rglob("*.py"))
    assert found, name
    return found


def size_of(text, unit):
    files = files_of(text)
    return len(files) if unit == "files" else sum(path.read_bytes().count(b"\n") for path in files)


@pytest.mark.parametrize(("text", "most", "unit"), BUDGETS, ids=[f"{row[0]} {row[2]}" for row in BUDGETS])
def test_it_keeps_to_its_budget(text, most, unit):
    """Before more lines, look for what they replace."""
    assert size_of(text, unit) <= int(most.replace(",", ""))


def test_every_file_of_the_package_counts_once_in_a_room():
    rooms = [path for text, _, unit in BUDGETS if unit == "lines" for path in files_of(text) if PACKAGE in path.parents]
    of_all = [*PACKAGE.rglob("*.py")]
    assert sorted(rooms) == sorted([*of_all, *of_all])  # in its room, and in the sum
