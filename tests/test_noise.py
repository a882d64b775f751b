"""Keys and noise: the right law, independence, the full key, and rounding that tells nothing.

Statistical tests have fixed seeds, so they pass or fail for good; each states how often right noise would have failed
it had its seed been drawn: FALSE_ALARM, unless it says otherwise.
"""

from __future__ import annotations

import builtins
import decimal
import json
import math
import time
from collections.abc import Callable
from decimal import Decimal
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from hush import hardened, noise
from hush.keys import Key

FALSE_ALARM = 1e-6
DEVICES = [torch.device("cpu"), *([torch.device("cuda")] if torch.cuda.is_available() else [])]
KINDS = (False, True) if find_spec("cryptography") else (False,)
SOURCES = [(Key.from_seed(30, secure), device) for device in DEVICES for secure in KINDS]
every_source = pytest.mark.parametrize(
    ("key", "device"), SOURCES, ids=[f"{device}{' secure' * key.secure}" for key, device in SOURCES]
)


def drawn(key: Key, device: torch.device, step: int, count: int, std: float = 1.0) -> np.ndarray:
    return noise.gaussian(key, step, [(count,)], [std], device)[0].cpu().double().numpy()


# The law


@every_source
def test_noise_is_normal(key: Key, device: torch.device) -> None:
    sample = drawn(key, device, 0, 200_000, std=2.5)
    assert stats.kstest(sample / 2.5, "norm").pvalue > FALSE_ALARM
    # ... as finely as 200 equal cells show, and far out
    observed = np.bincount((special.ndtr(sample / 2.5) * 200).astype(int), minlength=200)
    assert stats.chisquare(observed).pvalue > FALSE_ALARM
    for cut in (3.0, 4.0):
        beyond = int(np.sum(np.abs(sample) > 2.5 * cut))
        assert stats.binomtest(beyond, len(sample), 2 * special.ndtr(-cut)).pvalue > FALSE_ALARM / 2


@every_source
def test_moments_of_noise_are_those_of_the_normal_law(key: Key, device: torch.device) -> None:
    sample = drawn(key, device, 1, 400_000)
    for power, moment, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10395 - 225)]:
        score = (np.mean(sample**power) - moment) / math.sqrt(variance / len(sample))
        # 7 rather than 4.9 standard errors: high powers are skewed
        assert abs(score) < 7


@every_source
def test_noise_is_independent_across_steps_tensors_and_places(key: Key, device: torch.device) -> None:
    shapes = [(50, 200), (10_000,), (100, 10, 10)]
    steps = [
        [z.cpu().double().numpy().ravel() for z in noise.gaussian(key, step, shapes, [1, 1, 1], device)]
        for step in range(4)
    ]
    parts = [part for step in steps for part in step]
    pairs = [(a, b) for i, a in enumerate(parts) for b in parts[:i]]
    pairs += [(part[:-lag], part[lag:]) for part in parts for lag in (1, 2, 64)]
    for a, b in pairs:
        for left, right in [(a, b), (np.abs(a) - math.sqrt(2 / math.pi), np.abs(b) - math.sqrt(2 / math.pi))]:
            score = np.dot(left, right) / (left.std() * right.std() * math.sqrt(len(left)))
            assert 2 * stats.norm.sf(abs(score)) > FALSE_ALARM / (2 * len(pairs))


@every_source
def test_each_tensor_has_its_own_standard_deviation(key: Key, device: torch.device) -> None:
    stds = [0.01, 3.0, 100.0]
    for z, std in zip(noise.gaussian(key, 0, [(300, 100)] * 3, stds, device), stds, strict=True):
        ratio = float(z.double().square().sum()) / std**2
        assert min(stats.chi2.cdf(ratio, 30_000), stats.chi2.sf(ratio, 30_000)) > FALSE_ALARM / 6


# What decides the bits


@every_source
def test_the_same_key_and_step_give_the_same_bits_and_others_do_not(key: Key, device: torch.device) -> None:
    def bits(key: Key, step: int, purpose: str = "noise") -> list[list[float]]:
        return [z.tolist() for z in noise.gaussian(key, step, [(3,), (2,), ()], [1, 1, 1], device, purpose=purpose)]

    assert bits(key, 5) == bits(key, 5)
    others = [bits(key, 6), bits(key, 5, "count"), bits(Key.from_seed(31, key.secure), 5)]
    assert all(first != second for first, second in zip(bits(key, 5), others[0], strict=True))
    assert bits(key, 5) not in others


@every_source
def test_global_generators_neither_change_noise_nor_are_changed(key: Key, device: torch.device) -> None:
    torch.manual_seed(1)
    state, legacy = torch.get_rng_state(), np.random.get_state()[1].copy()
    first = drawn(key, device, 0, 10)
    assert torch.equal(state, torch.get_rng_state())
    assert np.array_equal(legacy, np.random.get_state()[1])
    torch.manual_seed(2)
    assert np.array_equal(first, drawn(key, device, 0, 10))


def test_noise_depends_on_every_bit_of_the_key() -> None:
    # PyTorch's CPU generator forgets all but 32 bits of its seed; two keys that differ in any one bit must differ here
    for bit in range(256):
        secret = bytearray(32)
        secret[bit // 8] ^= 1 << bit % 8
        assert not np.array_equal(drawn(Key(bytes(secret)), DEVICES[0], 0, 2), drawn(Key(bytes(32)), DEVICES[0], 0, 2))


def test_the_cpu_generator_of_pytorch_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bits"):
        noise.seed(torch.Generator(), Key.from_seed(1), 0)


def test_streams_use_all_of_what_was_derived() -> None:
    material = Key.from_seed(1).derive("noise", 0)
    state = Key.from_seed(1).philox("noise", 0).state["state"]
    numbers = np.concatenate([state["key"], state["counter"][2:]])
    assert numbers.astype("<u8").tobytes() == material
    assert not state["counter"][:2].any()


@given(st.lists(st.tuples(st.text(max_size=4), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3)), max_size=8))
@settings(max_examples=50)
def test_different_names_never_share_a_stream(names: list[tuple[str, list[int]]]) -> None:
    distinct = {(purpose, tuple(counters)) for purpose, counters in names}
    assert len({Key.from_seed(1).derive(purpose, *counters) for purpose, counters in distinct}) == len(distinct)


def test_a_purpose_that_reads_like_a_counter_has_a_stream_of_its_own() -> None:
    key = Key.from_seed(1)
    assert len({key.derive("noise", 1), key.derive("\1" + "\0" * 7 + "noise"), key.derive("noise", 1, 0)}) == 3


# Adding


@every_source
def test_adding_noise_adds_what_is_drawn(key: Key, device: torch.device) -> None:
    sums = [torch.full((4, 3), 7.0, device=device), torch.zeros(5, dtype=torch.float64, device=device)]
    noisy = noise.add(key, 2, sums, [1.0, 4.0])
    assert [z.dtype for z in noisy] == [torch.float32, torch.float64]
    assert [z.device.type for z in noisy] == [device.type] * 2
    # a GPU draws other numbers in double precision, and that is what sums in double precision get
    dtype = torch.float64 if device.type == "cuda" else torch.float32
    alone = noise.gaussian(key, 2, [(4, 3), (5,)], [1.0, 4.0], device, dtype)
    for total, z, result in zip(sums, alone, noisy, strict=True):
        assert torch.allclose(result - total, z.to(total), atol=2e-3 * 4)
    assert torch.equal(sums[0], torch.full_like(sums[0], 7.0))


@every_source
def test_nothing_to_noise_is_fine(key: Key, device: torch.device) -> None:
    assert noise.add(key, 0, [], []) == []
    assert noise.gaussian(key, 0, [], [], device) == []
    assert noise.gaussian(key, 0, [(0, 3)], [1.0], device)[0].shape == (0, 3)


@pytest.mark.parametrize("std", [0.0, -1.0, math.inf, math.nan])
def test_a_standard_deviation_that_hides_nothing_is_refused(std: float) -> None:
    with pytest.raises(ValueError, match="standard deviation must be positive and finite"):
        noise.add(Key.from_seed(1), 0, [torch.zeros(2)], [std])
    with pytest.raises(ValueError, match="1 tensors and 2 numbers"):
        noise.add(Key.from_seed(1), 0, [torch.zeros(2)], [1.0, 1.0])


def test_secure_noise_refuses_a_sum_that_is_not_finite() -> None:
    with pytest.raises(ValueError, match="NaN or infinite"):
        noise.add(Key.from_seed(1, secure=True), 0, [torch.tensor([1.0, math.nan])], [1.0])


# The hardened Gaussian


def words(count: int, name: str = "words") -> np.ndarray:
    return Key.from_seed(32, secure=True).stream(name).words(count)


def no_more(i: int) -> bytes:
    raise AssertionError("not to be asked")


@pytest.mark.parametrize("std", [1.0, 1.99, 2.0, 1e-4, 3.7e5])
def test_the_grid_is_a_power_of_two_near_a_thousandth_of_the_noise(std: float) -> None:
    spacing = hardened.grid(std)
    assert math.frexp(spacing)[0] == 0.5
    assert std / 2048 < spacing <= std / 1024


@given(sum_=st.floats(-1e4, 1e4), std=st.floats(0.01, 100))
@settings(max_examples=50, deadline=None)
def test_outputs_lie_on_the_same_grid_whatever_the_sum(sum_: float, std: float) -> None:
    noisy = hardened.rounded(np.full(200, sum_), std, words(200), no_more)
    places = noisy / hardened.grid(std)
    assert np.array_equal(places, np.rint(places))
    assert np.abs(noisy - sum_).max() < 7 * std


def test_rounded_noise_is_the_rounded_normal_law_with_no_correlation_to_the_sums_last_digits() -> None:
    # The places' law, exactly: differences of Phi at the midpoints.  Two sums that differ in their last digit only.
    std, count = 1.5, 100_000
    for sum_ in (1 / 3, np.nextafter(1 / 3, 1)):
        noisy = hardened.rounded(np.full(count, sum_), std, words(count, f"{sum_!r}"), no_more)
        spacing = hardened.grid(std)
        modulo = np.mod(np.rint(noisy / spacing), 16).astype(int)  # the finest digits are uniform
        assert stats.chisquare(np.bincount(modulo, minlength=16)).pvalue > FALSE_ALARM / 4
        edges = (np.arange(-3000, 3001, 60) + 0.5) * spacing
        observed = np.histogram(noisy, np.concatenate([[-np.inf], edges, [np.inf]]))[0]
        expected = np.diff(np.concatenate([[0], special.ndtr((edges - sum_) / std), [1]])) * count
        assert stats.chisquare(observed, expected).pvalue > FALSE_ALARM / 4


def test_floating_point_decides_as_exact_arithmetic_does(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 300
    sums = np.random.default_rng(5).normal(scale=100, size=count)
    tails = words(count) >> np.arange(count).astype(np.uint64) % np.uint64(40)  # small words too: far out
    fast = hardened.rounded(sums, 1.7, tails, lambda i: bytes(range(24)))
    monkeypatch.setattr(hardened, "_ERROR", 1.0)  # nothing is decided without further bits
    exact = hardened.rounded(sums, 1.7, tails, lambda i: bytes(range(24)))
    assert np.array_equal(fast, exact)


def test_a_number_at_a_midpoint_is_decided_by_further_bits() -> None:
    # the sum sits where the first 63 bits leave Z on both sides of a midpoint: the last bits of u decide
    word = np.uint64(123_456_789 << 30)
    spacing = hardened.grid(1.0)
    with decimal.localcontext(prec=100):
        z = -quantile(Decimal(int(word)) / 2**64 + Decimal(1) / 2**65)  # the middle of the word's cell
        sum_ = float(-z + Decimal(spacing) / 2)
    asked: list[int] = []

    def decide(bits: int) -> float:
        def more(i: int) -> bytes:
            asked.append(i)
            return bits.to_bytes(24, "little")

        return float(hardened.rounded(np.array([sum_]), 1.0, np.array([word]), more)[0])

    results = {decide(bits) for bits in (0, 2**192 - 1)}
    assert asked == [0, 0]
    assert results <= {0.0, spacing}

    # ... and they decide as u compares with Phi at the midpoint
    with decimal.localcontext(prec=100):
        limit = hardened.normal_cdf(-(Decimal(spacing) / 2 - Decimal(sum_)))
        for bits in (0, 2**191, 2**192 - 1):
            u = (Decimal(int(word)) * 2**192 + bits + Decimal("0.5")) / 2**256
            assert decide(bits) == (0.0 if u > limit else spacing)


def test_the_smallest_words_reach_as_far_as_their_further_bits_say() -> None:
    far = [
        float(hardened.rounded(np.zeros(1), 1.0, np.array([0], dtype=np.uint64), lambda i, b=b: b)[0])
        for b in (b"\xff" * 24, b"\1" + bytes(23), bytes(24))
    ]
    assert far[0] == pytest.approx(-special.ndtri(2.0**-64), abs=1e-3)
    assert far[1] == pytest.approx(-special.ndtri(1.5 * 2.0**-256), abs=1e-3)
    assert far[2] == pytest.approx(-special.ndtri(0.5 * 2.0**-256), abs=1e-3)


def quantile(u: Decimal) -> Decimal:
    """Phi^-1(u) by Newton's method from SciPy's answer."""
    z = Decimal(float(special.ndtri(float(u))))
    for _ in range(4):
        density = (-z * z / 2).exp() / (2 * hardened._pi()).sqrt()
        z -= (hardened.normal_cdf(z) - u) / density
    return z


def test_the_normal_distribution_function_is_right_to_many_digits() -> None:
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(180), decimal.localcontext(prec=200):
        for x in ("-18.5", "-9.25", "-3", "-0.001", "0", "0.7", "5"):
            ours = mpmath.mpf(str(hardened.normal_cdf(Decimal(x))))
            assert abs(ours - mpmath.ncdf(mpmath.mpf(x))) < mpmath.mpf(10) ** -150


def test_the_error_that_is_allowed_for_covers_the_error_that_is_made() -> None:
    """The bound of the docstring's first step, against 60 digits: at most an eighth of what is allowed is used."""
    count, std, remainder = 2_000, 1.7, 0.0004
    drawn = np.concatenate([words(count), words(count, "more") >> np.arange(count).astype(np.uint64) % np.uint64(63)])
    magnitudes = drawn & np.uint64(2**63 - 1)
    normal = -special.ndtri((magnitudes.astype(float) + 0.5) * 2.0**-64)
    worst = 0.0
    with decimal.localcontext(prec=110):
        for m, z in zip(magnitudes.tolist(), normal.tolist(), strict=True):
            if m < 2**40:  # the cell itself is wide there, and 2/m allows for it
                continue
            exact = -quantile((Decimal(m) + Decimal("0.5")) / 2**64)
            product = Decimal(std * z + remainder) - (Decimal(std) * exact + Decimal(remainder))
            worst = max(worst, abs(float(product)) / (std * (1 + z)))
    assert worst < hardened._ERROR / 8
    # the cell's half width in Z, against the 2/m allowed for it
    for m in (2**60, 2**40, 2**20, 1000):
        width = special.ndtri((m + 1) * 2.0**-64) - special.ndtri(m * 2.0**-64)
        assert width < 2 / m


def test_further_bits_differ_between_numbers_steps_and_purposes(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []

    def spy(sums: np.ndarray, std: float, words: np.ndarray, more: Callable[[int], bytes]) -> np.ndarray:
        seen.extend(more(i) for i in range(len(sums)))
        return sums

    monkeypatch.setattr(noise, "rounded", spy)
    key = Key.from_seed(1, secure=True)
    for step, purpose in [(0, "noise"), (1, "noise"), (0, "count")]:
        noise.add(key, step, [torch.zeros(3), torch.zeros(2, 2)], [1.0, 1.0], purpose)
    assert len(set(seen)) == len(seen) == 21


def test_a_million_secure_numbers_take_well_below_a_second() -> None:
    def seconds(step: int) -> float:
        start = time.perf_counter()
        drawn(Key.from_seed(1, secure=True), DEVICES[0], step, 1_000_000)
        return time.perf_counter() - start

    assert min(seconds(step) for step in range(3)) < 0.5  # 0.06 s; the rest is for busy machines


# Keys


def test_a_fresh_key_is_new_each_time_and_never_printed() -> None:
    keys = [Key.fresh() for _ in range(3)]
    assert len({key.secret for key in keys}) == 3
    for key in keys:
        text = repr(key) + str(key) + key.report()
        assert key.secret.hex() not in text
        assert repr(key.secret) not in text


def test_the_report_says_where_randomness_comes_from() -> None:
    assert "operating system" in Key.fresh().report()
    assert "not cryptographic" in Key.fresh().report()
    assert "AES-256" in Key.fresh(secure=True).report()
    assert "fixed seed 7" in Key.from_seed(7).report()
    assert "for tests" in Key.from_seed(7, secure=True).report()


@pytest.mark.parametrize("key", [Key.fresh(), Key.from_seed(-3), Key.from_seed(5, secure=True)], ids=repr)
def test_a_key_survives_a_checkpoint(key: Key) -> None:
    assert Key.from_json(json.loads(json.dumps(key.to_json()))) == key


@pytest.mark.parametrize("seed", [1.5, True, "1", None])
def test_a_seed_is_a_whole_number(seed: Any) -> None:
    with pytest.raises(ValueError, match="whole number"):
        Key.from_seed(seed)


def test_a_key_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        Key(b"short")


def test_cipher_words_are_those_of_aes_in_counter_mode() -> None:
    # AES-256 of the counter blocks, one by one, by the same library's block mode
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    key = Key.from_seed(1, secure=True)
    encrypt = Cipher(algorithms.AES(key.derive("test", 4)), modes.ECB()).encryptor()
    blocks = b"".join(encrypt.update(i.to_bytes(16, "big")) for i in range(5))
    stream = key.stream("test", 4)
    together = np.concatenate([stream.words(4), stream.words(6)])
    assert together.astype("<u8").tobytes() == blocks


def test_secure_without_the_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("cryptography"):
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ValueError, match="pip install cryptography"):
        Key.fresh(secure=True)
    assert len(drawn(Key.fresh(), DEVICES[0], 0, 3)) == 3


@pytest.mark.parametrize("secure", [False, True])
def test_noise_added_in_place_is_the_same_noise(secure: bool) -> None:
    if secure:
        pytest.importorskip("cryptography")
    key = Key.from_seed(3, secure=secure)
    torch.manual_seed(0)
    last = torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last)
    sums = [torch.randn(300, 701), torch.randn(5), torch.randn(()), torch.randn(0), last]
    stds = [1.0, 2.0, 1.0, 1.0, 0.5]
    copies = [total.clone() for total in sums]
    beside, within = noise.add(key, 2, sums, stds), noise.add(key, 2, copies, stds, in_place=True)
    assert all(a is b for a, b in zip(within, copies, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(beside, within, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(sums, within, strict=True) if a.numel())


def test_streams_are_independent_and_the_same_in_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "_CPU_BLOCK", 5_000)  # the third tensor lies in several streams, the first two in one
    shapes, stds, threads = [(7,), (11, 3), (40, 1000)], [1.0, 2.0, 3.0], torch.get_num_threads()
    found = []
    for count in (1, 3):
        torch.set_num_threads(count)
        try:
            found.append(noise.gaussian(Key.from_seed(5), 2, shapes, stds))
        finally:
            torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    rows = found[0][2].reshape(8, 5000).double() / 3  # cut where streams are, but for 40 numbers
    correlations = torch.corrcoef(rows) - torch.eye(8)
    assert correlations.abs().max() < 6 / 5000**0.5  # 28 correlations: a false alarm once in 10^7
    assert abs(float(rows.std()) - 1) < 6 / (2 * 40_000) ** 0.5
