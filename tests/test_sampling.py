"""Samplers: the right law, the neighbouring relation, and draws that depend on (key, step) alone.

Statistical tests have fixed seeds, so they pass or fail for good; each states how often a right sampler would have
failed it had its seed been drawn: FALSE_ALARM, unless it says otherwise.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch.utils.data import BatchSampler, SequentialSampler, WeightedRandomSampler

from hush.accounting import ADD_REMOVE, REPLACE_ONE, Gaussian
from hush.accounting import Shuffled as ShuffledEpoch
from hush.keys import Key
from hush.sampling import Poisson, Sampler, Shuffled, Uniform, check_sampler, flips
from hush.units import Draw, Records, Users, choose, grouped, permutation, population

FALSE_ALARM = 1e-6
KEYS = [Key.from_seed(20), Key.from_seed(20, secure=True)]
either_source = pytest.mark.parametrize("key", KEYS, ids=["philox", "cipher"])
samplers = pytest.mark.parametrize("sampler", [Poisson(), Uniform(), Shuffled()], ids=lambda s: type(s).__name__)


def test_sampling_needs_no_torch() -> None:
    code = "import hush.sampling, hush.units, hush.keys, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# Poisson


@either_source
@pytest.mark.parametrize("rate", [256 / 60_000, 0.3, 0.5, 0.75, 1e-3])
def test_every_record_and_every_step_is_drawn_at_the_rate(key: Key, rate: float) -> None:
    count, steps = 3_000, 400
    hits = np.zeros((steps, count), dtype=bool)
    for step in range(steps):
        hits[step, flips(key, step, count, rate)] = True
    # chi-square of the counts by record and by step, each variance known: both are sums of independent squares, and
    # the normal limit is close (thousands of terms)
    for axis, trials in ((0, steps), (1, count)):
        counts = hits.sum(axis=axis)
        statistic = float(np.sum((counts - trials * rate) ** 2 / (trials * rate * (1 - rate))))
        cells = len(counts)
        kurtosis = (1 - 6 * rate * (1 - rate)) / (trials * rate * (1 - rate))
        assert abs(statistic - cells) / np.sqrt(cells * (2 + kurtosis)) < 5.5  # the chi-square's skewness: below 1e-6
    assert two_sided(int(hits.sum()), hits.size, rate) > FALSE_ALARM


@either_source
def test_coins_are_independent_across_neighbouring_records_and_steps(key: Key) -> None:
    count, steps, rate = 4_096, 300, 0.4
    hits = np.zeros((steps, count))
    for step in range(steps):
        hits[step, flips(key, step, count, rate)] = 1
    centred = (hits - rate) / np.sqrt(rate * (1 - rate))
    for step_lag, lag in [(0, 1), (0, 8), (0, 64), (0, 1024), (1, 0), (2, 0), (1, 1), (1, -1), (7, 64)]:
        left = centred[: steps - step_lag, max(0, -lag) : count - max(0, lag)]
        right = centred[step_lag:, max(0, lag) : count + min(0, lag)]
        score = float(np.sum(left * right)) / np.sqrt(left.size)  # standard normal, by the central limit theorem
        assert stats.norm.sf(abs(score)) * 2 > FALSE_ALARM / 9


@either_source
def test_sample_sizes_are_binomial(key: Key) -> None:
    count, rate, steps = 500, 0.02, 20_000
    sizes = np.array([len(flips(key, step, count, rate)) for step in range(steps)])
    edges = np.arange(3, 19)  # sizes up to 3, 4, ..., 18, and beyond
    observed = np.diff(np.concatenate([[0], [np.sum(sizes <= e) for e in edges], [steps]]))
    expected = np.diff(np.concatenate([[0], stats.binom.cdf(edges, count, rate), [1]])) * steps
    assert stats.chisquare(observed, expected).pvalue > FALSE_ALARM


@given(
    rate=st.one_of(st.floats(1e-300, 1), st.floats(1e-6, 1), st.integers(1, 60).map(lambda k: 2.0**-k)),
    count=st.integers(0, 200_000),
    longer=st.integers(0, 70_000),
)
@settings(max_examples=60, deadline=None)
def test_records_that_join_at_the_end_change_no_other_coin(rate: float, count: int, longer: int) -> None:
    before = flips(KEYS[0], 3, count, rate)
    after = flips(KEYS[0], 3, count + longer, rate)
    assert np.array_equal(before, after[after < count])
    assert np.all(np.diff(after) > 0)
    assert after.dtype == np.int64


def test_a_coin_is_the_same_across_the_seam_of_slabs() -> None:
    seam = 64 * 1024 * (1024 // (16 + 9))
    before, after = (flips(KEYS[0], 0, count, 0.001) for count in (seam, seam + 100_000))
    assert np.array_equal(before, after[after < seam])
    assert two_sided(int(np.sum(after >= seam)), 100_000, 0.001) > FALSE_ALARM


class Fixed:
    """A stream that repeats one word: it shows where the threshold lies."""

    def __init__(self, word: int) -> None:
        self.word = word

    def words(self, count: int) -> np.ndarray:
        return np.full(count, self.word, dtype=np.uint64)


@given(rate=st.one_of(st.floats(1e-300, 1), st.floats(1e-3, 1), st.sampled_from([0.5, 0.25, 1.0, 256 / 60_000])))
@settings(max_examples=60, deadline=None)
def test_the_realised_rate_is_exactly_the_accounted_one(rate: float) -> None:
    # Bits all one make everybody a candidate; the least word that is turned away is then the threshold.
    def kept(word: int) -> bool:
        class Coins(Key):
            def stream(self, purpose: str, *counters: int) -> Fixed:  # type: ignore[override]
                return Fixed(word if purpose == "poisson threshold" else 2**64 - 1)

        return len(flips(Coins(bytes(32)), 0, 1, rate)) == 1

    low, high = 0, 2**64  # all words below `low` are kept, `high` isn't
    while low < high:
        middle = (low + high) // 2
        if middle < 2**64 and kept(middle):
            low = middle + 1
        else:
            high = middle
    halvings = 0
    while Fraction(rate) <= Fraction(1, 2 ** (halvings + 1)):
        halvings += 1
    assert Fraction(low, 2 ** (64 + halvings)) == Fraction(rate)


def test_rate_one_takes_everybody_and_a_step_may_be_empty() -> None:
    assert Poisson().draw(KEYS[0], 0, 1000, batch=50, records=50).indices.tolist() == list(range(1000))
    assert len(Poisson().draw(KEYS[0], 0, 5, batch=1, records=10**9)) == 0
    assert len(Poisson().draw(KEYS[0], 0, 0, batch=1, records=10)) == 0


def test_the_rate_comes_from_the_declared_numbers_not_from_the_data() -> None:
    declared = Poisson().draw(KEYS[0], 0, 100_000, batch=100, records=1000)
    assert np.array_equal(declared.indices, flips(KEYS[0], 0, 100_000, 0.1))


@either_source
def test_a_million_coins_take_milliseconds(key: Key) -> None:
    def seconds(step: int) -> float:
        start = time.perf_counter()
        flips(key, step, 1_000_000, 1e-3)
        return time.perf_counter() - start

    assert min(seconds(step) for step in range(20)) < 0.02  # below 1 ms; the rest is for busy machines


# Uniform and shuffled


@either_source
def test_every_set_is_equally_likely_without_replacement(key: Key) -> None:
    for of, size in [(6, 2), (6, 3), (6, 5), (5, 1)]:
        sets = dict.fromkeys(itertools.combinations(range(of), size), 0)
        for step in range(6_000):
            sets[tuple(choose(key.stream("test", of, size, step), size, of).tolist())] += 1
        assert stats.chisquare(list(sets.values())).pvalue > FALSE_ALARM / 4


@given(of=st.integers(1, 3_000), share=st.floats(0, 1), step=st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_a_choice_has_the_asked_size_and_no_repetitions(of: int, share: float, step: int) -> None:
    size = round(share * of)
    chosen = choose(KEYS[0].stream("test", step), size, of)
    assert len(chosen) == size
    assert np.all(np.diff(chosen) > 0)
    assert size == 0 or (chosen[0] >= 0 and chosen[-1] < of)


def test_words_beyond_the_last_whole_multiple_are_skipped() -> None:
    # 2^64 mod 3 = 1: only the very last word is left over, and taking it would favour 0
    class Two:
        asked = 0

        def words(self, count: int) -> np.ndarray:
            self.asked += 1
            words = np.full(count, 2**64 - 1, dtype=np.uint64)
            if self.asked > 1:
                words[:] = 2
            return words

    source = Two()
    assert choose(source, 1, 3).tolist() == [2]
    assert source.asked == 2


@either_source
def test_every_order_is_equally_likely(key: Key) -> None:
    orders = dict.fromkeys(itertools.permutations(range(4)), 0)
    for epoch in range(6_000):
        orders[tuple(permutation(key.stream("test", epoch), 4).tolist())] += 1
    assert stats.chisquare(list(orders.values())).pvalue > FALSE_ALARM


def test_an_order_is_drawn_again_when_two_words_are_equal() -> None:
    class Tied:
        rounds = iter([[5, 5, 1], [7, 3, 5]])

        def words(self, count: int) -> np.ndarray:
            return np.array(next(self.rounds), dtype=np.uint64)

    assert permutation(Tied(), 3).tolist() == [1, 2, 0]


@pytest.mark.parametrize(("records", "batch", "sizes"), [(10, 3, [3, 3, 3, 1]), (9, 3, [3, 3, 3]), (4, 4, [4])])
def test_an_epoch_sees_every_record_once_the_short_batch_included(records: int, batch: int, sizes: list[int]) -> None:
    per_epoch = len(sizes)
    for epoch in range(3):
        steps = range(epoch * per_epoch, (epoch + 1) * per_epoch)
        draws = [Shuffled().draw(KEYS[0], step, records, batch=batch, records=records).indices for step in steps]
        assert [len(draw) for draw in draws] == sizes
        assert sorted(np.concatenate(draws).tolist()) == list(range(records))


def test_epochs_are_shuffled_anew() -> None:
    first, second = (Shuffled().draw(KEYS[0], step, 1000, batch=500, records=1000).indices for step in (0, 2))
    assert not np.array_equal(first, second)


def test_a_shuffled_epoch_is_charged_once_at_its_first_step() -> None:
    due = [Shuffled().charges(range(t, t + 1), batch=3, records=10) for t in range(9)]
    assert due == [1, 0, 0, 0, 1, 0, 0, 0, 1]
    for start, stop in itertools.combinations_with_replacement(range(9), 2):
        assert Shuffled().charges(range(start, stop), batch=3, records=10) == sum(due[start:stop])


@pytest.mark.parametrize("sampler", [Uniform(), Shuffled()])
def test_replace_one_samplers_need_the_exact_number_of_records(sampler: Sampler) -> None:
    with pytest.raises(ValueError, match="the plan's 10 must be exact, but the data has 11"):
        sampler.draw(KEYS[0], 0, 11, batch=2, records=10)


# What a sampler knows about privacy


def test_each_sampler_accounts_for_what_it_draws() -> None:
    release = {relation: Gaussian(1.3, relation) for relation in (ADD_REMOVE, REPLACE_ONE)}
    numbers = {"batch": 256, "records": 60_000}
    assert Poisson().mechanism(release[Poisson.neighbours], **numbers) == Gaussian(1.3).poisson(256 / 60_000)
    assert Uniform().mechanism(release[Uniform.neighbours], **numbers) == release[REPLACE_ONE].uniform(256, of=60_000)
    assert Shuffled().mechanism(release[Shuffled.neighbours], **numbers) == ShuffledEpoch(release[REPLACE_ONE])


def test_epochs_become_whole_steps_without_rounding_through_floats() -> None:
    assert Poisson().steps(15, batch=256, records=60_000) == 3516
    assert Poisson().steps(1, batch=1, records=782) == 782
    assert Poisson().steps(0.1, batch=1, records=10) == 1  # 0.1 as a float is a little more than a tenth
    assert Shuffled().steps(15, batch=256, records=60_000) == 15 * 235


@samplers
def test_draws_depend_on_key_and_step_alone(sampler: Sampler) -> None:
    def indices(key: Key, step: int) -> list[int]:
        return sampler.draw(key, step, 200, batch=40, records=200).indices.tolist()

    forwards = [indices(KEYS[0], step) for step in range(10)]
    assert [indices(KEYS[0], step) for step in reversed(range(10))] == forwards[::-1]
    assert all(a != b for a, b in itertools.pairwise(forwards))
    assert indices(Key.from_seed(21), 0) != forwards[0]
    assert indices(Key.from_seed(20, secure=True), 0) != forwards[0]
    assert all(draw == sorted(draw) for draw in forwards)


@samplers
@pytest.mark.parametrize(("batch", "records"), [(0, 10), (11, 10), (-1, 10), (2, 0), (float("nan"), 10), (2, 10.5)])
def test_impossible_numbers_are_refused(sampler: Sampler, batch: float, records: int) -> None:
    with pytest.raises(ValueError, match=r"\.$"):
        sampler.check(batch, records)


@pytest.mark.parametrize(
    "sampler",
    [
        WeightedRandomSampler([0.1, 0.9], 2),
        BatchSampler(SequentialSampler([1, 2]), 1, drop_last=True),
        Poisson,
        "poisson",
        None,
    ],
)
def test_samplers_that_are_not_understood_are_refused_by_name(sampler: object) -> None:
    name = sampler.__name__ if isinstance(sampler, type) else type(sampler).__name__
    with pytest.raises(ValueError, match=f"{name} draws batches in a way"):
        check_sampler(sampler)


# Users


IDS = ["eve", "bob", "eve", "ann", "bob", "eve"]


def test_all_records_of_a_drawn_user_come_along_and_are_one_unit() -> None:
    users = Users(IDS)
    assert (users.count, users.records) == (3, 6)
    draw = users.gather(np.array([0, 2]), KEYS[0], 0)  # numbered by first appearance: eve 0, bob 1, ann 2
    assert draw.indices.tolist() == [0, 2, 3, 5]
    assert draw.units is not None
    assert draw.units.tolist() == [0, 0, 1, 0]
    assert draw.count == 2


@samplers
@pytest.mark.parametrize("dtype", [np.int64, np.uint8, str, bytes, object])
def test_users_may_be_named_by_numbers_or_strings(sampler: Sampler, dtype: type) -> None:
    numbers = np.random.default_rng(3).integers(0, 20, size=300)
    reference = sampler.draw(KEYS[0], 1, Users(numbers), batch=5, records=20)
    draw = sampler.draw(KEYS[0], 1, Users(numbers.astype(dtype)), batch=5, records=20)
    assert np.array_equal(draw.indices, reference.indices)
    assert np.array_equal(draw.units, reference.units)
    by_unit = {unit: set(numbers[draw.indices[draw.units == unit]]) for unit in range(draw.count)}
    assert all(len(members) == 1 for members in by_unit.values())
    assert sorted(draw.indices) == sorted(np.flatnonzero(np.isin(numbers, list(set.union(*by_unit.values())))))


def test_a_user_who_joins_at_the_end_changes_nobody_elses_draw() -> None:
    ids = [f"user {i % 40}" for i in range(200)]
    for step in range(30):
        before = Poisson().draw(KEYS[0], step, Users(ids, most=3), batch=8, records=40)
        after = Poisson().draw(KEYS[0], step, Users([*ids, "a new one", "a new one"], most=3), batch=8, records=40)
        others = after.indices < 200
        assert np.array_equal(before.indices, after.indices[others])
        assert np.array_equal(before.units, after.units[others])


def test_at_most_so_many_records_of_a_user_are_taken_each_equally_often() -> None:
    users = Users(["a"] * 2 + ["b"] * 10 + ["c"] * 3, most=3)
    counts = np.zeros(15)
    steps = 3_000
    for step in range(steps):
        draw = users.gather(np.array([0, 1, 2]), KEYS[0], step)
        assert np.bincount(draw.units).tolist() == [2, 3, 3]
        counts[draw.indices] += 1
    assert np.all(counts[[0, 1, 12, 13, 14]] == steps)
    # Three of ten without replacement: the counts' covariance is steps * 0.3 * 0.7 * 10/9 (identity - ones/10).
    statistic = np.sum((counts[2:12] - 0.3 * steps) ** 2) / (0.3 * 0.7 * steps) * 9 / 10
    assert stats.chi2.sf(statistic, 9) > FALSE_ALARM
    assert stats.chi2.cdf(statistic, 9) > FALSE_ALARM


def test_another_users_records_do_not_change_which_of_mine_are_taken() -> None:
    alone = Users(["a"] * 10, most=3).gather(np.array([0]), KEYS[0], 5)
    crowd = Users(["a"] * 10 + ["b"] * 7, most=3).gather(np.array([0, 1]), KEYS[0], 5)
    assert np.array_equal(alone.indices, crowd.indices[crowd.units == 0])
    second = Users(["a"] * 10 + ["b"] * 7, most=3).gather(np.array([1]), KEYS[0], 5)  # without the one before
    assert np.array_equal(second.indices, crowd.indices[crowd.units == 1])


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([[1, 2]], "one id per record"),
        ([1.5, 2.5], "whole numbers or strings"),
        (np.array(["a", None], dtype=object), "None or NaN"),
        (np.array(["a", 1], dtype=object), "a mixture"),
    ],
)
def test_ids_that_name_nobody_are_refused(ids: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Users(ids)


def test_a_population_is_its_records_or_its_users() -> None:
    assert population(5) == Records(5)
    assert population(6, IDS).count == 3
    with pytest.raises(ValueError, match="7 records, but 6 ids"):
        population(7, IDS)
    with pytest.raises(ValueError, match="no users"):
        population(7, most=2)


# Groups


def test_a_records_group_depends_on_its_own_coins_only() -> None:
    alone = grouped(Draw(np.array([7])), KEYS[0], 4, 5)
    crowd = grouped(Draw(np.arange(100)), KEYS[0], 4, 5)
    assert crowd.count == alone.count == 5
    assert crowd.units is not None
    assert alone.units is not None
    assert crowd.units[7] == alone.units[0]


def test_groups_are_equally_likely_and_change_with_the_step() -> None:
    groups = np.array([grouped(Draw(np.arange(200)), KEYS[0], step, 7).units for step in range(50)])
    assert stats.chisquare(np.bincount(groups.ravel(), minlength=7)).pvalue > FALSE_ALARM
    pairs = np.bincount((7 * groups[:-1] + groups[1:]).ravel(), minlength=49)
    assert stats.chisquare(pairs).pvalue > FALSE_ALARM


def test_groups_of_users_are_refused() -> None:
    with pytest.raises(ValueError, match="single records"):
        grouped(Users(IDS).gather(np.array([0]), KEYS[0], 0), KEYS[0], 0, 2)


def two_sided(successes: int, trials: int, probability: float) -> float:
    return float(stats.binomtest(successes, trials, probability).pvalue)
