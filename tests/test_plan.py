"""The plan: what is left out is found, what is impossible refused, and what a step does is what it is charged for."""

from __future__ import annotations

import math
import re
import subprocess
import sys

import pytest

from hush.accounting import ADD_REMOVE, REPLACE_ONE, Gaussian, compose
from hush.clipping import Adaptive, Flat, Normalised, PerLayer
from hush.keys import Key
from hush.plan import Plan
from hush.sampling import Poisson, Shuffled, Uniform
from hush.schedules import Schedule
from hush.spending import Spending, open_ledger

MNIST = {"records": 60_000, "batch": 256, "epochs": 15}
NAMES = ["body.weight", "head.weight"]


def test_the_steps_of_an_epoch_do_not_pass_through_floats() -> None:
    assert Plan(**MNIST, noise_multiplier=1.3).steps == 3516  # 60,000 * 15 / 256 = 3515.6
    assert Plan(records=782, batch=1, epochs=1, noise_multiplier=1.0).steps == 782
    assert Plan(records=3, batch=1, epochs=0.1, noise_multiplier=1.0).steps == 1
    assert Plan(records=10**15 + 1, batch=1, epochs=1, noise_multiplier=1e9).steps == 10**15 + 1


def test_the_account_is_that_of_the_papers_run() -> None:
    plan = Plan(**MNIST, noise_multiplier=1.3, delta=1e-5)
    assert plan.mechanism == Gaussian(1.3).poisson(256 / 60_000) * 3516
    assert plan.promise().upper == pytest.approx(0.86454, abs=1e-5)


@pytest.mark.parametrize("sampling", [Poisson(), Uniform(), Shuffled()], ids=lambda s: type(s).__name__)
def test_the_noise_that_is_found_keeps_the_target_and_is_not_much_more(sampling: Poisson) -> None:
    plan = Plan(**MNIST, epsilon=2.0, delta=1e-5, sampling=sampling)
    assert plan.promise().upper <= 2.0
    less = Plan(records=60_000, batch=256, steps=plan.steps, noise_multiplier=plan.noise_multiplier * 0.999, delta=1e-5)
    tighter = compose(Plan(**MNIST, noise_multiplier=less.noise_multiplier, sampling=sampling).charges(0, plan.steps))
    assert tighter.epsilon(1e-5).upper > 2.0


@pytest.mark.parametrize("sampling", [Poisson(), Uniform(), Shuffled()], ids=lambda s: type(s).__name__)
def test_a_run_by_budget_is_as_long_as_the_target_allows(sampling: Poisson) -> None:
    noise = 8.0 if isinstance(sampling, Shuffled) else 1.5
    plan = Plan(records=6000, batch=100, noise_multiplier=noise, epsilon=2.0, delta=1e-5, sampling=sampling)
    assert plan.promise().upper <= 2.0
    assert compose(plan.charges(0, plan.steps + 1)).epsilon(1e-5).upper > 2.0


def test_a_target_that_noise_and_steps_miss_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cost epsilon 0\.86.* more than the target 0\.8"):
        Plan(**MNIST, noise_multiplier=1.3, epsilon=0.8, delta=1e-5)
    assert Plan(**MNIST, noise_multiplier=1.3, epsilon=0.9, delta=1e-5).steps == 3516


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"records": 10, "batch": 11, "steps": 1, "noise_multiplier": 1.0}, "can.t be expected of 10"),
        ({"records": 0, "batch": 1, "steps": 1, "noise_multiplier": 1.0}, "number of records"),
        ({"records": 10, "batch": 2, "steps": 1}, "needs steps"),
        ({"records": 10, "batch": 2, "noise_multiplier": 1.0}, "needs steps"),
        ({"records": 10, "batch": 2, "epsilon": 1.0, "delta": 0.1}, "the other is found"),
        ({"records": 10, "batch": 2, "steps": 1, "epsilon": 1.0}, "needs its delta"),
        ({"records": 10, "batch": 2, "steps": 1, "epsilon": 1.0, "delta": 0.0}, "above 0"),
        ({"records": 10, "batch": 2, "steps": 1, "epsilon": math.inf, "delta": 0.1}, "finite"),
        ({"records": 10, "batch": 2, "steps": 1, "epochs": 1, "noise_multiplier": 1.0}, "not both"),
        ({"records": 10, "batch": 2, "steps": 1.5, "noise_multiplier": 1.0}, "whole number"),
        ({"records": 10, "batch": 2, "steps": 1, "noise_multiplier": 0.0}, "positive"),
        ({"records": 10, "batch": 2, "steps": 1, "noise_multiplier": 1.0, "clip": -1.0}, "clip norm"),
        ({"records": 10, "batch": 2.5, "steps": 1, "noise_multiplier": 1.0, "sampling": Uniform()}, "whole number"),
        ({"records": 10, "batch": 2, "steps": 1, "noise_multiplier": 1.0, "sampling": object()}, "object draws"),
        ({"records": 10, "batch": 2, "steps": 1, "noise_multiplier": 1.0, "unit": ""}, "unit"),
        ({"records": 10, "batch": 2, "steps": 1, "noise_multiplier": 1.0, "unit": "user", "grouped": 2}, "Groups"),
        ({"records": 10, "batch": 2, "steps": 1, "noise_multiplier": 1.0, "clip": Adaptive(1.0)}, "count_noise above"),
        (
            {"records": 99, "batch": 9, "steps": 1, "noise_multiplier": 0.1, "clip": Adaptive(1.0), "grouped": 3},
            "fixed",
        ),
    ],
)
def test_impossible_plans_are_refused_in_one_sentence(numbers: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        Plan(**numbers)  # type: ignore[arg-type]
    assert str(refused.value).endswith(".")


def test_replacing_a_record_moves_the_sum_twice_as_far_and_so_does_a_group() -> None:
    base = {"records": 100, "batch": 10, "steps": 10, "noise_multiplier": 1.5, "clip": 2.0}
    assert Plan(**base).stds(0, NAMES) == (3.0,)
    assert Plan(**base).neighbours is ADD_REMOVE
    assert Plan(**base, sampling=Uniform()).stds(0, NAMES) == (6.0,)
    assert Plan(**base, sampling=Uniform()).neighbours is REPLACE_ONE
    assert Plan(**base, grouped=5).stds(0, NAMES) == (6.0,)
    assert Plan(**base, grouped=5, sampling=Uniform()).stds(0, NAMES) == (6.0,)


def test_schedules_change_norm_and_noise_step_by_step() -> None:
    plan = Plan(
        records=100,
        batch=10,
        steps=10,
        noise_multiplier=1.5,
        clip=Schedule((0, 2.0), (5, 1.0)),
        noise_profile=Schedule((0, 1.0), (8, 2.0)),
    )
    assert [plan.stds(step, NAMES)[0] for step in (0, 5, 8)] == [3.0, 1.5, 3.0]
    assert plan.mechanism == Gaussian(1.5).poisson(0.1) * 8 + Gaussian(3.0).poisson(0.1) * 2
    assert compose(plan.charges(7, 2)) == Gaussian(1.5).poisson(0.1) + Gaussian(3.0).poisson(0.1)


def test_a_noise_profile_is_scaled_to_the_target() -> None:
    shape = Schedule((0, 2.0), (500, 1.0))
    plan = Plan(records=6000, batch=60, steps=1000, epsilon=1.0, delta=1e-5, noise_profile=shape)
    assert 0.9999 < plan.promise().upper <= 1.0
    assert plan.release(0).noise_multiplier == 2 * plan.release(999).noise_multiplier


def test_a_shuffled_epoch_is_charged_once_with_the_least_noise_of_its_steps() -> None:
    plan = Plan(records=100, batch=30, epochs=3, noise_multiplier=5.0, sampling=Shuffled())
    one = Gaussian(5.0, REPLACE_ONE).shuffled()
    assert plan.steps == 12
    assert plan.mechanism == one * 3
    assert plan.charges(0, 1) == ((one, 1),)
    assert plan.charges(1, 3) == ()
    varying = Plan(
        records=100,
        batch=30,
        epochs=2,
        noise_multiplier=5.0,
        sampling=Shuffled(),
        noise_profile=Schedule((0, 2.0), (3, 1.0)),
    )
    assert varying.mechanism == one * 2


def test_a_shuffled_epoch_broken_off_and_begun_anew_is_charged_again() -> None:
    plan = Plan(records=100, batch=30, epochs=3, noise_multiplier=5.0, sampling=Shuffled())
    assert sum(count for _, count in plan.charges(5, 4, fresh=True)) == 2
    assert sum(count for _, count in plan.charges(5, 4)) == 1
    assert sum(count for _, count in plan.charges(4, 4, fresh=True)) == 1
    poisson = Plan(records=100, batch=30, epochs=3, noise_multiplier=5.0)
    assert poisson.charges(5, 4, fresh=True) == poisson.charges(5, 4)


def test_the_charges_of_the_parts_are_the_charges_of_the_whole() -> None:
    for sampling in (Poisson(), Uniform(), Shuffled()):
        plan = Plan(records=100, batch=30, steps=50, noise_multiplier=5.0, sampling=sampling)
        for size in (1, 3, 7, 50):
            parts = [c for first in range(0, 50, size) for c in plan.charges(first, min(size, 50 - first))]
            assert compose(parts) == plan.mechanism


def test_a_count_beside_the_gradient_leaves_the_account_as_planned_and_the_gradient_more_noise() -> None:
    plan = Plan(records=6000, batch=60, steps=1000, epsilon=1.0, delta=1e-5, clip=Adaptive(1.0, count_noise=3.0))
    plain = Plan(records=6000, batch=60, steps=1000, epsilon=1.0, delta=1e-5)
    assert plan.mechanism == plain.mechanism
    assert plan.count_std == 3.0
    gradient = plan.stds(0, NAMES)[0]
    assert Gaussian.joint(gradient, 6.0).noise_multiplier == pytest.approx(plan.noise_multiplier, rel=1e-12)


def test_groups_depend_on_a_records_own_coins() -> None:
    plan = Plan(records=1000, batch=100, steps=1, noise_multiplier=1.0, grouped=8)
    assert plan.groups == 13
    key = Key.from_seed(1)
    one, more = plan.draw(key, 0, 1000), plan.draw(key, 0, 1001)
    assert one.units is not None
    assert more.units is not None
    assert more.units[: len(one)].tolist() == one.units.tolist()
    assert one.count == 13


@pytest.mark.parametrize(
    "plan",
    [
        Plan(**MNIST, noise_multiplier=1.3),
        Plan(**MNIST, epsilon=1.0, delta=1e-5, clip=Adaptive(1.0)),
        Plan(records=100, batch=7.5, steps=3, noise_multiplier=1.0, clip=PerLayer({"a": 1.0, "": 2.0})),
        Plan(records=100, batch=10, steps=3, noise_multiplier=1.0, clip=Normalised(), sampling=Uniform()),
        Plan(records=100, batch=10, steps=30, noise_multiplier=9.0, sampling=Shuffled(), unit="patient"),
        Plan(records=100, batch=10, steps=3, noise_multiplier=1.0, noise_profile=Schedule((0, 1.0), (1, 2.0))),
        Plan(records=100, batch=10, steps=3, noise_multiplier=1.0, clip=Flat(Schedule((0, 1.0))), grouped=4),
    ],
    ids=lambda plan: plan.to_json()[:40],
)
def test_a_plan_goes_to_json_and_back_and_into_words(plan: Plan) -> None:
    again = Plan.from_json(plan.to_json())
    assert again == plan
    words = str(plan)
    assert plan.unit in words
    assert ("replacing" in words) == (plan.neighbours is REPLACE_ONE)
    assert "To change it" in words


def test_the_words_never_promise_less_epsilon_than_is_certified() -> None:
    plan = Plan(**MNIST, noise_multiplier=1.3, delta=1e-5)
    promised = float(str(plan).split("Promise: (")[1].split(",")[0])
    assert plan.promise().upper <= promised <= plan.promise().upper * 1.001


@pytest.mark.parametrize("noise", [0.5, 1.0, 1.7, 2.3, 5.1, 40.0])
def test_the_words_never_say_an_attacker_is_right_less_often_than_one_is(noise: float) -> None:
    """Without sampling the best attacker is right Phi(mu/2) of the time."""
    plan = Plan(records=100, batch=100, steps=4, noise_multiplier=noise, delta=1e-5)
    told = re.search(r"right at most ([\d.]+)% of the time", str(plan))
    assert told is not None
    truth = 50 * (1 + math.erf(2 / noise / 2 / math.sqrt(2)))
    assert truth <= float(told[1]) <= min(100, truth + 0.1)


def test_a_plan_is_made_without_torch() -> None:
    code = "import sys, hush.plan; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# What is released beside the steps


def test_a_plan_counts_what_is_released_beside_it() -> None:
    beside = Gaussian(4.0).poisson(0.5)
    numbers = {"records": 1000, "batch": 100, "steps": 200, "epsilon": 2.0, "delta": 1e-5}
    alone, joined = Plan(**numbers), Plan(**numbers, beside=beside)
    assert joined.noise_multiplier > alone.noise_multiplier
    assert joined.mechanism == compose([*joined.charges(0, 200), (beside, 1)])
    assert 1.99 < joined.promise().upper <= 2.0
    assert Plan.from_json(joined.to_json()) == joined
    assert "Beside them" in str(joined)


def test_a_plan_found_by_its_length_leaves_room_for_what_is_beside_it() -> None:
    beside = Gaussian(4.0).poisson(0.5)
    numbers = {"records": 1000, "batch": 100, "noise_multiplier": 2.0, "epsilon": 2.0, "delta": 1e-5}
    assert Plan(**numbers, beside=beside).steps < Plan(**numbers).steps
    assert Plan(**numbers, beside=beside).promise().upper <= 2.0


def test_what_is_beside_a_plan_has_the_plans_relation() -> None:
    with pytest.raises(ValueError, match="sample both the same way"):
        Plan(records=100, batch=10, steps=5, noise_multiplier=1.0, beside=Gaussian(4.0, REPLACE_ONE))


@pytest.mark.parametrize("sampling", [Poisson(), Uniform(), Shuffled()], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("factors", [(2.0, 1.0, 0.5), (0.5, 1.0, 0.5), (1.0, 0.5, 3.0)])
def test_steps_cost_the_same_however_they_are_cut(sampling: Poisson, factors: tuple[float, ...]) -> None:
    """A ledger charges blocks, and admits those of the plan it knows: an epoch has one price, wherever a block ends."""
    profile = Schedule(*zip((0, 8, 23), factors, strict=True))
    plan = Plan(records=101, batch=20, steps=30, noise_multiplier=2.0, sampling=sampling, noise_profile=profile)
    whole = dict(plan.charges(0, 30))
    for size in (1, 2, 5, 7, 11):
        blocks = [part for first in range(0, 30, size) for part in plan.charges(first, min(size, 30 - first))]
        assert {part: sum(n for p, n in blocks if p == part) for part, _ in blocks} == whole
    begun_anew = dict(plan.charges(9, 2, fresh=True))  # in the middle of the second epoch
    assert set(begun_anew) <= set(whole)
    assert sum(begun_anew.values()) == (1 if isinstance(sampling, Shuffled) else 2)
    assert plan.charges(9, 0, fresh=True) == ()


def test_a_shuffled_epoch_costs_what_its_least_noise_does() -> None:
    profile = Schedule((0, 2.0), (8, 1.0))
    plan = Plan(records=100, batch=20, steps=20, noise_multiplier=2.0, sampling=Shuffled(), noise_profile=profile)
    assert plan.mechanism == Gaussian(4.0).shuffled() + Gaussian(2.0).shuffled() * 3  # steps 0-4; 5-9; 10-14; 15-19


@pytest.mark.parametrize("profile", [((0, 2.0), (139, 1.0)), ((0, 0.5), (8, 1.0), (14, 3.0), (230, 0.5))])
def test_a_ledger_does_not_refuse_the_steps_of_its_own_plan(profile: tuple[tuple[int, float], ...]) -> None:
    plan = Plan(
        records=60,
        batch=33,
        steps=300,
        epsilon=2.0,
        delta=1e-4,
        sampling=Shuffled(),
        noise_profile=Schedule(*profile),
    )
    spending = Spending(open_ledger(None, plan), plan)
    for step in range(plan.steps):
        spending.charge(step)
        if step % 17 == 0:
            spending.close(step + 1)
    spending.finish(plan.steps)
    assert spending.ledger.spent().epsilon(1e-4).upper <= 2.0
