"""From a recorded graph to values, without what only moves or repeats.

Views are metadata, constants are folded, what is computed twice is computed once, uniform numbers are computed as one,
and a vector that is split, changed part by part and joined again is changed as a whole.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import getitem
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from pyrobnn.tape.algebra import Algebra, broadcast
from pyrobnn.tape.values import CALL, CHANGING_CALL, KINDS, NATIVE, Outside, Ref, Storage, Value, View, numel, read_by

_aten = torch.ops.aten
_IN_PLACE_VIEWS = (
    *(_aten.squeeze_.dim, _aten.squeeze_.dims, _aten.squeeze_.default),
    *(_aten.unsqueeze_.default, _aten.t_.default, _aten.transpose_.default),
)
"""Operations that change how a tensor shows its numbers, and no number."""
Rule = Callable[..., Any]


class _Base(NamedTuple):
    """What a recorded storage is: as its first tensor was laid out there, it is these numbers."""

    ref: Ref
    view: View


class Fold(Algebra):
    """Reads a graph, as `record` makes it, node by node; `inputs` are the tensors that stand for its placeholders.

    `rules` map names of operations to functions of this, a node and its arguments, which return what the node is:
    numbers, a list of these, None where it changed something in place, or `NotImplemented`. `views` are the sizes
    and strides of the tensors of nodes, as they were recorded.
    """

    def __init__(self, graph: fx.GraphModule, inputs: list[Tensor], rules: Mapping[str, Rule]) -> None:
        super().__init__()
        self._last_draw: Value | None = None
        self._rules = rules
        self._bases: dict[Any, _Base] = {}
        self.views: dict[fx.Node, View] = {}
        nodes = list(graph.graph.nodes)
        self._look_ahead(graph, nodes, inputs)
        tensors = iter(inputs)
        for index, node in enumerate(nodes):
            self._index = index
            if node.op == "placeholder":
                self._enter(node, next(tensors))
            elif node.op == "get_attr":
                self._enter(node, getattr(graph, node.target))
            elif node.op == "call_function":
                self._do(node)

    def result(self) -> list[Value]:
        """Return what there is to compute for the tensors that the graph changes, in an order in which that works."""
        readers = read_by(self._values)
        for value in [*readers, *self._values]:
            if value.next is not None:
                writer = value.next.inputs[0].value if value.next.what == "part" else value.next
                writer.before += [value, *(reader for reader in readers.get(value, ()) if reader is not writer)]
        alive: set[Value] = set()
        stack = [value for value in self._values if value.storage.tensor is not None or value.what == CHANGING_CALL]
        while stack:
            value = stack.pop()
            if value not in alive and value.what not in ("input", "number"):
                alive.add(value)
                stack += [ref.value for ref in value.inputs]
                stack += [other for other in value.before if other.next is value]
        for order, value in enumerate(self._values):
            value.order = order
            value.before = [other for other in value.before if other in alive]
        return [value for value in self._values if value in alive]

    # ------------------------------------------------------------------------------------------- nodes and storages

    def _look_ahead(self, graph: fx.GraphModule, nodes: list[fx.Node], inputs: list[Tensor]) -> None:
        """Find out which storages are written to, and until when each is used."""
        self._last: dict[Any, int] = {}
        self._written: dict[Any, list[int]] = {}
        for index, node in enumerate(nodes):
            view = self._view_of(node)
            if view is not None:
                self.views[node] = view
            for source in node.all_input_nodes:
                if source in self.views:
                    self._last[self.views[source].storage] = index
            for source in _changed(node):
                self._written.setdefault(self.views[source].storage, []).append(index)

    def _view_of(self, node: fx.Node) -> View | None:
        if "view" in node.meta:
            return node.meta["view"]
        value = node.meta.get("val")
        if not isinstance(value, Tensor):
            return None
        storage = ("val", value.untyped_storage().data_ptr()) if value.numel() else ("node", node)
        return View.of(value, storage)

    def _enter(self, node: fx.Node, tensor: Tensor) -> None:
        view = self.views[node]
        if view.storage not in self._bases:
            flat = tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)
            value = Value("input", (), Storage(KINDS[tensor.dtype], flat.numel(), flat))
            value.place = Ref(value, 0, tuple(flat.shape), (1,))
            here = view._replace(offset=int(tensor.storage_offset()), size=tuple(tensor.shape), stride=tensor.stride())
            self._bases[view.storage] = _Base(Ref(value, *here[1:4]), view)

    def ref(self, node: fx.Node) -> Ref:
        """Return what a node shows now."""
        view, (ref, whole) = self.views[node], self._bases[self.views[node].storage]
        if view.size == whole.size and view.stride == whole.stride and view.offset == whole.offset:
            return ref
        recorded = Ref(ref.value, *whole[1:4])
        if ref.number() is not None or (ref.is_uniform() and not recorded.is_uniform()):
            return Ref(ref.value, ref.offset, view.size, (0,) * len(view.size))
        if ref.squeezed() != recorded.squeezed() and ref.size != ():
            ref = self._materialised(view.storage)
        return Ref(ref.value, view.offset + ref.offset - whole.offset, view.size, view.stride)

    def _materialised(self, storage: Any) -> Ref:
        ref, whole = self._bases[storage]
        new = self.new("same", [ref], whole.dtype, whole.size, whole.stride, whole.offset)
        new.value.storage.changes = storage in self._written
        self._bases[storage] = _Base(new, whole)
        return new

    def _bind(self, node: fx.Node, ref: Ref) -> None:
        """Note what a node with a new storage is."""
        view = self.views[node]
        storage = view.storage
        changes = self._written.get(storage)
        base = _Base(Ref(ref.value, ref.offset, view.size, broadcast(ref, view.size).stride), view)
        self._bases[storage] = base
        if changes is not None or self._is_overwritten(ref, self._last.get(storage, 0)):
            self._materialised(storage)

    def _is_overwritten(self, ref: Ref, until: int) -> bool:
        """Return whether numbers change while they are in use under another name."""
        if ref.value.storage.tensor is None and not ref.value.storage.changes:
            return False
        return any(
            base.ref.value.storage is ref.value.storage
            and any(self._index < at <= until for at in self._written.get(key, ()))
            for key, base in self._bases.items()
        )

    def write(self, key: Any, target: Ref, what: str, inputs: Sequence[Ref]) -> None:
        """Add a value that overwrites numbers of a storage."""
        if not numel(target.size):
            return
        before = self._bases[key].ref.value
        value = Value(what, inputs, before.storage)
        value.place = Ref(value, *target[1:])
        before.next = value
        self._values.append(value)
        for other, (ref, whole) in list(self._bases.items()):
            if ref.value is before:
                self._bases[other] = _Base(Ref(value, *ref[1:]), whole)

    def overwritten(self, node: fx.Node, start: Ref, target: Ref, what: str, inputs: Sequence[Ref]) -> Ref:
        """Add a value, the result of a node, that overwrites some numbers of a new one; return all of them."""
        self._bases[node] = _Base(start, self.views[node])
        self.write(node, target, what, inputs)
        return self._bases.pop(node).ref

    def _outside(self, node: fx.Node) -> None:
        """Leave an operation to ATen."""
        keys = [self.views[source].storage for source in _changed(node)]
        for key in keys:
            value = self._bases[key].ref.value
            if value.storage.tensor is None and value.what in ("number", "input"):
                self._materialised(key)
        refs: list[Ref] = []
        fx.map_arg((node.args, node.kwargs), lambda source: refs.append(self.ref(source)))
        is_random = torch.Tag.nondeterministic_seeded in node.target.tags  # type: ignore[union-attr]
        call = Value(CHANGING_CALL if keys or is_random else CALL, refs, Storage("b8", 0))
        parts: list[tuple[int | None, Value]] = []
        call.call = Outside(node, refs, parts)
        if is_random:
            call.before += [] if self._last_draw is None else [self._last_draw]
            self._last_draw = call
        call.place = Ref(call, 0, (), ())
        self._values.append(call)
        results = [node] if node in self.views else [user for user in node.users if user in self.views]
        for result in results:
            view = self.views[result]
            if view.storage in self._bases:
                continue
            ref = self.new("part", [call.place], view.dtype, view.size, view.stride, view.offset)
            ref.value.storage.changes = view.storage in self._written
            self._bases[view.storage] = _Base(ref, view)
            parts.append((None if result is node else result.args[1], ref.value))  # type: ignore[arg-type]
        for key in dict.fromkeys(keys):
            whole = self._bases[key].ref
            self.write(key, whole, "part", [call.place])

    def _do(self, node: fx.Node) -> None:
        target: Any = node.target
        self._find_source(node)
        if target is getitem or (node not in self.views and not target._schema.is_mutable and _is_view(target)):
            return
        view = self.views.get(node)
        if view is not None and view.storage in self._bases and not _changed(node):
            return  # a view
        name = f"{target._schema.name.split('::')[1]}.{target._overloadname}"
        rule = self._rules.get(name)
        shown = [self.views[n] for n in (node, *node.all_input_nodes) if n in self.views]
        known = all(view.dtype in NATIVE for view in shown)
        if rule is not None and known:
            args = fx.map_arg(node.args, self._ref_or_node)
            kwargs = fx.map_arg(node.kwargs, self._ref_or_node)
            result = rule(self, node, *args, **kwargs)
            if isinstance(result, list):
                for user in node.users:
                    self._bind(user, result[user.args[1]])  # type: ignore[index]
                return
            if result is not NotImplemented:
                if result is not None:
                    self._bind(node, result)
                return
        self._outside(node)

    def _find_source(self, node: fx.Node) -> None:
        """Note what a view of a storage shows whose first tensor was replaced by another."""
        view, source = self.views.get(node), node
        while source.op == "call_function" and (source.target is getitem or _is_view(source.target)):
            source = source.args[0]  # type: ignore[assignment]
        if view is not None and view.storage not in self._bases and source is not node and source in self.views:
            self._bases[view.storage] = _Base(self.ref(source), self.views[source]._replace(offset=0))

    def _ref_or_node(self, node: fx.Node) -> Any:
        return self.ref(node) if node in self.views else node


def _changed(node: fx.Node) -> list[fx.Node]:
    """Return the tensors that an operation writes to."""
    if node.op != "call_function" or node.target is getitem or node.target in _IN_PLACE_VIEWS:
        return []
    schema = node.target._schema  # type: ignore[union-attr]
    sources: list[fx.Node] = []
    if schema.is_mutable:
        for place, argument in enumerate(schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                given = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
                fx.map_arg(given, sources.append)
    elif node.target is _aten.native_batch_norm.default:
        sources = [source for source in node.args[3:5] if isinstance(source, fx.Node)]
    return sources


def _is_view(target: Any) -> bool:
    shares = any(result.alias_info is not None for result in target._schema.returns)
    return target in _IN_PLACE_VIEWS or (shares and not target._schema.is_mutable)
