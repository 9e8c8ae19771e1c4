"""Numbers with their nouns, for messages."""


def counted(num: int, noun: str) -> str:
    """Return a number with its noun, which has a regular plural: 1 row, 1,200 rows."""
    return f"{num:,} {noun}" if num == 1 else f"{num:,} {noun}{'es' if noun.endswith('s') else 's'}"
