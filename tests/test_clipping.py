"""Clipping: bounded weights, shares of noise that add up to the plan's multiplier, thresholds that follow."""

from __future__ import annotations

import math

import pytest
import torch

from hush.accounting import Gaussian
from hush.clipping import Adaptive, Clipping, Flat, Normalised, PerLayer, votes
from hush.rounding import BFLOAT16, FLOAT32, rounding_margin, summed_at_once
from hush.schedules import Schedule

NAMES = ["body.0.weight", "body.0.bias", "body.1.weight", "head.weight", "scale"]
ALL = [
    Flat(0.7),
    Flat(Schedule((0, 1.0), (3, 0.5))),
    Normalised(0.3, stability=0.1),
    PerLayer(0.5),
    PerLayer({"body": 1.0, "head": Schedule((0, 0.3), (2, 0.1)), "": 0.2}),
    PerLayer({"body": 1.0, "": 0.2}, noise={"body": 3.0, "": 1.0}),
    PerLayer(0.5, noise=1.0),
    Adaptive(1.5, quantile=0.7, count_noise=9.0),
]


@pytest.mark.parametrize("clipping", ALL, ids=str)
def test_no_unit_keeps_more_than_its_threshold(clipping: Clipping) -> None:
    thresholds = clipping.thresholds(0, NAMES)
    norms = torch.logspace(-30, 30, 4001, dtype=torch.float32)[:, None].repeat(1, len(thresholds))
    kept = clipping.weigh(norms, thresholds).double() * norms.double()
    assert (kept <= torch.tensor(thresholds, dtype=torch.float64) * (1 + 64 * FLOAT32)).all()
    assert (kept > 0).all()


@pytest.mark.parametrize("clipping", ALL, ids=str)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_norm_that_is_not_finite_in_one_group_gives_weight_zero_in_all(clipping: Clipping, bad: float) -> None:
    thresholds = clipping.thresholds(0, NAMES)
    norms = torch.ones(2, len(thresholds))
    norms[1, 0] = bad
    weights = clipping.weigh(norms, thresholds)
    assert (weights[1] == 0).all()
    assert (weights[0] > 0).all()


def test_small_gradients_are_left_alone_and_zero_is_no_trouble() -> None:
    assert Flat(1.0).weigh(torch.tensor([[0.0], [0.5], [2.0]]), (1.0,)).flatten().tolist() == [1.0, 1.0, 0.5]


def test_no_units_get_no_weights() -> None:
    assert Flat(1.0).weigh(torch.empty(0, 1), (1.0,)).shape == (0, 1)


def test_thresholds_may_be_a_tensor_that_stays_where_it_is() -> None:
    assert Flat(1.0).weigh(torch.tensor([[4.0]]), torch.tensor([2.0])).item() == 0.5


def test_normalised_gradients_have_nearly_the_norm_whatever_their_size() -> None:
    norms = torch.tensor([[1.0], [100.0]])
    assert (Normalised(2.0, stability=0.01).weigh(norms, (2.0,)) * norms).flatten().tolist() == pytest.approx(
        [2 / 1.01, 200 / 100.01]
    )


@pytest.mark.parametrize("clipping", ALL, ids=str)
@pytest.mark.parametrize("step", [0, 5])
def test_what_the_groups_release_together_is_the_planned_release(clipping: Clipping, step: int) -> None:
    batch = 256
    gradient = clipping.gradient_noise(1.3, batch)
    thresholds = clipping.thresholds(step, NAMES)
    stds = clipping.stds(thresholds, gradient, NAMES)
    multipliers = [std / c for std, c in zip(stds, thresholds, strict=True)]
    count = clipping.count_std(batch)
    if count is not None:
        multipliers.append(count / 0.5)  # each unit's vote is +-1/2
    assert Gaussian.joint(*multipliers).noise_multiplier == pytest.approx(1.3, rel=1e-12)


def test_layers_are_the_modules_of_the_parameters() -> None:
    assert PerLayer(0.5).groups(NAMES) == ((0, 1), (2,), (3,), (4,))


def test_prefixes_group_by_the_longest_that_fits() -> None:
    clipping = PerLayer({"body": 1.0, "body.1": 2.0, "": 3.0})
    assert clipping.groups(NAMES) == ((0, 1), (2,), (3, 4))
    assert clipping.thresholds(0, NAMES) == (1.0, 2.0, 3.0)


def test_a_prefix_ends_where_a_module_ends() -> None:
    assert PerLayer({"layer.1": 1.0, "": 2.0}).groups(["layer.1.weight", "layer.10.weight"]) == ((0,), (1,))


def test_a_parameter_without_a_norm_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'head\.weight'.*add its prefix"):
        PerLayer({"body": 1.0}).groups(NAMES)


def test_equal_noise_and_equal_hiding_are_both_expressible() -> None:
    norms = {"body": 3.0, "": 4.0}
    assert PerLayer(norms, noise=1.0).stds((3.0, 4.0), 2.0, NAMES) == pytest.approx((10.0, 10.0))  # z (9+16)^(1/2)
    assert PerLayer(norms).stds((3.0, 4.0), 2.0, NAMES) == pytest.approx((6 * 2**0.5, 8 * 2**0.5))


@pytest.mark.parametrize("clipping", ALL, ids=str)
def test_a_clipping_goes_to_json_and_back(clipping: Clipping) -> None:
    import json

    again = Clipping.from_dict(json.loads(json.dumps(clipping.to_dict())))
    assert again == clipping
    assert hash(again) == hash(clipping)


def test_the_threshold_finds_the_quantile_of_the_norms() -> None:
    clipping = Adaptive(10.0, quantile=0.5, rate=0.2, count_noise=1e-9)
    norms = torch.linspace(0, 2, 100)[:, None]
    state = clipping.start()
    for _ in range(200):
        state = clipping.follow(state, votes(norms, state).item(), batch=100)
    assert state == pytest.approx(1.0, rel=0.03)


def test_a_vote_is_one_half_whatever_the_norm() -> None:
    norms = torch.tensor([[0.5], [1.0], [2.0], [math.nan], [math.inf]])
    assert votes(norms, 1.0).item() == 2 * 0.5 - 3 * 0.5
    assert votes(torch.empty(0, 1), 1.0).item() == 0.0


def test_a_wild_count_cannot_drive_the_threshold_to_zero_or_infinity() -> None:
    clipping = Adaptive(1.0, rate=5.0)
    state = clipping.start()
    for count in (1e30, 1e30, -1e30, -1e30, -1e30):
        state = clipping.follow(state, count, batch=10)
        assert 0 < state < math.inf


def test_a_count_that_takes_all_the_noise_is_refused() -> None:
    with pytest.raises(ValueError, match=r"count_noise above 0\.65"):
        Adaptive(1.0, count_noise=0.6).gradient_noise(1.3, 256)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Flat(0.0), "positive"),
        (lambda: Flat(math.nan), "positive"),
        (lambda: Normalised(1.0, stability=0.0), "stability"),
        (lambda: PerLayer({}), "at least one prefix"),
        (lambda: PerLayer(1.0, noise={"a": 1.0}), "same prefixes"),
        (lambda: Adaptive(1.0, quantile=1.0), "quantile"),
        (lambda: Clipping.from_dict({"clipping": "loud"}), "must be one of"),
        (lambda: Schedule(), "step 0"),
        (lambda: Schedule((1, 1.0)), "step 0"),
        (lambda: Schedule((0, 1.0), (0, 2.0)), "in order"),
        (lambda: Schedule((0, -1.0)), "positive"),
    ],
)
def test_nonsense_is_refused_in_one_sentence(make: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()  # type: ignore[operator]


def test_a_schedule_is_constant_between_its_corners() -> None:
    schedule = Schedule((0, 1.0), (10, 0.5))
    assert [schedule.at(step) for step in (0, 9, 10, 10**9)] == [1.0, 1.0, 0.5, 0.5]
    line = Schedule.linear(1.0, 2.0, steps=100, pieces=5)
    assert line.pieces == ((0, 1.0), (20, 1.25), (40, 1.5), (60, 1.75), (80, 2.0))
    assert [Schedule.geometric(1.0, 4.0, steps=3).at(step) for step in range(3)] == pytest.approx([1.0, 2.0, 4.0])


@pytest.mark.parametrize("batch", [16, 256, 2048, 8192])
def test_the_margin_covers_the_rounding_of_aligned_gradients(batch: int) -> None:
    # All units have the same gradient, of norm exactly at the reduced threshold: the worst case of a float32 sum.
    torch.manual_seed(batch)
    threshold = 1 - rounding_margin(batch)
    gradient = torch.rand(300)
    gradient = gradient * (threshold / gradient.norm())
    worst = 0.0
    for count in (batch, batch - 1, batch + 7):
        sums = [torch.ones(n) @ gradient.repeat(n, 1) for n in (count, count + 1)]
        worst = max(worst, (sums[1].double() - sums[0].double()).norm().item())
    assert worst <= 1.0


def test_the_margin_is_small_and_grows_with_batch_and_coarseness() -> None:
    assert rounding_margin(256) < 1e-3
    assert rounding_margin(256) < rounding_margin(4096) < 0.02
    assert rounding_margin(256, BFLOAT16) == pytest.approx(rounding_margin(256) + 2**-8)
    assert rounding_margin(50_000) < 0.25
    with pytest.raises(ValueError, match="too large for float32"):
        rounding_margin(1_000_000)


def test_large_batches_are_summed_in_parts_of_bounded_number_and_size() -> None:
    assert summed_at_once(256, None) is None
    assert summed_at_once(256, 1) == 1
    assert summed_at_once(60_000, None) == 4096
    assert summed_at_once(60_000, 10_000) == 4096
    assert summed_at_once(60_000, 100) == 100
    with pytest.raises(ValueError, match="at least 16"):
        summed_at_once(60_000, 10)


@pytest.mark.parametrize("clip", [Flat(1e-6), Normalised(1e-6)])
def test_weights_too_small_for_their_digits_are_none(clip: Flat | Normalised) -> None:
    """C/norm of a gradient of up to 3.4e38 was rounded to a few bits, to 1.19 thresholds."""
    norms = torch.linspace(1e28, 3.3e38, 1001)[:, None]
    for limits in ([1e-6], torch.tensor([1e-6])):
        shares = clip.weigh(norms, limits).double() * norms.double()
        assert float(shares.max()) <= 1e-6 * (1 + 2**-20)
        assert float(shares[0]) > 0.99e-6
