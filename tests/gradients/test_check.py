"""What can't be trained privately is refused by name, with the way out; what is slow is said before training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from agreement import Net, parameter
from torch import Tensor, nn

from hush.gradients import check, refuse


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(22)


REFUSED = [
    (nn.BatchNorm1d(4), "GroupNorm"),
    (nn.BatchNorm2d(4), "GroupNorm"),
    (nn.BatchNorm3d(4, affine=False), "GroupNorm"),
    (nn.SyncBatchNorm(4), "GroupNorm"),
    (nn.InstanceNorm1d(4, track_running_stats=True), "track_running_stats=False"),
    (nn.Embedding(5, 4, max_norm=1.0), "max_norm"),
    (nn.EmbeddingBag(5, 4, max_norm=1.0), "max_norm"),
    (nn.Embedding(5, 4, scale_grad_by_freq=True), "scale_grad_by_freq"),
    (nn.EmbeddingBag(5, 4, scale_grad_by_freq=True), "scale_grad_by_freq"),
]


class TestKnownKinds:
    @pytest.mark.parametrize(("module", "way_out"), REFUSED, ids=lambda x: str(x)[:40])
    def test_are_refused_by_name(self, module: nn.Module, way_out: str) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), module))
        with pytest.raises(ValueError, match=rf"1\.1 \({type(module).__name__}\).*{way_out}"):
            refuse(model)

    @pytest.mark.parametrize(
        "module",
        [nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.InstanceNorm1d(4), nn.RMSNorm(4), nn.Embedding(5, 4)],
        ids=str,
    )
    def test_the_replacements_pass(self, module: nn.Module) -> None:
        refuse(module)


def _centred(s: Any, x: Tensor) -> Tensor:
    return s.o(x - x.mean(0))


def _centred_deep_inside(s: Any, x: Tensor) -> Tensor:
    h = torch.tanh(s.a(x))
    return s.o(h - h.mean(0))


def _attending_to_the_batch(s: Any, x: Tensor) -> Tensor:
    return s.o(F.scaled_dot_product_attention(x[None], x[None], x[None])[0])


def _shuffled(s: Any, x: Tensor) -> Tensor:
    return s.o(x) + s.o(x.roll(1, 0))


def _scaled_by_the_largest(s: Any, x: Tensor) -> Tensor:
    return s.o(x / x.abs().max())


def _functional_batch_norm(s: Any, x: Tensor) -> Tensor:
    return s.o(F.batch_norm(x, None, None, training=True))


class TestMixing:
    @pytest.mark.parametrize(
        "forward",
        [
            _centred,
            _centred_deep_inside,
            _attending_to_the_batch,
            _shuffled,
            _scaled_by_the_largest,
            _functional_batch_norm,
        ],
        ids=lambda f: f.__name__,
    )
    def test_is_found_by_derivatives(self, forward: Any) -> None:
        with pytest.raises(ValueError, match="example"):
            check(Net(forward, a=nn.Linear(4, 4), o=nn.Linear(4, 3)), torch.randn(6, 4))

    def test_is_found_by_company_where_nothing_can_be_differentiated(self) -> None:
        model = Net(lambda s, t: s.o(s.e(t).mean(1)) * t.double().mean(), e=nn.Embedding(9, 4), o=nn.Linear(4, 3))
        with pytest.raises(ValueError, match="example"):
            check(model.double(), torch.randint(0, 9, (6, 3)))

    def test_of_losses_is_found(self) -> None:
        model = nn.Linear(4, 3)

        def losses(x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(model(x), y).expand(len(x))

        with pytest.raises(ValueError, match="example"):
            check(model, (torch.randn(6, 4), torch.randint(0, 3, (6,))), losses)

    def test_needs_two_examples(self) -> None:
        with pytest.raises(ValueError, match="at least 2"):
            check(nn.Linear(4, 3), torch.randn(1, 4))


class Averaging(nn.Module):
    """Keeps an average of what passed."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.o = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean += 0.1 * (x.mean(0) - self.mean)
        return self.o(x)


class TestState:
    def test_buffers_that_follow_the_data_are_refused(self) -> None:
        with pytest.raises(ValueError, match="mean"):
            check(Averaging(), torch.randn(6, 4))

    def test_buffers_that_count_calls_are_fine(self) -> None:
        model = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3))
        check(model, torch.randn(6, 4))

    def test_weights_that_change_in_the_forward_pass_are_refused(self) -> None:
        def forward(s: Any, x: Tensor) -> Tensor:
            s.o.weight.data.clamp_(-0.01, 0.01)
            return s.o(x)

        with pytest.raises(ValueError, match=r"o\.weight"):
            check(Net(forward, o=nn.Linear(4, 3)), torch.randn(6, 4))

    def test_checking_leaves_everything_as_it_was(self) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 3))
        before = {name: value.clone() for name, value in model.state_dict().items()}
        state = torch.get_rng_state()
        check(model, torch.randn(6, 4, generator=torch.Generator().manual_seed(0)))
        assert torch.equal(torch.get_rng_state(), state)
        assert model.training
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert all(p.grad is None for p in model.parameters())


class TestReport:
    def test_says_that_all_is_fast(self) -> None:
        report = check(nn.Sequential(nn.Linear(4, 3)), torch.randn(6, 4))
        assert report.slower == ()
        assert "fast path" in str(report)

    def test_names_what_is_slow(self) -> None:
        model = Net(lambda s, x: s.o(x) + (s.w @ x.T).T, o=nn.Linear(4, 3), w=parameter(3, 4))
        report = check(model, torch.randn(6, 4))
        assert len(report.slower) == 1
        assert report.slower[0].startswith("w ")

    @pytest.mark.parametrize(
        "wrap",
        [lambda x: (x, None), lambda x: {"logits": x}, lambda x: [x]],
        ids=["a tuple", "a dictionary", "a list"],
    )
    def test_takes_models_with_several_outputs(self, wrap: Any) -> None:
        assert check(Net(lambda s, x: wrap(s.o(x)), o=nn.Linear(4, 3)), torch.randn(6, 4)).slower == ()

    def test_needs_something_to_train(self) -> None:
        with pytest.raises(ValueError, match="nothing to train"):
            check(nn.Linear(4, 3).requires_grad_(False), torch.randn(6, 4))


@pytest.mark.parametrize("kind", ["no_grad", "detached", "another model"])
def test_a_loss_that_trains_nothing_is_refused(kind: str) -> None:
    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    losses = {
        "no_grad": torch.no_grad()(lambda x: model(x).sum(1)),
        "detached": lambda x: model(x).detach().sum(1),
        "another model": lambda x: other(x).sum(1),
    }[kind]
    with pytest.raises(ValueError, match="depends on no parameter of the model, so training would be noise alone"):
        check(model, torch.randn(4, 3), losses)
