"""Positions of an example whose gradients all but cancel: rounding is relative to them, the norm is not.

The bound must hold for what is computed.  Products in bfloat16 and TF32 belong to a GPU; here they are imitated, with
kernels that round the bits they don't read and kernels that cut them off.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hush.gradients import factors, norms, products
from hush.gradients.chosen import among
from hush.gradients.factors import Outer, Rows, settle, weighted_sum
from hush.gradients.norms import squared_norms
from hush.gradients.products import nearest_tf32, scaled

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def cancelling(positions: int, size: int, dtype: torch.dtype, *, seed: int, n: int = 200) -> tuple[Tensor, Tensor]:
    """Inputs and gradients of pairs of positions that cancel but for a few units of rounding.

    Half of the examples have the same number everywhere, so that their roundings all point the same way.
    """
    source = torch.Generator().manual_seed(seed)
    a = torch.randn(n, 1, 1, size, generator=source)
    b = torch.randn(n, 1, positions // 2, size, generator=source)
    a[: n // 2], b[: n // 2] = a[: n // 2, ..., :1], b[: n // 2, :, :1, :1]
    nearly = 1 + 4 * torch.finfo(dtype).eps * torch.rand(n, 1, positions // 2, 1, generator=source)
    return a.expand(n, 1, positions, size).to(dtype), torch.cat([b, -b * nearly], 2).to(dtype)


def between_tf32(positions: int, size: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """The same in float32, a few units of TF32's rounding apart."""
    a, b = (x.float() for x in cancelling(positions, size, torch.float16, seed=seed, n=1000))
    return a * (1 + 2**-12), b * (1 + 2**-12)


def largest_share(factor: Outer) -> float:
    """The largest contribution of one example, clipped to 1 by its norm, as it is computed."""
    (factor,) = settle([factor])
    assert isinstance(factor, Outer), "its gradients shouldn't be formed here"
    weights = 1 / squared_norms([factor]).sqrt()
    each = [weighted_sum([among(factor, torch.tensor([i]))], weights[i : i + 1]) for i in range(len(weights))]
    return max(float(x.double().norm()) for x in each)


@pytest.mark.parametrize(("positions", "size"), [(2, 16), (4, 32), (16, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
class TestOnThisDevice:
    def test_no_contribution_exceeds_the_threshold(self, positions: int, size: int, dtype: torch.dtype) -> None:
        for seed in range(3):
            a, b = cancelling(positions, size, dtype, seed=seed)
            assert largest_share(Outer(a, b, (size, size))) <= 1 + 1e-4


@pytest.mark.parametrize(("positions", "dim", "words"), [(4, 2, 2), (8, 4, 4), (64, 16, 10), (4, 16, 60)])
def test_a_tied_embedding_whose_positions_cancel_stays_within_the_threshold(
    positions: int, dim: int, words: int
) -> None:
    source = torch.Generator().manual_seed(0)
    for _ in range(50):
        a = torch.randn(1, 1, 1, dim, generator=source).expand(1, 1, positions, dim)
        b = torch.randn(1, 1, positions // 2, words, generator=source) * 1e6
        b = torch.cat([b, -b * (1 + 1e-7 * torch.randn(1, 1, positions // 2, 1, generator=source))], 2)
        padding = Rows(torch.full((1, positions), -1), torch.zeros(1, positions, dim), (words, dim))
        pair = settle([Outer(a, b, (words, dim)), padding])
        weight = (1 / squared_norms(pair).sqrt()).clamp_max(1.0)
        assert float(weighted_sum(pair, weight).double().norm()) <= 1 + 1e-5


class TestImitatedBfloat16:
    @pytest.mark.parametrize(("positions", "size"), [(2, 5), (2, 16), (4, 32), (16, 64)])
    def test_no_contribution_exceeds_the_threshold(
        self, positions: int, size: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(products, "in_bfloat16", lambda x: x.dtype == torch.bfloat16)
        monkeypatch.setattr(factors, "steady", lambda x: False)
        for seed in range(3):
            a, b = cancelling(positions, size, torch.bfloat16, seed=seed)
            weights = 1 / squared_norms([Outer(a, b, (size, size))]).sqrt()
            each = scaled(b, weights.view(-1, 1, 1, 1), coarse=False)
            assert each.dtype == torch.bfloat16
            sums = torch.einsum("ngto,ngti->noi", each.double(), a.double())
            assert float(sums.flatten(1).norm(dim=1).max()) <= 1 + 1e-4


def truncated(x: Tensor) -> Tensor:
    return (x.view(torch.int32) & -(1 << 13)).view(torch.float32)


class TestImitatedTF32:
    """A kernel that cuts off lower bits for norms, one that rounds them for sums, and the other way round."""

    @pytest.fixture(params=[(truncated, nearest_tf32), (nearest_tf32, truncated), (truncated, truncated)])
    def kernels(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        of_norms: Callable[[Tensor], Tensor]
        of_norms, of_sums = request.param

        def product(x: Tensor, y: Tensor, coarse: bool = False) -> Tensor:
            reads = of_norms if x.shape[-2] == y.shape[-1] and x.data_ptr() == y.data_ptr() else of_sums
            return torch.matmul(reads(x), reads(y))

        monkeypatch.setattr(factors, "product", product)
        monkeypatch.setattr(norms, "product", product)
        monkeypatch.setattr(products, "in_tf32", lambda x, coarse: x.dtype == torch.float32)

    @pytest.mark.parametrize(("positions", "size"), [(2, 5), (2, 16), (8, 64)])
    @pytest.mark.usefixtures("kernels")
    def test_no_contribution_exceeds_the_threshold(
        self, positions: int, size: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(factors, "steady", lambda x: False)
        a, b = between_tf32(positions, size, seed=1)
        assert largest_share(Outer(a, b, (size, size))) <= 1 + 1e-4

    @pytest.mark.usefixtures("kernels")
    def test_it_would_without_fitting(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(factors, "steady", lambda x: False)
        monkeypatch.setattr(factors, "fitted", lambda x, coarse: x)
        monkeypatch.setattr(products, "fitted", lambda x, coarse: x)
        monkeypatch.setattr(norms, "rounding_of_scaled", lambda b, coarse: 0.0)
        a, b = between_tf32(2, 5, seed=1)
        assert largest_share(Outer(a, b, (5, 5))) > 1.02

    @pytest.mark.usefixtures("kernels")
    def test_a_tied_embedding_is_clipped_by_what_is_summed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(factors, "steady", lambda x: False)
        source = torch.Generator().manual_seed(3)
        n, positions, dim, words = 100, 3, 16, 60
        index = torch.randint(words, (n, positions), generator=source)
        a = torch.randn(n, 1, positions, dim, generator=source)
        b = torch.zeros(n, 1, positions, words)
        b[:, 0].scatter_(2, index[:, :, None], 1 + torch.rand(n, positions, 1, generator=source))
        rows = -a[:, 0] * b[:, 0].gather(2, index[:, :, None])  # together they all but cancel
        rows = rows * (1 + 2**-10 * torch.randn(rows.shape, generator=source))
        for i in range(n):
            outer, tied = (
                Outer(a[i : i + 1], b[i : i + 1], (words, dim)),
                Rows(index[i : i + 1], rows[i : i + 1], (words, dim)),
            )
            pair = settle([outer, tied])
            assert len(pair) == 2
            weight = 1 / squared_norms(pair).sqrt()
            assert float(weighted_sum(pair, weight).double().norm()) <= 1 + 1e-4


@needs_gpu
class TestOnAGPU:
    @pytest.mark.parametrize("coarse", [False, True])
    @pytest.mark.parametrize("allowed", [False, True])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_no_contribution_exceeds_the_threshold(self, dtype: torch.dtype, allowed: bool, coarse: bool) -> None:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if allowed else "highest")
        try:
            for positions, size in ((2, 5), (2, 16), (4, 32), (16, 64)):
                fine = dtype == torch.float32
                a, b = between_tf32(positions, size, seed=1) if fine else cancelling(positions, size, dtype, seed=1)
                assert largest_share(Outer(a.cuda(), b.cuda(), (size, size), coarse=coarse)) <= 1 + 1e-4
        finally:
            torch.set_float32_matmul_precision(before)

    def test_a_coarse_product_is_one_in_tf32_whatever_others_are(self) -> None:
        x = torch.randn(64, 64, device="cuda")
        exact = x.double() @ x.double().T
        coarse, fine = products.product(x, x.T, coarse=True), products.product(x, x.T)
        assert float((coarse - exact).abs().max() / exact.abs().max()) > 1e-5
        assert float((fine - exact).abs().max() / exact.abs().max()) < 1e-5
        fit = nearest_tf32(x)
        exact = fit.double() @ fit.double().T
        assert float((products.product(fit, fit.T, coarse=True) - exact).abs().max() / exact.abs().max()) < 1e-5


class TestNearestTF32:
    def test_has_eleven_bits_and_is_off_by_at_most_half_of_the_last(self) -> None:
        x = torch.randn(10_000, generator=torch.Generator().manual_seed(0)) * torch.logspace(-20, 20, 10_000)
        fit = nearest_tf32(x)
        assert bool(((fit.view(torch.int32) & 0x1FFF) == 0).all())
        assert float(((fit.double() - x.double()) / x.double()).abs().max()) <= 2**-11
        assert torch.equal(nearest_tf32(fit), fit)

    def test_what_is_not_finite_stays(self) -> None:
        odd = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0, -0.0])
        odd = torch.cat([odd, torch.tensor([0x7FFFFFFF], dtype=torch.int32).view(torch.float32)])
        assert torch.equal(nearest_tf32(odd).isfinite(), odd.isfinite())
        assert torch.equal(nearest_tf32(odd)[:2], odd[:2])
