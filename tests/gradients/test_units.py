"""What a unit contributes: at most the threshold, nothing if it isn't finite, and the same in any company."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from agreement import EXACT, Net, assert_same, cross_entropy, run, slower, trained
from torch import Tensor, nn

from hush.gradients import Auto, Ghost, Grouped, Loop, Memory, Vmap, clipped_sum, norms

ENGINES = [Loop(), Vmap(), Ghost(), Auto(), Vmap(chunk=2)]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(21)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()


def examples(n: int, *shape: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, *(shape or (4,)), dtype=torch.float64), torch.randint(0, 3, (n,))


class TestNotFinite:
    @pytest.mark.parametrize("engine", ENGINES, ids=str)
    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    @pytest.mark.parametrize("place", [0, 2, 4])
    def test_contributes_exactly_nothing(self, engine: Any, value: float, place: int) -> None:
        model, (x, y) = mlp(), examples(5)
        x[place, 1] = value
        others = [k for k in range(5) if k != place]
        found = run(model, cross_entropy(model), (x, y), engine)
        alone = run(model, cross_entropy(model), (x[others], y[others]), engine)
        assert all(torch.allclose(a, b, rtol=1e-14, atol=0) for a, b in zip(found.sums, alone.sums, strict=True))
        assert torch.allclose(found.norms[others], alone.norms, rtol=1e-14)
        assert not torch.isfinite(found.norms[place]).any()

    @pytest.mark.parametrize("engine", ENGINES, ids=str)
    def test_a_user_with_one_such_example_contributes_nothing(self, engine: Any) -> None:
        model, (x, y) = mlp(), examples(5)
        x[3] = float("nan")
        found = run(model, cross_entropy(model), (x, y), engine, units=torch.tensor([0, 1, 0, 1, 2]))
        keep = [0, 2, 4]
        alone = run(model, cross_entropy(model), (x[keep], y[keep]), engine, units=torch.tensor([0, 0, 1]))
        assert all(torch.allclose(a, b, rtol=1e-13, atol=0) for a, b in zip(found.sums, alone.sums, strict=True))

    @pytest.mark.parametrize("engine", ENGINES, ids=str)
    def test_a_batch_of_nothing_else_gives_zeros(self, engine: Any) -> None:
        model, (x, y) = mlp(), examples(3)
        found = run(model, cross_entropy(model), (x * float("nan"), y), engine)
        assert all(bool((s == 0).all()) for s in found.sums)

    def test_one_that_appears_in_the_second_try_takes_nobody_with_it(self) -> None:
        """As a random loss may: what isn't finite is left out as often as it takes, and everyone else counts."""
        model, (x, y) = mlp(), examples(4)
        x[0], marked, tries = float("nan"), float(x[3, 0]), []

        def losses(x: Tensor, y: Tensor) -> Tensor:
            tries.append(len(x))
            return F.cross_entropy(
                model(torch.where((x == marked) & (len(tries) > 1), torch.nan, x)), y, reduction="none"
            )

        found = run(model, losses, (x, y), Ghost())
        keep = run(model, cross_entropy(model), (x[1:3], y[1:3]), Loop())
        assert tries == [4, 3, 2] or len(tries) > 3
        assert all(torch.allclose(a, b, rtol=1e-12) for a, b in zip(found.sums, keep.sums, strict=True))

    def test_is_left_out_whatever_the_others_do(self) -> None:
        """What isn't finite and meets a vanishing gradient: whether it counts mustn't depend on other examples."""
        model = Net(lambda s, x: torch.cat([s.t.expand(len(x), 1, 4), s.a(x)], 1)[:, :2] @ s.w, a=nn.Linear(4, 4))
        model.t, model.w = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4, 3))
        model = model.double()
        for engine in ENGINES:
            for cut in (0.0, 1.0):  # the second position has no gradient, or has one for the other examples
                x, y = examples(3, 2, 4)
                x[0] = float("nan")
                own = torch.tensor([0.0, cut, cut], dtype=torch.float64)

                def losses(x: Tensor, y: Tensor, own: Tensor) -> Tensor:
                    out = model(x)
                    return F.cross_entropy(out[:, 0] + (own[:, None] * out[:, 1]).nan_to_num(), y, reduction="none")

                found = run(model, losses, (x, y, own), engine)
                alone = run(model, losses, (x[1:], y[1:], own[1:]), Loop())
                assert all(torch.allclose(a, b, rtol=1e-12) for a, b in zip(found.sums, alone.sums, strict=True))

    def test_what_is_learned_from_such_a_batch_is_right(self) -> None:
        model, memory = _sequence_first().double(), Memory()
        x, y = examples(4, 4, 4)
        x[[0, 2, 3]] = float("nan")
        run(model, cross_entropy(model), (x, y), Ghost(), memory=memory)
        x, y = examples(4, 4, 4)
        found = run(model, cross_entropy(model), (x, y), Ghost(), memory=memory)
        assert_same(found, run(model, cross_entropy(model), (x, y), Loop()), EXACT)


class TestSizes:
    @pytest.mark.parametrize("engine", ENGINES, ids=str)
    def test_an_empty_batch_gives_zeros_of_the_right_shapes(self, engine: Any) -> None:
        model, (x, y) = mlp(), examples(0)
        found = run(model, cross_entropy(model), (x, y), engine, groups=((0, 1), (2, 3)))
        assert [s.shape for s in found.sums] == [p.shape for p in trained(model)]
        assert all(bool((s == 0).all()) for s in found.sums)
        assert found.norms.shape == (0, 2)
        assert found.losses.shape == (0,)

    @pytest.mark.parametrize("engine", ENGINES, ids=str)
    def test_one_example(self, engine: Any) -> None:
        model, (x, y) = mlp(), examples(1)
        found = run(model, cross_entropy(model), (x, y), engine, clip=0.1)
        grads = torch.autograd.grad(cross_entropy(model)(x, y).sum(), trained(model))
        norm = torch.cat([g.flatten() for g in grads]).norm()
        assert torch.allclose(found.norms, norm)
        assert all(torch.allclose(s, g * 0.1 / norm) for s, g in zip(found.sums, grads, strict=True))

    @pytest.mark.parametrize("engine", ENGINES, ids=str)
    def test_sums_are_single_precision_or_better(self, engine: Any) -> None:
        model = mlp().bfloat16()
        x, y = examples(4)
        found = run(model, cross_entropy(model), (x.bfloat16(), y), engine)
        assert {s.dtype for s in found.sums} == {torch.float32}
        assert found.norms.dtype == torch.float32

    @pytest.mark.parametrize("engine", ENGINES, ids=str)
    def test_nothing_holds_on_to_the_graph(self, engine: Any) -> None:
        model, (x, y) = mlp(), examples(4)
        found = run(model, cross_entropy(model), (x, y), engine)
        assert not any(t.requires_grad for t in (*found.sums, found.norms, found.losses))

    def test_microbatches_keep_users_whole(self) -> None:
        model, (x, y) = mlp(), examples(7)
        users = torch.tensor([2, 0, 1, 1, 0, 2, 2])
        whole = run(model, cross_entropy(model), (x, y), Loop(), units=users)
        for engine in ENGINES:
            for size in (1, 2, 3, 7):
                found = run(model, cross_entropy(model), (x, y), engine, units=users, microbatch=size)
                assert_same(found, whole, EXACT)

    @pytest.mark.parametrize("engine", ENGINES, ids=str)
    def test_every_unit_stays_below_its_threshold(self, engine: Any) -> None:
        model, (x, y) = mlp(), examples(6)
        for k in range(6):
            found = run(model, cross_entropy(model), (x[k : k + 1], y[k : k + 1]), engine, clip=1e-3)
            assert torch.cat([s.flatten() for s in found.sums]).norm() <= 1e-3 * (1 + 1e-12)


class TestGroups:
    def test_grouped_clips_the_mean_gradient_of_a_group(self) -> None:
        model, (x, y) = mlp(), examples(6)
        groups = torch.tensor([0, 1, 0, 2, 1, 0])
        found = run(model, cross_entropy(model), (x, y), Grouped(2), units=groups, clip=0.3)
        total = [torch.zeros_like(p) for p in trained(model)]
        for k in range(3):
            members = groups == k
            grads = torch.autograd.grad(cross_entropy(model)(x[members], y[members]).mean(), trained(model))
            norm = torch.cat([g.flatten() for g in grads]).norm()
            total = [t + g * (0.3 / norm).clamp(max=1) for t, g in zip(total, grads, strict=True)]
        assert all(torch.allclose(a, b) for a, b in zip(found.sums, total, strict=True))

    @pytest.mark.parametrize("microbatch", [1, 2, 3])
    def test_groups_may_be_empty_whatever_the_microbatch(self, microbatch: int) -> None:
        model, batch = mlp(), examples(5)
        groups = torch.tensor([1, 1, 4, 4, 6])
        parts = run(model, cross_entropy(model), batch, Grouped(2), units=groups, clip=0.3, microbatch=microbatch)
        whole = run(model, cross_entropy(model), batch, Grouped(2), units=groups, clip=0.3)
        for a, b in zip(parts.sums, whole.sums, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)

    def test_grouped_needs_groups(self) -> None:
        model = mlp()
        with pytest.raises(ValueError, match="group"):
            run(model, cross_entropy(model), examples(3), Grouped(2))

    def test_layers_are_clipped_apart(self) -> None:
        model, (x, y) = mlp(), examples(4)
        found = run(model, cross_entropy(model), (x, y), Ghost(), groups=((0, 1), (2, 3)), clip=1e-3)
        for k in range(4):
            one = run(model, cross_entropy(model), (x[[k]], y[[k]]), Ghost(), groups=((0, 1), (2, 3)), clip=1e-3)
            for pair in ((0, 1), (2, 3)):
                assert torch.cat([one.sums[j].flatten() for j in pair]).norm() <= 1e-3 * (1 + 1e-12)
        assert found.norms.shape == (4, 2)


class TestCrossTerms:
    """A tied weight's norm is that of the *sum* of its uses' gradients: ||g + h||^2 = ||g||^2 + ||h||^2 + 2 <g, h>."""

    @staticmethod
    def tied(vocabulary: int) -> nn.Module:
        model = Net(
            lambda s, t: s.o(s.e(t)).mean(1)[:, :3],
            e=nn.Embedding(vocabulary, 4),
            o=nn.Linear(4, vocabulary, bias=False),
        )
        model.o.weight = model.e.weight
        return model.double()

    def test_dropping_them_would_be_seen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = self.tied(50)
        x, y = torch.randint(0, 50, (5, 3)), torch.randint(0, 3, (5,))
        reference = run(model, cross_entropy(model), (x, y), Loop())
        assert_same(run(model, cross_entropy(model), (x, y), Ghost()), reference, EXACT)
        monkeypatch.setattr(norms, "_cross", lambda rows, outer: torch.zeros(rows.examples, dtype=torch.float64))
        without = run(model, cross_entropy(model), (x, y), Ghost())
        assert float((without.norms - reference.norms).abs().max() / reference.norms.max()) > 1e-3

    def test_uses_that_cancel_have_no_gradient(self) -> None:
        model = Net(lambda s, x: s.a(x) + (-x) @ s.a.weight.T, a=nn.Linear(4, 3, bias=False)).double()
        found = run(model, cross_entropy(model), examples(4), Ghost())
        assert float(found.norms.max()) < 1e-7

    def test_uses_that_agree_have_twice_the_norm(self) -> None:
        once = Net(lambda s, x: 2 * s.a(x), a=nn.Linear(4, 3)).double()
        twice = Net(lambda s, x: s.a(x) + s.a(x), a=once.a).double()
        batch = examples(4)
        assert_same(
            run(twice, cross_entropy(twice), batch, Ghost()), run(once, cross_entropy(once), batch, Ghost()), EXACT
        )


def _sequence_first() -> nn.Module:
    return Net(
        lambda s, x: s.o(torch.relu(s.a(x.transpose(0, 1)) - s.t)).mean(0),
        a=nn.Linear(4, 6),
        o=nn.Linear(6, 3, bias=False),
        t=nn.Parameter(torch.zeros(())),
    )


class TestLayouts:
    def test_gradients_that_are_all_zero_at_first_teach_nothing_wrong(self) -> None:
        model, memory = _sequence_first().double(), Memory()
        for dead in (True, True, True, False, False, True, False):
            model.t.data.fill_(1e3 if dead else 0.0)
            batch = examples(4, 4, 4)
            found = run(model, cross_entropy(model), batch, Ghost(), memory=memory)
            assert_same(found, run(model, cross_entropy(model), batch, Loop()), EXACT)
            assert dead or not slower(found.notes)

    def test_examples_that_are_dead_at_first_teach_nothing_wrong(self) -> None:
        """Only one example has a gradient in the first call, and it isn't the first, the middle or the last."""
        model, memory = _sequence_first().double(), Memory()
        for live in (1, 3, 5, None):
            x, y = examples(8, 8, 4)
            if live is not None:
                keep = x[live].clone()
                x.zero_()
                x[live] = keep
                with torch.no_grad():
                    model.a.bias.fill_(-0.1)
            found = run(model, cross_entropy(model), (x, y), Ghost(), memory=memory)
            assert_same(found, run(model, cross_entropy(model), (x, y), Loop()), EXACT)

    @pytest.mark.parametrize("first", [(1, 4), (4, 4), (4, 1), (1, 1), (2, 4), (4, 8)])
    def test_sizes_that_could_mean_either_teach_nothing_wrong(self, first: tuple[int, int]) -> None:
        def folded(s: Any, x: Tensor) -> Tensor:
            n, length = x.shape[:2]
            h = torch.tanh(s.a(x.transpose(0, 1).reshape(-1, 4)))
            return s.o(h.view(length, n, 6)).mean(0)

        for forward in (folded, lambda s, x: s.o(torch.tanh(s.a(x.transpose(0, 1)))).mean(0)):
            model, memory = Net(forward, a=nn.Linear(4, 6), o=nn.Linear(6, 3)).double(), Memory()
            for n, length in (first, (4, 4), (3, 5), (5, 3), (2, 6), (1, 3), (6, 2), (3, 1), (3, 6)):
                batch = examples(n, length, 4)
                found = run(model, cross_entropy(model), batch, Ghost(), memory=memory)
                assert_same(found, run(model, cross_entropy(model), batch, Loop()), EXACT)

    def test_structure_that_changes_between_calls(self) -> None:
        def forward(s: Any, x: Tensor) -> Tensor:
            x = s.a(x) if int(s.calls) % 2 else torch.tanh(s.b(x))
            for _ in range(int(s.calls) % 3):
                x = torch.tanh(s.b(x))
            if int(s.calls) % 5 == 4:
                x = s.b(x.T.contiguous().T)
            return s.o(x)

        model = Net(forward, a=nn.Linear(4, 4), b=nn.Linear(4, 4), o=nn.Linear(4, 3)).double()
        memory = Memory()
        for call in range(12):
            model.calls = call
            batch = examples(4)
            found = run(model, cross_entropy(model), batch, Ghost(), memory=memory)
            assert_same(found, run(model, cross_entropy(model), batch, Loop()), EXACT)

    def test_a_branch_that_is_connected_later(self) -> None:
        model, memory = (
            Net(
                lambda s, x: s.o(x) + (s.a(x) if s.joined else 0 * s.a(x).detach()),
                a=nn.Linear(4, 3),
                o=nn.Linear(4, 3),
            ).double(),
            Memory(),
        )
        for joined in (False, False, False, True, True, False, True):
            model.joined = joined
            batch = examples(4)
            found = run(model, cross_entropy(model), batch, Ghost(), memory=memory)
            assert_same(found, run(model, cross_entropy(model), batch, Loop()), EXACT)

    @pytest.mark.parametrize("deep", [True, False])
    def test_models_that_begin_to_mix_examples_are_refused(self, deep: bool) -> None:
        """At the 4th call at the latest, even where they mix before any parameter has been met."""

        def forward(s: Any, x: Tensor) -> Tensor:
            if s.mixing and not deep:
                x = x - x.mean(0)
            h = torch.tanh(s.a(x))
            return s.o(h - h.mean(0) if s.mixing and deep else h)

        model, memory = Net(forward, a=nn.Linear(4, 4), o=nn.Linear(4, 3)).double(), Memory()
        model.mixing = False
        for _ in range(2):
            run(model, cross_entropy(model), examples(4), Ghost(), memory=memory)
        model.mixing = True
        run(model, cross_entropy(model), examples(4), Ghost(), memory=memory)
        with pytest.raises(ValueError, match="other examples"):
            run(model, cross_entropy(model), examples(4), Ghost(), memory=memory)

    def test_examples_that_meet_behind_dropout_are_refused(self) -> None:
        def forward(s: Any, x: Tensor) -> Tensor:
            h = F.dropout(torch.tanh(s.a(x)), 0.5)
            return s.o(h - h.mean(0))

        model = Net(forward, a=nn.Linear(4, 4), o=nn.Linear(4, 3)).double()
        with pytest.raises(ValueError, match="other examples"):
            run(model, cross_entropy(model), examples(4), Ghost())


class TestRandomness:
    @pytest.mark.parametrize("engine", [Loop(), Vmap(), Ghost()], ids=str)
    def test_dropout_is_clipped_as_it_was_drawn(self, engine: Any) -> None:
        """Each example's contribution has exactly the norm that the weights were computed from."""
        model = nn.Sequential(nn.Linear(4, 32), nn.Dropout(0.5), nn.Tanh(), nn.Linear(32, 3)).double()
        for seed in range(5):
            torch.manual_seed(seed)
            found = run(model, cross_entropy(model), examples(1), engine, clip=1e-3)
            assert torch.cat([s.flatten() for s in found.sums]).norm() == pytest.approx(1e-3, rel=1e-10)

    def test_a_slower_path_draws_its_own_dropout_and_is_still_clipped(self) -> None:
        model = Net(
            lambda s, x: F.dropout(s.a(x), 0.5) @ s.w[:, :3] + (s.w @ x.T).T[:, :3],
            a=nn.Linear(4, 4),
            w=nn.Parameter(torch.randn(4, 4)),
        ).double()
        for seed in range(5):
            torch.manual_seed(seed)
            found = run(model, cross_entropy(model), examples(1), Ghost(), clip=1e-3)
            assert slower(found.notes)
            assert torch.cat([s.flatten() for s in found.sums]).norm() == pytest.approx(1e-3, rel=1e-10)


def test_weights_may_be_anything() -> None:
    model, (x, y) = mlp(), examples(4)
    parameters = trained(model)
    kwargs: dict[str, Any] = {"groups": (tuple(range(4)),), "weigh": lambda norms: -2 * torch.ones_like(norms)}
    found = clipped_sum(parameters, cross_entropy(model), (x, y), engine=Ghost(), **kwargs)
    grads = torch.autograd.grad(cross_entropy(model)(x, y).sum(), parameters)
    assert all(torch.allclose(a, -2 * b) for a, b in zip(found.sums, grads, strict=True))
