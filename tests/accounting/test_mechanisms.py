"""Mechanisms are values: immutable, comparable, composable, storable, and honest about their relation."""

import dataclasses
import math
import re
from fractions import Fraction

import numpy as np
import pytest

from hush.accounting import (
    ADD_REMOVE,
    REPLACE_ONE,
    Bounds,
    Composition,
    Gaussian,
    Guarantees,
    Laplace,
    Mechanism,
    Projected,
    RandomisedResponse,
    Renyi,
    Tradeoff,
    compose,
)

EVERY_KIND = [
    Gaussian(1.3),
    Gaussian(1.3, REPLACE_ONE),
    Laplace(2.0),
    RandomisedResponse(0.5),
    Guarantees.of(0.3, 1e-6),
    Guarantees(((0.3, 1e-6), (1.0, 1e-9))),
    Tradeoff((0.0, 0.2, 1.0), (0.9, 0.4, 0.0)),
    Renyi((2.0, 4.0, 8.0), (0.01, 0.02, 0.05)),
    Projected(1.3, 30),
    Gaussian(1.3).poisson(0.01),
    Projected(1.3, 30).poisson(0.01),
    Gaussian(1.3).uniform(10, of=1000),
    Gaussian(1.3).shuffled() * 2,
    Laplace(2.0).poisson(0.1) * 7,
    Gaussian(1.3).poisson(0.01) * 100 + Gaussian(8.0) + Laplace(10.0) * 3,
    (Gaussian(1.3).poisson(0.01) * 100).group(3),
]


@pytest.mark.parametrize("mechanism", EVERY_KIND, ids=str)
def test_goes_to_json_and_back_unchanged(mechanism: Mechanism) -> None:
    assert Mechanism.from_json(mechanism.to_json()) == mechanism
    assert hash(Mechanism.from_json(mechanism.to_json())) == hash(mechanism)


@pytest.mark.parametrize("mechanism", EVERY_KIND, ids=str)
def test_prints_its_relation_and_its_tag(mechanism: Mechanism) -> None:
    assert mechanism.neighbours.value in str(mechanism)
    assert mechanism.tag in str(mechanism)


def test_values_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Gaussian(1.0).noise_multiplier = 2.0  # type: ignore[misc]


def test_composition_is_commutative_and_associative_and_counts_equal_steps_together() -> None:
    a, b, c = Gaussian(1.0).poisson(0.1), Gaussian(2.0), Laplace(3.0)
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)
    assert a + a + a == a * 3 == 3 * a
    assert a * 2 + a * 3 == a * 5
    assert (a * 3) * 2 == a * 6
    assert (a + b) * 4 == a * 4 + b * 4
    assert a * 1 == a


def test_a_list_of_mechanisms_adds_up() -> None:
    parts = [Gaussian(1.0), Laplace(2.0), Gaussian(1.0)]
    assert sum(parts) == parts[0] + parts[1] + parts[2]
    with pytest.raises(TypeError):
        1 + parts[0]  # type: ignore[operator]


def test_both_ends_of_an_answer_can_be_taken_at_once() -> None:
    lower, upper = Gaussian(1.0).epsilon(1e-5)
    assert Bounds(lower, upper) == Gaussian(1.0).epsilon(1e-5)


def test_thousands_of_steps_group_into_the_distinct_ones() -> None:
    run = compose([(Gaussian(1.0 + (i % 5)), 1) for i in range(5000)])
    assert [count for _, count in run.parts()] == [1000] * 5


def test_different_relations_do_not_compose() -> None:
    with pytest.raises(ValueError, match=r"add/remove one and replace one"):
        Gaussian(1.0) + Gaussian(1.0, REPLACE_ONE)


def test_what_protects_one_record_does_not_compose_with_what_protects_several() -> None:
    assert (Gaussian(1.0).group(2) * 3).records == 2
    assert str(Gaussian(1.0).group(3)).endswith("[add/remove one, 3 times over, exact]")
    with pytest.raises(ValueError, match="one and add/remove one, 2 times over"):
        Gaussian(1.0).group(2) + Gaussian(1.0)


def test_a_group_is_of_a_whole_run() -> None:
    steps, coin = Gaussian(1.3).poisson(0.01) * 100, RandomisedResponse(0.5, ADD_REMOVE)
    assert steps.group(3) + coin.group(3) == (steps + coin).group(3) == coin.group(3) + steps.group(3)
    assert steps.group(3) * 5 == (steps * 5).group(3)
    assert steps.group(2).group(3) == steps.group(6) == Mechanism.from_json(steps.group(2).group(3).to_json())
    assert sum([steps.group(2), coin.group(2) * 2]) == (steps + coin * 2).group(2)
    with pytest.raises(ValueError, match="2 times over and add/remove one, 3 times over"):
        steps.group(2) + coin.group(3)
    with pytest.raises(ValueError, match=r"single releases; compose with \+ and \*"):
        Composition(((steps.group(2), 1),))


def test_sampling_at_rate_one_changes_nothing() -> None:
    assert Gaussian(1.3).poisson(1.0) == Gaussian(1.3)
    assert Gaussian(1.3).uniform(5, of=5) == Gaussian(1.3, REPLACE_ONE)


def test_releases_from_one_sample_are_one_value() -> None:
    assert Gaussian.joint(1.0, 1.0).noise_multiplier == pytest.approx(math.sqrt(0.5))
    assert Gaussian.joint(2.0) == Gaussian(2.0)
    with pytest.raises(ValueError, match="joint"):
        (Gaussian(1.0) * 2).poisson(0.1)
    # the example of the design: two sigma=1 releases in the first Table 1 setting
    run = Gaussian.joint(1.0, 1.0).poisson(256 / 60_000) * 3516
    assert run.epsilon(1e-5).upper == pytest.approx(3.29, abs=0.01)


def test_the_relation_carries_the_sensitivity() -> None:
    assert ADD_REMOVE.sensitivity == 1.0
    assert REPLACE_ONE.sensitivity == 2.0
    assert Gaussian(1.3).uniform(256, of=60_000).neighbours is REPLACE_ONE
    assert Gaussian(1.3).shuffled().neighbours is REPLACE_ONE
    assert Gaussian(1.3).shuffled().mu == pytest.approx(1 / 1.3)


@pytest.mark.parametrize(
    ("mechanism", "tag"),
    [
        (Gaussian(1.0), "exact"),
        (Gaussian(1.0).poisson(0.1) * 5, "exact"),
        (Gaussian(1.0).uniform(1, of=10), "bound"),
        (Gaussian(1.0, REPLACE_ONE).poisson(0.1), "bound"),
        (Guarantees.of(1.0, 1e-5), "bound"),
        (Projected(1.0, 10).poisson(0.1), "bound"),
        (Gaussian(1.0).shuffled() * 3, "bound"),
        (Gaussian(1.0) + Guarantees.of(1.0), "bound"),
        ((Gaussian(1.0) * 4).group(2), "exact"),
        ((Gaussian(1.0).poisson(0.1) * 4).group(2), "bound"),
    ],
)
def test_tags_say_whether_the_number_is_the_mechanisms_own(mechanism: Mechanism, tag: str) -> None:
    assert mechanism.tag == tag


def test_mu_is_known_exactly_where_the_mechanism_is_gaussian() -> None:
    assert (Gaussian(2.0) * 9 + Gaussian(1.0)).mu == pytest.approx(math.sqrt(9 / 4 + 1))
    assert (Gaussian(2.0) * 4).group(3).mu == pytest.approx(3.0)
    assert (Gaussian(2.0).poisson(0.5) * 4).mu is None


BAD = [
    (lambda: Gaussian(0.0), "positive"),
    (lambda: Gaussian(-1.0), "positive"),
    (lambda: Gaussian(math.nan), "positive"),
    (lambda: Gaussian(math.inf), "finite"),
    (lambda: Laplace(0.0), "positive"),
    (lambda: Gaussian(1.0).poisson(0.0), "sampling rate"),
    (lambda: Gaussian(1.0).poisson(1.5), "sampling rate"),
    (lambda: Gaussian(1.0).poisson(math.nan), "sampling rate"),
    (lambda: Gaussian(1.0).uniform(0, of=10), "batch"),
    (lambda: Gaussian(1.0).uniform(11, of=10), "batch"),
    (lambda: Gaussian(1.0) * 0, "whole number"),
    (lambda: Gaussian(1.0) * 1.5, "whole number"),  # type: ignore[operator]
    (lambda: Gaussian(1.0).group(0), "whole number"),
    (lambda: Projected(1.0, 0), "whole number"),
    (lambda: Projected(1.0, 10).uniform(1, of=10), "add/remove"),
    (lambda: Guarantees(()), "At least one"),
    (lambda: Guarantees.of(-1.0), "epsilon"),
    (lambda: Guarantees.of(1.0, 2.0), "delta"),
    (lambda: Tradeoff((0.0, 1.0), (0.2, 0.5)), "trade-off function"),
    (lambda: Tradeoff((0.0, 0.5), (0.2, 0.1)), "from 0 to 1"),
    (lambda: Renyi((0.5,), (0.1,)), "Renyi"),
    (lambda: Gaussian(1.0).poisson(0.1).poisson(0.1), "single release"),
    (lambda: Gaussian(1.0).epsilon(0.0), "purely private"),
    (lambda: Gaussian(1.0).epsilon(1.0), "below 1"),
    (lambda: Gaussian(1.0).epsilon(math.nan), "below 1"),
    (lambda: Gaussian(1.0).delta(-1.0), "not negative"),
    (lambda: Gaussian(1.0).delta(math.nan), "not negative"),
    (lambda: Mechanism.from_json("{}"), "Not a mechanism"),
    (lambda: Mechanism.from_json('{"mechanism": "gaussian"}'), "fields"),
    (lambda: Gaussian("1"), "positive"),  # type: ignore[arg-type]
    (lambda: Gaussian(1.0) * math.nan, "whole number"),  # type: ignore[operator]
    (lambda: Gaussian(1.0) * math.inf, "whole number"),  # type: ignore[operator]
    (lambda: Gaussian(1.0).uniform(1.5, of=10), "whole number"),  # type: ignore[arg-type]
    # true for replacing a record, silent about its absence: no amplification by coin flips
    (lambda: RandomisedResponse(0.5).poisson(0.1), "gains nothing"),
    (lambda: Guarantees.of(1.0, neighbours=REPLACE_ONE).poisson(0.1), "gains nothing"),
    # an add/remove promise is only half of one about replacing
    (lambda: Guarantees.of(1.0).uniform(1, of=10), "state it for replace one"),
    (lambda: Tradeoff((0.0, 0.2, 1.0), (0.9, 0.4, 0.0)).shuffled(), "state it for replace one"),
    (lambda: Bounds(2.0, 1.0), "lower bound"),
    (lambda: Gaussian(1.0).epsilon("1e-5"), "a number"),  # type: ignore[arg-type]
    (lambda: Gaussian(1.0).delta(None), "a number"),  # type: ignore[arg-type]
    (lambda: Gaussian(1.0).tradeoff(10.5), "whole number"),  # type: ignore[arg-type]
    (lambda: Gaussian(1.0) * 10**30, "at most"),
    (lambda: Mechanism.from_json('{"mechanism": ["gaussian"]}'), "Not a mechanism"),
    # replacing a record moves the sum by two estimated norms, which nobody has analysed
    (lambda: Projected(1.0, 10, REPLACE_ONE), "add/remove"),
]


@pytest.mark.parametrize(("build", "says"), BAD)
def test_bad_input_gives_one_sentence(build: object, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        build()  # type: ignore[operator]
    assert "\n" not in str(caught.value)


def test_compositions_are_built_not_nested() -> None:
    with pytest.raises(ValueError, match="single releases"):
        Composition(((Gaussian(1.0) * 2, 1),))


def test_numpy_numbers_are_welcome() -> None:
    run = Gaussian(np.float64(1.3)).poisson(np.float64(0.01)) * np.int64(10)
    assert run == Gaussian(1.3).poisson(0.01) * 10
    assert Mechanism.from_json(run.to_json()) == run
    odd = Projected(np.float32(1.5), np.int64(30))  # type: ignore[arg-type]
    assert Mechanism.from_json(odd.to_json()) == odd


def test_a_fraction_is_as_good_as_its_floating_point_number() -> None:
    """A third exceeds its floating-point number, and had been taken for an epsilon too far out to be asked."""
    run = Gaussian(1.0).poisson(0.1) * 5
    assert run.delta(Fraction(1, 3)) == run.delta(1 / 3)
    assert run.epsilon(Fraction(1, 1000)) == run.epsilon(1e-3)


def test_whole_numbers_written_with_a_point_are_whole_numbers() -> None:
    for mechanism in ((Laplace(2.0) * 3).group(2), Projected(1.3, 30).poisson(0.1) * 2, Laplace(2.0).uniform(3, of=10)):
        written = mechanism.to_json()
        for field in ("size", "projections", "batch", "of"):
            written = re.sub(rf'("{field}": \d+)(?!\.)\b', r"\1.0", written)
        assert Mechanism.from_json(written) == mechanism
        assert Mechanism.from_json(written).to_json() == mechanism.to_json()
        assert Mechanism.from_json(written).epsilon(1e-3) == mechanism.epsilon(1e-3)


def test_a_count_that_is_not_whole_is_refused_rather_than_cut() -> None:
    """2.7 releases were counted as 2."""
    written = (Laplace(2.0) * 3).to_dict()
    written["counted"][0][1] = 2.7
    with pytest.raises(ValueError, match="whole number"):
        Mechanism.from_dict(written)
    written["counted"][0][1] = 3.0
    assert Mechanism.from_dict(written) == Laplace(2.0) * 3
