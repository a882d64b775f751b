"""The ledger: durable before released, readable after any crash, edits detected, the budget kept."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import numpy as np
import pytest

from hush.accounting import REPLACE_ONE, Gaussian, Guarantees, Laplace, Mechanism, calibrate
from hush.filters import Fixed, Renyi, most_steps
from hush.journal import GENESIS
from hush.ledger import Budget, BudgetExceededError, Ledger, Spent

FULL = os.environ.get("HUSH_FULL", "") not in ("", "0")
STEP = Gaussian(1.3).poisson(256 / 60_000)
OTHER = Gaussian(2.0).poisson(0.01)
BUDGET = Budget(epsilon=3.0, delta=1e-5)


def count(mechanism: Mechanism | None, part: Mechanism = STEP) -> int:
    """How often a release is part of a composition."""
    return 0 if mechanism is None else dict(mechanism.parts()).get(part, 0)


def charged(path: Path, blocks: int, size: int = 10) -> tuple[Ledger, str]:
    """A ledger with one run that reserved some blocks."""
    ledger = Ledger(path)
    run = ledger.register({"name": "a run"}, STEP * 1000, block=size)
    for index in range(blocks):
        ledger.reserve(run, index * size, STEP, size)
    return ledger, run


# What was spent


def test_a_new_ledger_has_spent_nothing_and_touches_no_disk(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", BUDGET)
    assert ledger.mechanism() is None
    assert ledger.spent().epsilon(1e-5).upper == 0
    assert str(ledger.spent()) == "nothing"
    assert ledger.head == GENESIS
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["memory", "file"])
def test_steps_reserved_are_spent_and_those_never_drawn_are_given_back(where: str, tmp_path: Path) -> None:
    ledger = Ledger(None if where == "memory" else tmp_path / "ledger", BUDGET)
    run = ledger.register({"steps": 100}, STEP * 100)
    ledger.reserve(run, 0, STEP, 10)
    assert ledger.spent() == Spent(STEP * 10)
    ledger.reserve(run, 10, STEP, 10)
    assert ledger.spent() == Spent(STEP * 20)
    ledger.close(run, 13)
    assert ledger.spent(run) == Spent(STEP * 13)
    assert ledger.spent().epsilon(1e-5) == (STEP * 13).epsilon(1e-5)
    assert [summary.finished for summary in ledger.runs] == [False]
    ledger.finish(run)
    assert [summary.finished for summary in ledger.runs] == [True]
    assert ledger.verify(ledger.head) == ()


def test_a_ledger_reads_the_same_when_opened_again(tmp_path: Path) -> None:
    ledger, run = charged(tmp_path / "ledger", 3)
    ledger.close(run, 25)
    again = Ledger(tmp_path / "ledger")
    assert again.mechanism() == ledger.mechanism() == STEP * 25
    assert again.head == ledger.head
    assert again.mark(run) == ledger.mark(run)
    assert again.runs == ledger.runs


def test_every_line_is_json_with_its_mechanism(tmp_path: Path) -> None:
    charged(tmp_path / "ledger", 1)
    records = [json.loads(line)["record"] for line in (tmp_path / "ledger").read_text().splitlines()]
    assert [record["event"] for record in records] == ["open", "register", "reserve"]
    assert Mechanism.from_dict(records[-1]["charged"][0][0]) == STEP
    assert records[-1]["charged"][0][1] == 10
    assert records[1]["plan"] == {"name": "a run"}


def test_a_block_of_unlike_steps_gives_back_what_its_drawn_steps_did_not_cost() -> None:
    ledger = Ledger(None)
    run = ledger.register({}, STEP * 50 + OTHER * 50)
    ledger.reserve(run, 45, [(STEP, 5), (OTHER, 5)], 10)
    ledger.close(run, 47, used=[(STEP, 2)])
    assert ledger.mechanism() == STEP * 2
    ledger.reserve(run, 47, [(STEP, 3), (OTHER, 7)], 10)
    ledger.close(run, 50)  # what its drawn steps cost isn't said, so all stays charged
    assert ledger.mechanism() == STEP * 5 + OTHER * 7


def test_a_shuffled_epoch_is_charged_once_and_not_given_back_after_its_first_step() -> None:
    epoch = Gaussian(4.0).shuffled()
    ledger = Ledger(None)
    run = ledger.register({}, epoch * 3)
    ledger.reserve(run, 0, [(epoch, 1)], 10)
    ledger.close(run, 1, used=[(epoch, 1)])
    assert ledger.mechanism() == epoch
    ledger.reserve(run, 1, [], 9)
    assert ledger.mechanism() == epoch
    ledger.reserve(run, 10, [(epoch, 1)], 10)
    ledger.close(run, 10)
    assert ledger.mechanism() == epoch


def test_a_block_is_closed_once_and_only_by_the_process_that_drew_from_it(tmp_path: Path) -> None:
    ledger, run = charged(tmp_path / "ledger", 1)
    stranger = Ledger(tmp_path / "ledger")
    assert stranger.close(run, 0) == ledger.mark(run)
    assert stranger.mechanism() == STEP * 10
    stranger.reserve(run, 10, STEP, 10)
    ledger.close(run, 4)
    ledger.close(run, 0)
    assert ledger.mechanism() == stranger.mechanism() == STEP * 14


def test_the_mark_of_a_run_moves_when_it_draws_and_not_when_others_do(tmp_path: Path) -> None:
    ledger, run = charged(tmp_path / "ledger", 1)
    mark = ledger.close(run, 5)
    assert mark == ledger.mark(run) == ledger.close(run, 5)
    head = ledger.head
    other = Ledger(tmp_path / "ledger")
    second = other.register({}, STEP)
    other.reserve(second, 0, STEP, 1)
    assert ledger.mark(run) == mark
    assert ledger.head != head
    ledger.reserve(run, 5, STEP, 1)
    assert ledger.mark(run) != mark


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (lambda ledger, run: ledger.reserve("nobody", 0, STEP, 1), "no run 'nobody'"),
        (lambda ledger, run: ledger.mark("nobody"), "no run 'nobody'"),
        (lambda ledger, run: ledger.reserve(run, 0, STEP, 0), "must be a whole number"),
        (lambda ledger, run: ledger.reserve(run, 0, STEP, 65), "may reserve 64 steps"),
        (lambda ledger, run: ledger.reserve(run, 0, STEP.under(REPLACE_ONE), 1), "one neighbouring relation"),
        (lambda ledger, run: ledger.register({}, Gaussian(1.0, REPLACE_ONE)), "one neighbouring relation"),
        (lambda ledger, run: ledger.register({"x": object()}, STEP), "plain JSON"),
        (lambda ledger, run: ledger.register({"x": float("nan")}, STEP), "plain JSON"),
        (lambda ledger, run: ledger.most_steps(STEP), "without a budget"),
        (lambda ledger, run: (ledger.reserve(run, 3, STEP, 2), ledger.close(run, 6)), "can't be closed at 6"),
        (lambda ledger, run: (ledger.finish(run), ledger.reserve(run, 3, STEP, 2)), "is finished"),
    ],
)
def test_wrong_use_is_refused_in_a_sentence(action: object, words: str) -> None:
    ledger = Ledger(None)
    run = ledger.register({}, STEP * 100)
    before = ledger.mechanism()
    with pytest.raises(ValueError, match=words):
        action(ledger, run)  # type: ignore[operator]
    assert count(ledger.mechanism()) >= count(before)


def test_a_ledger_in_a_folder_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="isn't there"):
        Ledger(tmp_path / "missing" / "ledger").register({}, STEP)


# The budget


def test_a_plan_over_the_budget_is_refused_before_anything_is_charged() -> None:
    ledger = Ledger(None, BUDGET)
    most = calibrate.steps(lambda n: STEP * n, BUDGET.epsilon, BUDGET.delta)
    assert ledger.most_steps(STEP) == most
    assert ledger.most_steps(Gaussian(0.1)) == 0
    with pytest.raises(BudgetExceededError, match=r"would spend epsilon 3\.00\d+ at"):
        ledger.register({}, STEP * (most + 1))
    assert ledger.runs == ()
    run = ledger.register({}, STEP * most)
    assert not ledger.admits(run, STEP, most + 1)
    assert ledger.admits(run, STEP, most)


def test_training_by_budget_runs_until_it_is_spent_and_the_next_step_is_refused() -> None:
    step = Gaussian(1.0).poisson(0.02)
    ledger = Ledger(None, Budget(2.0, 1e-5))
    most = ledger.most_steps(step)
    run = ledger.register({}, step * most, block=50)
    done = 0
    while done < most:
        ledger.reserve(run, done, step, min(50, most - done))
        done += min(50, most - done)
    assert 1.99 < ledger.spent().epsilon(1e-5).upper <= 2.0
    head = ledger.head
    with pytest.raises(BudgetExceededError, match="next step would exceed"):
        ledger.reserve(run, done, step, 1)
    assert ledger.head == head
    assert ledger.quoted() == Budget(2.0, 1e-5)


def test_reserving_inside_an_admitted_plan_costs_no_accounting(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(None, BUDGET)
    run = ledger.register({}, STEP * ledger.most_steps(STEP))
    monkeypatch.setattr("hush.accounting.answers.epsilon", lambda *_: pytest.fail("an account was asked for"))
    for first in range(0, 640, 64):
        ledger.reserve(run, first, STEP, 64)


def test_steps_charged_again_after_a_crash_are_admitted_while_the_budget_lasts() -> None:
    most = calibrate.steps(lambda n: STEP * n, BUDGET.epsilon, BUDGET.delta)
    ledger = Ledger(None, BUDGET)
    run = ledger.register({}, STEP * (most - 5), block=most)
    assert isinstance(ledger._tally.filter, Fixed)
    ledger.reserve(run, 0, STEP, most - 5)
    ledger.reserve(run, 7, STEP, 5)
    with pytest.raises(BudgetExceededError):
        ledger.reserve(run, 12, STEP, 1)
    assert ledger.spent().epsilon(1e-5).upper <= 3.0 < (STEP * (most + 1)).epsilon(1e-5).upper


def test_a_tight_first_plan_leaves_room_for_its_own_kind_of_steps_only() -> None:
    most = calibrate.steps(lambda n: STEP * n, BUDGET.epsilon, BUDGET.delta)
    ledger = Ledger(None, BUDGET)
    run = ledger.register({}, STEP * (most - 100), block=1000)
    ledger.reserve(run, 0, STEP, 100)
    ledger.finish(run)
    with pytest.raises(BudgetExceededError):
        ledger.register({}, OTHER)  # a choice made after seeing results, outside of what was fixed in advance
    assert ledger.most_steps(STEP) == most - 100
    ledger.register({}, STEP * (most - 100))
    with pytest.raises(BudgetExceededError):
        ledger.register({}, STEP)


def test_an_open_run_keeps_what_it_was_admitted_to_until_it_is_finished() -> None:
    ledger = Ledger(None, BUDGET)
    first = ledger.register({}, STEP * 5000)
    ledger.reserve(first, 0, STEP, 10)
    room = ledger.most_steps(OTHER)
    ledger.finish(first)
    assert ledger.most_steps(OTHER) > room
    second = ledger.register({}, OTHER * room)
    ledger.reserve(second, 0, OTHER, 64)


@pytest.mark.parametrize("seed", range(20 if FULL else 3))
def test_adaptive_choices_never_exceed_the_limit_at_the_one_order(seed: int) -> None:
    rng = random.Random(seed)
    ledger = Ledger(None, BUDGET)
    run = ledger.register({}, None)
    filtered = ledger._tally.filter
    assert isinstance(filtered, Renyi)
    refused = 0
    for step in range(200):
        choice = Gaussian(rng.choice([1.0, 2.0, 5.0])).poisson(rng.choice([0.01, 0.1]))
        try:
            ledger.reserve(run, step, choice, rng.randint(1, 20))
        except BudgetExceededError:
            refused += 1
    whole = ledger.mechanism()
    assert whole is not None
    assert refused
    order = np.array([filtered.order - 1])
    assert float(whole.moments().log_moment(order)[0]) <= filtered.limit * (filtered.order - 1)
    assert whole.epsilon(BUDGET.delta).upper <= whole.moments().epsilon(BUDGET.delta, orders=order) <= BUDGET.epsilon


def test_the_filter_holds_over_plans_chosen_one_after_the_other() -> None:
    ledger = Ledger(None, BUDGET)
    total = ledger.mechanism()
    for _ in range(100):
        try:
            run = ledger.register({}, STEP * 500 + OTHER * 20, block=520)
        except BudgetExceededError:
            break
        ledger.reserve(run, 0, [(STEP, 500), (OTHER, 20)], 520)
        ledger.finish(run)
    total = ledger.mechanism()
    assert total is not None
    # of the exact account's room, one order's filter uses most: it is proved to hold, not just lucky
    assert 2.2 < total.epsilon(1e-5).upper <= 3.0


def test_the_renyi_filter_uses_most_of_what_any_order_could() -> None:
    for budget in (Budget(0.1, 1e-6), Budget(1.0, 1e-5), Budget(8.0, 1e-5), Budget(50.0, 1e-3)):
        filtered = Renyi.for_plan(budget, None)
        admitted = (2 * filtered.limit / filtered.order) ** 0.5  # the largest mu of a Gaussian release
        assert Gaussian(1 / admitted).moments().epsilon(budget.delta) == pytest.approx(budget.epsilon, rel=1e-4)
        assert Gaussian(1 / admitted).epsilon(budget.delta).upper <= budget.epsilon


def test_what_has_no_moments_can_only_be_a_plan_of_its_own() -> None:
    promise = Guarantees.of(1.0, 1e-7)
    ledger = Ledger(None, BUDGET)
    ledger.register({}, promise)
    with pytest.raises(BudgetExceededError):
        ledger.register({}, STEP)
    other = Ledger(None, BUDGET)
    other.register({}, Laplace(2.0))
    with pytest.raises(BudgetExceededError):
        other.register({}, promise)
    other.register({}, STEP)


def test_the_budget_belongs_to_the_ledger(tmp_path: Path) -> None:
    Ledger(tmp_path / "ledger", BUDGET).register({}, STEP)
    assert Ledger(tmp_path / "ledger").budget == BUDGET
    assert Ledger(tmp_path / "ledger", Budget(3.0, 1e-5)).quoted() == BUDGET
    with pytest.raises(ValueError, match="has a budget of epsilon 3 at delta 1e-05, not epsilon 4"):
        Ledger(tmp_path / "ledger", Budget(4.0, 1e-5))
    Ledger(tmp_path / "free").register({}, STEP)
    with pytest.raises(ValueError, match="has no budget"):
        Ledger(tmp_path / "free", BUDGET)
    with pytest.raises(ValueError, match="strictly between"):
        Budget(1.0, 0.0)


@pytest.mark.parametrize(("noise", "rate"), [(0.7, 0.004), (1.1, 0.004), (1.0, 0.02), (4.0, 0.02), (5.0, 0.1)])
def test_the_order_suits_the_first_plan(noise: float, rate: float) -> None:
    step = {Gaussian(noise).poisson(rate): 1}
    found = Renyi.for_plan(BUDGET, step).further({}, step)
    best = max(Renyi.at(BUDGET, float(order)).further({}, step) for order in np.geomspace(1.2, 100, 40))
    assert 0.95 * best < found <= most_steps(BUDGET, step)


def test_the_order_is_fixed_before_anything_is_released(tmp_path: Path) -> None:
    chosen = Ledger(tmp_path / "chosen", BUDGET)
    chosen.register({}, STEP * 100)
    assert isinstance(chosen._tally.filter, Renyi)
    order = chosen._tally.filter.order
    chosen.register({}, Gaussian(30.0).poisson(0.001) * 100)
    again = Ledger(tmp_path / "chosen")
    assert again._tally.filter == chosen._tally.filter == Renyi.at(BUDGET, order)
    given = Ledger(tmp_path / "given", BUDGET, order=7.5)
    given.register({}, STEP)
    assert Ledger(tmp_path / "given")._tally.filter == Renyi.at(BUDGET, 7.5)
    with pytest.raises(ValueError, match="above 1"):
        Ledger(None, BUDGET, order=1.0)
    with pytest.raises(ValueError, match="without a budget"):
        Ledger(None, order=2.0)
