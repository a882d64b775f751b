"""Models that try to hide a parameter from the tape: right all the same, and what took a slower path is named."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from agreement import EXACT, Net, assert_agree, assert_same, cross_entropy, parameter, run, slower
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hush.gradients import Ghost, Loop, Memory, Vmap, clipped_sum

N = 5


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(20)


def batch(*shape: int) -> tuple[Tensor, Tensor]:
    return torch.randn(N, *(shape or (4,))), torch.randint(0, 3, (N,))


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return grads[0] @ w.T, x.T @ grads[0]


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, w: Tensor) -> Tensor:
        return w.round(decimals=1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


def scripted(module: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(module)


class TestSlowerPathsAreNamed:
    def test_a_scripted_module(self) -> None:
        model = nn.Sequential(scripted(nn.Linear(4, 4).double()), nn.Tanh(), nn.Linear(4, 3))
        notes = assert_agree(model, batch(), single=False)
        assert [note.split(":")[0] for note in slower(notes)] == ["parameter 0 by loop", "parameter 1 by loop"]

    def test_a_custom_function(self) -> None:
        model = Net(lambda s, x: Product.apply(torch.tanh(s.a(x)), s.w), w=parameter(4, 3), a=nn.Linear(4, 4))
        (note,) = slower(assert_agree(model, batch()))
        assert note.startswith("parameter 0 ")

    def test_a_custom_function_beside_a_use_that_is_seen(self) -> None:
        model = Net(lambda s, x: Product.apply(torch.tanh(s.a(x)), s.w) + x @ s.w, w=parameter(4, 3), a=nn.Linear(4, 4))
        (note,) = slower(assert_agree(model, batch()))
        assert note.startswith("parameter 0 ")

    def test_a_custom_function_deep_inside_other_modules(self) -> None:
        inner = Net(lambda s, x: Product.apply(x, s.w), w=parameter(4, 4))
        model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), inner), nn.Linear(4, 3))
        (note,) = slower(assert_agree(model, batch()))
        assert note.startswith("parameter 2 ")

    @pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
    def test_packed_sequences(self, kind: type[nn.RNNBase]) -> None:
        def forward(s: Any, x: Tensor) -> Tensor:
            lengths = (x[:, 0, 0].abs() * 3).long().clamp(1, 6)
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            out, _ = nn.utils.rnn.pad_packed_sequence(s.r(packed)[0], batch_first=True)
            return s.o(out.sum(1))

        notes = assert_agree(Net(forward, r=kind(4, 3, batch_first=True), o=nn.Linear(3, 3)), batch(6, 4))
        assert len(slower(notes)) == 4  # the recurrent layer's; the linear layer stays fast

    def test_an_operation_on_transposed_data(self) -> None:
        (note,) = slower(assert_agree(Net(lambda s, x: (s.w @ x.T).T, w=parameter(3, 4)), batch()))
        assert note.startswith("parameter 0 by vmap")

    def test_losses_that_differentiate(self) -> None:
        def penalised(model: nn.Module) -> Callable[..., Tensor]:
            def losses(x: Tensor, y: Tensor) -> Tensor:
                x = x.clone().requires_grad_()
                out = model(x)
                (slope,) = torch.autograd.grad(out.logsumexp(1).sum(), x, create_graph=True)
                return F.cross_entropy(out, y, reduction="none") + slope.square().flatten(1).sum(1)

            return losses

        for model, shape in (
            (nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), (4,)),
            (Net(lambda s, x: s.o(s.r(x)[0].mean(1)), r=nn.LSTM(4, 3, batch_first=True), o=nn.Linear(3, 3)), (6, 4)),
        ):
            notes = slower(assert_agree(model, batch(*shape), penalised))
            assert len(notes) == len(list(model.parameters()))
            assert all("derivatives of its own" in note for note in notes)

    def test_a_penalty_that_starts_later(self) -> None:
        model = nn.Sequential(nn.Linear(4, 3)).double()
        strength = 0.0

        def losses(x: Tensor, y: Tensor) -> Tensor:
            x = x.clone().requires_grad_()
            out = model(x)
            value = F.cross_entropy(out, y, reduction="none")
            if strength:
                value = value + torch.autograd.grad(out.sum(), x, create_graph=True)[0].square().sum(1)
            return value

        x, y = batch()
        memory = Memory()
        for strength in (0.0, 0.0, 0.0, 0.0, 0.0, 1.0):  # noqa: B007
            found = run(model, losses, (x.double(), y), Ghost(), memory=memory)
            assert_same(found, run(model, losses, (x.double(), y), Loop()), EXACT)


def _added_to_a_view(s: Any, x: Tensor) -> Tensor:
    h = s.a(x)
    h[:, :3].add_(s.b)
    return s.o(torch.tanh(h))


def _filled_by_views(s: Any, x: Tensor) -> Tensor:
    out = torch.zeros(x.shape[0], 6, dtype=x.dtype)
    out[:, :4].copy_(s.a(x)[:, :4])
    return s.o(torch.tanh(out) * s.b.repeat(2))


def _inplace_on_strided(s: Any, x: Tensor) -> Tensor:
    y = torch.stack([x, 2 * x], 1)[:, :1]
    return s.o(F.relu(s.a(y), inplace=True)).mean(1) + s.b


def _written_with_a_parameter(s: Any, x: Tensor) -> Tensor:
    h = s.a(x).clone()
    h[:, :3] = s.b
    return s.o(torch.tanh(h) + s.a(x))


def _sum_begun_by_a_parameter(s: Any, x: Tensor) -> Tensor:
    h = torch.zeros(x.shape[0], 3, dtype=x.dtype) + s.b
    h += s.o(s.a(x))
    return h


def _derivative_inside(s: Any, x: Tensor) -> Tensor:
    slope = torch.func.vmap(torch.func.grad(lambda u: torch.tanh(s.a(u)).sum()))(x)
    return s.o(F.pad(slope, (0, 2))) + s.b


def _tangent_inside(s: Any, x: Tensor) -> Tensor:
    return s.o(torch.func.jvp(lambda u: torch.tanh(s.a(u)), (x,), (torch.ones_like(x),))[1]) + s.b


def _straight_through(s: Any, x: Tensor) -> Tensor:
    h = s.a(x)
    return s.o(h + (h.round() - h).detach()) + s.b


def _partly_without_gradient(s: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        h = s.a(x)
    return s.o(h + s.a(-x)) + s.b


def _through_numpy(s: Any, x: Tensor) -> Tensor:
    return s.o(s.a(torch.as_tensor(torch.tanh(x).numpy()))) + s.b


def _rounded_weights(s: Any, x: Tensor) -> Tensor:
    return s.o(F.linear(x, Rounded.apply(s.a.weight), s.a.bias)) + s.b


def _sorted_inside(s: Any, x: Tensor) -> Tensor:
    order = x[:, 0].argsort()
    return s.o(torch.tanh(s.a(x[order]))[order.argsort()]) + s.b


def _experts(s: Any, x: Tensor) -> Tensor:
    out = torch.zeros(x.shape[0], 6, dtype=x.dtype)
    for side in (True, False):
        index = ((x[:, 0] > 0) == side).nonzero().flatten()
        if len(index):
            out = out.index_add(0, index, s.a(x[index]) * (2 if side else 1))
    return s.o(out) + s.b


def _one_by_one(s: Any, x: Tensor) -> Tensor:
    return torch.stack([s.o(s.a(row)) for row in x]) + s.b


def _flipped(s: Any, x: Tensor) -> Tensor:
    return s.o(torch.tanh(s.a(x.flip(0))).flip(0)) + s.b


def _checkpointed(s: Any, x: Tensor) -> Tensor:
    return s.o(checkpoint(lambda u: torch.tanh(s.a(u)), x, use_reentrant=False)) + s.b


def _copies_of_a_parameter(s: Any, x: Tensor) -> Tensor:
    return s.o(s.a(x)) * torch.stack([s.b] * x.shape[0]) + s.b[None].repeat_interleave(x.shape[0], 0)


def _spectrum(s: Any, x: Tensor) -> Tensor:
    return s.o(s.a(torch.fft.irfft(torch.fft.rfft(x) * s.b, n=4)))


def _complex_weights(s: Any, x: Tensor) -> Tensor:
    weights = torch.view_as_complex(torch.stack([s.b, s.b.flip(0)], -1))
    return s.o(s.a(torch.fft.irfft(torch.fft.rfft(x) * weights, n=4)))


TRICKS = [value for name, value in list(globals().items()) if name.startswith("_") and callable(value)]
TRICKS = [trick for trick in TRICKS if trick.__module__ == __name__ and trick.__name__ != "_seeded"]


def tricky(trick: Callable[..., Tensor]) -> nn.Module:
    return Net(trick, a=nn.Linear(4, 6), o=nn.Linear(6, 3), b=parameter(3))


@pytest.mark.filterwarnings("ignore:.torch.jit.script")  # torch.func.jvp uses it
@pytest.mark.parametrize("trick", TRICKS, ids=lambda f: f.__name__)
def test_no_gradient_is_lost(trick: Callable[..., Tensor]) -> None:
    assert_agree(tricky(trick), batch(), engines=(Ghost(),), single=False)


@pytest.mark.filterwarnings("ignore:.torch.jit.script")  # torch.func.jvp uses it
@pytest.mark.parametrize("trick", TRICKS, ids=lambda f: f.__name__)
def test_what_is_remembered_stays_right(trick: Callable[..., Tensor]) -> None:
    """Batches of several sizes, the first two in an order that moves nothing, with one memory."""
    model, memory = tricky(trick).double(), Memory()
    for size in (2, 3, 5, 4, 5, 1, 5):
        x, y = torch.randn(size, 4, dtype=torch.float64), torch.randint(0, 3, (size,))
        if size < 4:
            x = x[x[:, 0].argsort()]
        found = run(model, cross_entropy(model), (x, y), Ghost(), memory=memory)
        assert_same(found, run(model, cross_entropy(model), (x, y), Loop()), EXACT)


def test_hooks_on_activations_are_obeyed() -> None:
    def forward(s: Any, x: Tensor) -> Tensor:
        h = s.a(x)
        if h.requires_grad:
            h.register_hook(lambda grad: grad * 2)
        return s.o(h)

    assert_agree(Net(forward, a=nn.Linear(4, 4), o=nn.Linear(4, 3)), batch(), engines=(Ghost(),), single=False)


def test_compiled_models_are_right() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    compiled = torch.compile(copy.deepcopy(model), backend="eager")
    x, y = batch()
    reference = run(model, cross_entropy(model), (x.double(), y), Loop())
    assert_same(run(compiled, cross_entropy(compiled), (x.double(), y), Ghost()), reference, EXACT)


class TestRefusals:
    model = nn.Linear(4, 3)

    @pytest.mark.parametrize("engine", [Ghost(), Vmap()])
    def test_losses_that_write_into_their_batch(self, engine: Any) -> None:
        with pytest.raises(ValueError, match="writes into its batch"):
            run(self.model, lambda x, y: cross_entropy(self.model)(x.mul_(2), y), batch(), engine)

    def test_hooks_on_parameters(self) -> None:
        model = nn.Linear(4, 3)
        model.weight.register_hook(lambda grad: grad * 2)
        with pytest.raises(ValueError, match="hook"):
            run(model, cross_entropy(model), batch(), Ghost())

    def test_complex_parameters(self) -> None:
        model = Net(lambda s, x: (x * s.w).real, w=nn.Parameter(torch.randn(4, dtype=torch.complex64)))
        with pytest.raises(ValueError, match="view_as_complex"):
            run(model, cross_entropy(model), batch(), Ghost())

    @pytest.mark.parametrize("engine", [Loop(), Ghost(), Vmap()])
    @pytest.mark.parametrize("reduce", [torch.mean, lambda v: v[:, None], lambda v: float(v.detach().sum())])
    def test_losses_that_are_no_vector(self, engine: Any, reduce: Any) -> None:
        with pytest.raises(ValueError, match="one loss per example"):
            run(self.model, lambda x, y: reduce(cross_entropy(self.model)(x, y)), batch(), engine)

    def test_tensors_of_different_lengths(self) -> None:
        with pytest.raises(ValueError, match="first dimension"):
            run(self.model, cross_entropy(self.model), (torch.randn(4, 4), torch.zeros(3)), Ghost())


@pytest.mark.parametrize("units", [None, torch.tensor([0, 0, 1, 1, 2])], ids=["examples", "units"])
def test_parameters_of_three_precisions_are_summed_under_autocast(units: Tensor | None) -> None:
    torch.manual_seed(0)
    first, second, third = nn.Linear(6, 6).double(), nn.Linear(6, 5), nn.Linear(5, 3).bfloat16()
    parameters = [p for layer in (first, second, third) for p in layer.parameters()]

    def losses(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            hidden = second(first(x.double()).float().tanh()).tanh()
            return third(hidden.bfloat16()).float().square().sum((1, 2))

    given = {"groups": (tuple(range(6)),), "weigh": torch.ones_like, "units": units}
    found, expected = (
        clipped_sum(parameters, losses, (torch.ones(5, 2, 6),), engine=e, **given) for e in (Ghost(), Loop())
    )
    for a, b in zip(found.sums, expected.sums, strict=True):
        assert (a.double() - b.double()).norm() <= 0.02 * b.double().norm()
