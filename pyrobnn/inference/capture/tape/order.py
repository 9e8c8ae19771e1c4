"""The order of values: from the last to the first, each group as late and as large as it can be."""

from pyrobnn.inference.capture.tape.values import EACH, Size, Value, numel

Group = list[Value]


def is_each(value: Value) -> bool:
    """Return whether a value can belong to a group: it works element by element, or adds all of them up."""
    if value.what == "sum":
        return numel(value.place.size) == 1
    return value.what in EACH


def domain(value: Value) -> Size:
    """Return the sizes through which a group of such values goes."""
    return (value.inputs[0] if value.what == "sum" else value.place).squeezed()[0]


def ordered(values: list[Value]) -> list[Group]:
    """Return values in groups, in an order in which they can be computed."""
    alive, left = set(values), dict.fromkeys(values, 0)
    before = {
        value: {r.value for r in value.inputs if r.value in alive} | {o for o in value.before if o in alive}
        for value in values
    }
    after: dict[Value, set[Value]] = {value: set() for value in values}
    for value in values:
        for other in before[value]:
            after[other].add(value)
            left[other] += 1
    groups: list[Group] = []
    alone, together = list[Value](), dict[Size, list[Value]]()

    def ready(value: Value) -> None:
        if is_each(value):
            together.setdefault(domain(value), []).append(value)
        else:
            alone.append(value)

    def done(value: Value) -> None:
        for other in sorted(before[value], key=lambda v: -v.order):
            left[other] -= 1
            if not left[other]:
                ready(other)

    for value in reversed(values):
        if not left[value]:
            ready(value)
    while alone or together:
        if alone:
            value = alone.pop(0)
            groups.append([value])
            done(value)
            continue
        size = min(together, key=numel)
        members = dict[Value, None]()
        waiting = list[Value]()
        while together.get(size):
            value = together[size].pop(0)
            if all(_is_aligned(value, user) for user in after[value] if user in members):
                members[value] = None
                done(value)
            else:
                waiting.append(value)
        del together[size]
        if waiting:
            together[size] = waiting
        groups.append(list(members))
    groups.reverse()
    return groups


def _is_aligned(value: Value, user: Value) -> bool:
    """Return whether one of a group may use, or overwrite, another's numbers block by block."""
    for ref in user.inputs:
        if ref.value is value and (value.what == "sum" or ref.where() != value.place.where()):
            return False
    if value.next is user and user.place.where() != value.place.where():
        return False
    return all(ref.where() == user.place.where() for ref in value.inputs if ref.value.next is user)
