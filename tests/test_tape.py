"""Tapes beside ATen: operations over shapes, strides, types and special values, and programs that write in place."""

import _thread
import operator
import signal
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrobnn._core.errors import NotCapturable
from pyrobnn.inference.capture.graph import drop_unused, interpreted, lift_constants, record, slope
from pyrobnn.tape import runner
from pyrobnn.tape.plan import Tape
from pyrobnn.tape.values import UNARY

F32, F64 = torch.float32, torch.float64
BOUNDS = {F32: 1e-5, F64: 1e-12}
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 1e-40, -1e-40, 1e-30, -1e-30, 1e-6, 20.0, 88.0, 89.0, -88.0, -104.0, 1e10]
SPECIAL += [-1e10, 1e30, -1e30, float("inf"), float("-inf"), float("nan"), 3.7, -2.2, 0.1, 100.0, -100.0]


def taped(step, inputs):
    """The loop of a step as a tape."""
    graph = record(step, inputs)
    return Tape(graph, drop_unused(graph, [*inputs, *lift_constants(graph)])).run


def result(function, *inputs):
    out = torch.zeros_like(function(*inputs))

    def step(out, *inputs):
        out.copy_(function(*inputs))
        return ()

    taped(step, [out, *inputs])(1)
    return out


def assert_as_aten(function, *inputs, least=0.0):
    """Entries may differ by the bound times `least`, too, where terms of that size cancel."""
    before = [value.clone() for value in inputs]
    found, expected = result(function, *inputs), function(*inputs)
    bound = BOUNDS.get(expected.dtype, 0.0)
    finite = expected[expected.isfinite()].abs() if expected.is_floating_point() else expected.new_zeros(0)
    atol = bound * float(finite.max()) * 1e-3 + 1.2e-38 if finite.numel() and bound else 1.2e-38 if bound else 0.0
    torch.testing.assert_close(found, expected, rtol=bound, atol=max(atol, bound * least), equal_nan=True)
    for value, old in zip(inputs, before, strict=True):
        torch.testing.assert_close(value, old, rtol=0, atol=0, equal_nan=True)


FUNCTIONS = {name: getattr(torch, name) for name in UNARY}
FUNCTIONS |= {
    "softplus": torch.nn.functional.softplus,
    "logsigmoid": torch.nn.functional.logsigmoid,
    "silu": torch.nn.functional.silu,
    "elu": torch.nn.functional.elu,
    "square": torch.square,
    "cube": lambda x: x**3,
    "power": lambda x: x.abs() ** 1.5,
    "sign": torch.sign,
    "clamp": lambda x: x.clamp(-1.0, 2.0),
    "where": lambda x: torch.where(x > 0.5, x, -x),
    "is less": lambda x: (x < 1).to(x.dtype),
    "masked": lambda x: x.masked_fill(x == 1.0, 7.0),
}


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values_are_those_of_aten(name, dtype):
    """Left out: sines of large numbers, with few right digits, and denormal numbers where zero has another result."""
    x = torch.tensor(SPECIAL, dtype=dtype)
    if name in ("sin", "cos"):
        x = x[~(x.abs() > 1e6)]
    if name in ("log", "rsqrt", "reciprocal", "lgamma", "sqrt", "sign"):
        x = x[~((x != 0) & (x.abs() < 1e-37))]
    assert_as_aten(FUNCTIONS[name], x)


SIZES = st.lists(st.integers(0, 4), max_size=3)


@st.composite
def tensors(draw, size=None, dtype=None):
    """A tensor of any layout: permuted, with gaps, broadcast, or empty."""
    size = draw(SIZES) if size is None else size
    dtype = draw(st.sampled_from([F32, F64])) if dtype is None else dtype
    order = draw(st.permutations(range(len(size))))
    gap = draw(st.integers(1, 2))
    seed = draw(st.integers(0, 10_000))
    wide = [size[d] * gap for d in order]
    value = torch.randn(wide, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    value = value[tuple(slice(None, None, gap) for _ in wide)].permute([list(order).index(d) for d in range(len(size))])
    spread = draw(st.sampled_from([None, *range(len(size))]))
    if spread is not None and size[spread] > 0:
        value = value.narrow(spread, 0, 1).expand(size)
    return value


@st.composite
def pairs(draw):
    """Two tensors that broadcast."""
    size, dtype = draw(SIZES), draw(st.sampled_from([F32, F64]))
    other = [1 if draw(st.booleans()) else n for n in size][draw(st.integers(0, len(size))) :]
    return draw(tensors(size, dtype)), draw(tensors(other, dtype))


BINARY = [operator.add, operator.sub, operator.mul, torch.maximum, torch.minimum, operator.lt, torch.true_divide]


@settings(max_examples=60, deadline=None)
@given(pairs(), st.sampled_from(BINARY))
def test_operations_on_two_tensors_broadcast_as_those_of_aten(pair, function):
    assert_as_aten(function, *pair)
    assert_as_aten(lambda a, b: function(b, a), *pair)


REDUCTIONS = [
    lambda x: x.sum(),
    lambda x: x.mean(),
    lambda x: x.sum(-1),
    lambda x: x.sum(0, keepdim=True),
    lambda x: torch.tanh(x).sum(0) + x.exp().sum(0),
    lambda x: torch.logsumexp(x, -1),
    lambda x: torch.log_softmax(x, -1),
    lambda x: torch.softmax(x, 0),
]


@settings(max_examples=60, deadline=None)
@given(tensors(), st.sampled_from(REDUCTIONS))
def test_reductions_are_those_of_aten(x, function):
    if x.ndim and x.numel():
        assert_as_aten(function, x, least=10.0)


SINGLE = {
    "softmax of a number": lambda x: x[0] * torch.softmax(2 * x[0], 0),
    "log softmax of a number": lambda x: x[0] * torch.log_softmax(2 * x[0], 0),
    "a slice from before the first row": lambda x: torch.ops.aten.slice.Tensor(x, 0, -10, 2),
    "a slice of the last row": lambda x: x[-1:],
    "parts that are joined in another order": lambda x: torch.cat([*reversed(x.exp().split(1))]),
    "a row many times": lambda x: x[:1][torch.tensor([0, 0, 0])],
    "one number times a vector": lambda x: (x[:1, None] @ x[None]) @ x[:, None],
    "a column as a class": lambda x: torch.log_softmax(x[:, None], -1).gather(1, torch.zeros(3, 1, dtype=int)) + x,
}


@pytest.mark.parametrize("name", SINGLE)
def test_values_and_slopes_of_single_numbers_and_rows_are_those_of_aten(name):
    x = torch.tensor([0.3, -1.2, 0.7], dtype=F64)
    assert_as_aten(SINGLE[name], x)

    def step(out, x):
        gradients, _ = slope(lambda values: (SINGLE[name](values["x"]).square().sum(), ()), {"x": x})
        out.copy_(gradients["x"])
        return ()

    out = torch.zeros_like(x)
    taped(step, [out, x])(1)
    x.requires_grad_()
    torch.testing.assert_close(out, torch.autograd.grad(SINGLE[name](x).square().sum(), x)[0])


@settings(max_examples=40, deadline=None)
@given(st.data(), st.lists(st.integers(1, 5), min_size=3, max_size=3), st.sampled_from([F32, F64]))
def test_products_are_those_of_aten(data, sizes, dtype):
    rows, inner, columns = sizes
    a, b = data.draw(tensors([rows, inner], dtype)), data.draw(tensors([inner, columns], dtype))
    assert_as_aten(torch.matmul, a, b, least=10.0)
    assert_as_aten(lambda a, b: torch.addmm(a[:, :1], a, b), a, b, least=10.0)
    assert_as_aten(lambda a, b: torch.bmm(a.expand(3, rows, inner), b.expand(3, inner, columns)), a, b, least=10.0)


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_products_are_those_of_aten_where_torch_does_not_show_its_blas(dtype, monkeypatch):
    own = runner.products()
    runner.products.cache_clear()
    monkeypatch.setattr(torch, "__file__", "/nowhere/__init__.py")
    assert set(runner.products()).isdisjoint(own)
    monkeypatch.undo()
    a, b = torch.randn(5, 7, dtype=dtype), torch.randn(7, 3, dtype=dtype)
    assert_as_aten(torch.matmul, a, b, least=10.0)
    runner.products.cache_clear()


PIECES = {
    "unary": lambda t, i, j: torch.tanh(t[i]),
    "sum": lambda t, i, j: t[i] + t[j],
    "product": lambda t, i, j: t[i] * t[j].flip(0),
    "matrix": lambda t, i, j: t[i] @ t[j],
    "turned": lambda t, i, j: t[i].t(),
    "row": lambda t, i, j: t[i][:1].expand(3, 3),
    "joined": lambda t, i, j: torch.cat([t[i][:2], t[j][2:]]),
    "split": lambda t, i, j: torch.cat([part.exp().clamp(max=2) for part in t[i].reshape(9).split([4, 5])]).view(3, 3),
    "total": lambda t, i, j: t[i].sum(0, keepdim=True).expand(3, 3),
    "copied": lambda t, i, j: t[i].copy_(t[j].clone()),
    "halved": lambda t, i, j: t[i].mul_(0.5),
    "rows added": lambda t, i, j: (t[i][1:].add_(t[j][:2].clone()), t[i])[1],
    "corner": lambda t, i, j: (t[i][:2, :2].copy_(t[j][1:, 1:].clone()), t[i])[1],
    "row put": lambda t, i, j: t[i].index_copy_(0, torch.tensor([1]), t[j][:1].clone()),
}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(list(PIECES)), st.integers(0, 20), st.integers(0, 20)), max_size=9))
def test_programs_that_write_in_place_end_with_the_tensors_of_aten(program):
    """Three matrices, read and written through views, copies and parts; two runs of each program."""

    def step(*inputs):
        state = list(inputs)
        for name, i, j in program:
            first, second = i % len(state), j % len(state)
            if name in ("copied", "halved", "rows added", "corner", "row put"):
                first %= 3
            state.append(PIECES[name](state, first, second))
        inputs[2].copy_(torch.stack(state[3:] or [inputs[0]]).mean(0).clamp(-2.0, 2.0))
        return ()

    start = [torch.randn(3, 3, generator=torch.Generator().manual_seed(k), dtype=F64) for k in range(3)]
    found, expected = [value.clone() for value in start], [value.clone() for value in start]
    loop = taped(step, found)
    assert all(map(torch.equal, found, start))
    loop(2)
    for _ in range(2):
        step(*expected)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9, equal_nan=True)


def test_a_tape_reads_and_writes_where_data_are_now_and_raises_the_errors_of_aten():
    x, out = torch.ones(3), torch.zeros(3)
    loop = taped(lambda x, out: (out.add_(x), ())[1], [x, out])
    loop(1)
    x.data, out.data = torch.full((3,), 5.0), torch.full((3,), 10.0)
    loop(2)
    assert out.tolist() == [20.0] * 3
    index, out = torch.tensor([0, 1]), torch.zeros(2)
    loop = taped(lambda x, index, out: (out.copy_(torch.take(x, index)), ())[1], [x, index, out])
    index.fill_(7)
    with pytest.raises(IndexError):
        loop(1)


def test_a_tensor_shown_in_another_type_is_left_to_aten():
    x, out = torch.tensor([1 + 2j, 3j]), torch.zeros(4)
    graph = record(lambda x, out: (out.copy_(x.view(F32)), ())[1], [x, out])
    with pytest.raises(NotCapturable, match="beyond its tensors"):
        Tape(graph, [x, out])
    interpreted(graph, [x, out])(1)
    assert out.tolist() == [1.0, 2.0, 0.0, 3.0]


@pytest.mark.parametrize("threads", [1, 2])
def test_large_steps_have_the_same_bits_whatever_the_number_of_threads(threads):
    """A step of 2^18 numbers, beside one thread."""
    before = torch.get_num_threads()
    found = []
    for count in (1, threads):
        torch.set_num_threads(count)
        x = torch.linspace(-3, 3, 2**18)
        taped(lambda x: (x.copy_(torch.sin(x) * x.exp() + x.sum() / 2**18), ())[1], [x])(3)
        found.append(x)
    torch.set_num_threads(before)
    assert torch.equal(*found)


@pytest.mark.parametrize("size", [(1, 1), (1, 6), (5, 1)])
@pytest.mark.parametrize("side", ["left", "right"])
def test_products_with_factors_whose_rows_or_columns_repeat_are_those_of_aten(size, side):
    """As the states of zeros that a recurrent layer begins with; infinities times 0 are NaN."""

    def step(x, out):
        repeated = x[: size[0], : size[1]].expand(5, 6) if side == "left" else x[: size[1], : size[0]].expand(6, 5)
        zeros = torch.zeros(1).expand(5, 6)
        other = x[:6] if side == "left" else x[:, :6]
        out.add_((repeated @ other if side == "left" else other @ repeated).sum() + (zeros @ x[:6]).sum())
        return ()

    generator = torch.Generator().manual_seed(0)
    for worst in (1.0, torch.inf):
        x = torch.randn(8, 8, generator=generator)
        x[3, 3] = worst
        found, expected = torch.zeros(1), torch.zeros(1)
        taped(step, [x, found])(3)
        for _ in range(3):
            step(x, expected)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_an_interrupt_between_the_operations_of_a_step_is_one():
    """It arrives while the library works, just before an operation of ATen, and not as an error of the step."""

    def step(x, square, out):
        square.copy_(x @ x)
        out.copy_(torch.take(square, torch.tensor([0])))
        return ()

    loop = taped(step, [torch.eye(300), torch.zeros(300, 300), torch.zeros(1)])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for _ in range(3):
            threading.Timer(0.02, _thread.interrupt_main).start()
            with pytest.raises(KeyboardInterrupt):
                loop(10**9)
    finally:
        signal.signal(signal.SIGINT, before)
