"""Numbers with their nouns."""

import re
from pathlib import Path

import pytest

import pyrobnn
from pyrobnn._core.counts import counted


@pytest.mark.parametrize(
    ("num", "noun", "text"),
    [
        (0, "row", "0 rows"),
        (1, "row", "1 row"),
        (2, "NaN or infinite value", "2 NaN or infinite values"),
        (1, "class", "1 class"),
        (3, "class", "3 classes"),
        (1200, "step", "1,200 steps"),
    ],
)
def test_nouns_follow_their_number(num, noun, text):
    assert counted(num, noun) == text


def test_no_message_leaves_the_number_open():
    """Such as "1 row(s)"."""
    (root,) = map(Path, pyrobnn.__path__)
    lines = [line for file in root.rglob("*.py") for line in file.read_text().splitlines()]
    assert not [line for line in lines if re.search(r"[a-z]\((s|es)\)[ ,:.\"]", line)]
