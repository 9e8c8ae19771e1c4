"""Questions about columns of a table, to one who knows them."""

import dataclasses
from shlex import quote


@dataclasses.dataclass(frozen=True)
class Question:
    """A question about a column, and what to do.

    Attributes:
        kind: name of the finding, the same for all columns with this question.
        column: the column.
        text: the question, after what the column is like.
        answer: what to do, and for which answer, without options.
        left_out: what such columns are, if the answer is to leave them out; empty otherwise.
    """

    kind: str
    column: str
    text: str
    answer: str
    left_out: str = ""

    @property
    def line(self) -> str:
        """The question and what to do, for the command line."""
        return f"{self.text} {self.answer}{f': --drop {quote(self.column)}' if self.left_out else '.'}"
