"""Private principal directions: the sensitivity of the release, its noise, its quality, plan and ledger."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import decomposition
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

import hush
from hush import noise
from hush.accounting import ADD_REMOVE, REPLACE_ONE, Gaussian, compose
from hush.keys import Key
from hush.ledger import Budget, Ledger
from hush.methods.pca import PCA, sensitivity
from hush.methods.sums import margin, pack, unpack
from hush.sampling import Poisson, Shuffled, Uniform
from hush.spending import Spending, open_ledger


def digits() -> np.ndarray[Any, Any]:
    return np.asarray(load_digits().data / 16)


def captured(pca: PCA, rows: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, float]:
    """What a fit hands to the noise, and the noise's standard deviation."""
    seen: list[tuple[Tensor, float]] = []

    def add(key: Key, step: int, sums: Any, stds: Any, purpose: str = "noise") -> list[Tensor]:
        seen.append((sums[0].clone(), stds[0]))
        return list(sums)

    with monkeypatch.context() as patch:
        patch.setattr(noise, "add", add)
        pca.fit(rows, key=Key.from_seed(1))
    return seen[0]


# The triangle


def test_a_packed_triangle_keeps_norms_and_comes_back() -> None:
    matrices = torch.randn(3, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    matrices = matrices + matrices.mT
    assert torch.allclose(pack(matrices).norm(dim=1), matrices.flatten(1).norm(dim=1), rtol=1e-14)
    assert torch.allclose(unpack(pack(matrices), 5), matrices, rtol=1e-14)


def test_a_plain_triangle_would_not_need_less_noise() -> None:
    # sum over i <= j of (x_i x_j)^2 = (|x|^4 + sum of x_i^4)/2: one at a coordinate vector, like the packed triangle
    rows = torch.randn(1000, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows = torch.cat([rows / rows.norm(dim=1, keepdim=True), torch.eye(6, dtype=torch.float64)])
    plain = torch.stack([torch.outer(x, x).triu() for x in rows]).flatten(1).square().sum(1)
    assert torch.allclose(plain, (1 + rows.pow(4).sum(1)) / 2, rtol=1e-12)
    assert plain.max().item() == pytest.approx(1.0)


@pytest.mark.parametrize("neighbours", [ADD_REMOVE, REPLACE_ONE], ids=str)
def test_no_search_exceeds_the_sensitivity_and_the_best_attains_it(neighbours: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    pair = torch.randn(40, 2, 4, dtype=torch.float64, generator=generator).requires_grad_()
    optimiser = torch.optim.Adam([pair], lr=0.05)

    def moved() -> Tensor:
        x, y = (pair / pair.norm(dim=2, keepdim=True).clamp_min(1)).unbind(1)
        other = 0 if neighbours is ADD_REMOVE else y[:, :, None] * y[:, None, :]
        return pack(x[:, :, None] * x[:, None, :] - other).norm(dim=1)

    for _ in range(300):
        optimiser.zero_grad()
        (-moved().sum()).backward()
        optimiser.step()
    best = moved().max().item()
    assert sensitivity(neighbours) * (1 - 1e-6) < best <= sensitivity(neighbours) * (1 + 1e-12)


# The release, replayed on neighbours


@pytest.mark.parametrize("norm", [None, 0.5])
@pytest.mark.parametrize("sampling", [Poisson(), Uniform()], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e6])
def test_a_neighbour_moves_the_release_by_at_most_what_the_noise_hides(
    norm: float | None, sampling: Any, size: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = digits()[:200]
    rows[-1] = size * np.eye(64)[3]
    other = rows[:-1]
    if sampling.neighbours is REPLACE_ONE:
        other = rows.copy()
        other[-1] = size * np.eye(64)[5]
    pca = PCA(3, records=200, batch=200, noise_multiplier=2.0, norm=norm, sampling=sampling)
    (one, std), (two, _) = (captured(pca, each, monkeypatch) for each in (rows, other))
    moved = (one - two).norm().item() * 2.0 / std
    assert moved <= 1.0
    if norm is None or size >= 1:
        assert moved > 1 - 2 * margin(200)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e200])
def test_a_row_that_is_not_finite_counts_as_nothing_or_as_any_other(
    bad: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = digits()[:50]
    pca = PCA(3, records=51, noise_multiplier=2.0)
    without, _ = captured(pca, rows, monkeypatch)
    rows = np.vstack([rows, np.full((1, 64), bad)])
    moved = (captured(pca, rows, monkeypatch)[0] - without).norm().item()
    assert moved == 0.0 if not np.isfinite(bad) else moved <= 1.0


@pytest.mark.parametrize("norm", [None, 1e-300, 1.0])
@pytest.mark.parametrize("size", [5e-324, 3e-162, 1e-161, 1e-155, 1e155, 1e308])
def test_a_row_whose_squares_vanish_or_overflow_adds_no_more_than_any_other(size: float, norm: float | None) -> None:
    rows = torch.rand(200, 100, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * size
    pca = PCA(3, records=200, noise_multiplier=2.0, norm=norm)
    added = torch.stack([pack(pca.scatter(row[None])) for row in rows]).norm(dim=1)
    assert added.max() <= 1.0
    if norm is None:
        assert added.min() > 1 - 2 * margin(200)


def test_neither_a_mean_nor_a_count_of_the_data_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = digits()[:100]
    pca = PCA(2, records=1000, noise_multiplier=2.0)  # ten times more declared than there are
    total, std = captured(pca, rows, monkeypatch)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    assert np.allclose(unpack(total, 64).numpy(), unit.T @ unit, rtol=1e-9, atol=1e-9)
    assert std == 2.0


def test_the_noise_is_the_planned_one_and_the_same_in_every_direction() -> None:
    # Without rows only noise is left, a symmetric Gaussian matrix: eigenvalues fill (-r, r) with r = s (2 d)^(1/2).
    # The mean square over m independent entries lies within 5 (2/m)^(1/2) of its mean but for a chance of about 1e-6.
    pca = PCA(100, records=1000, noise_multiplier=3.0).fit(np.zeros((0, 100)), key=Key.from_seed(2))
    square = float(np.sum(pca.eigenvalues_**2))  # the squared Frobenius norm: that of the packed noise
    entries = 100 * 101 / 2
    assert square / entries / 9.0 == pytest.approx(1, abs=5 * math.sqrt(2 / entries))
    assert pca.eigenvalues_.max() == pytest.approx(3.0 * math.sqrt(200), rel=0.15)


# Quality


def overlap(one: np.ndarray[Any, Any], two: np.ndarray[Any, Any]) -> float:
    """The share of one subspace that lies in the other: 1 if they are the same."""
    return float(np.linalg.norm(one @ two.T) ** 2 / len(one))


def noiseless(rows: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(np.linalg.svd(unit, full_matrices=False)[2][:count])


def test_with_little_noise_it_is_the_noiseless_one() -> None:
    rows = digits()
    found = PCA(10, records=len(rows), noise_multiplier=1e-9).fit(rows, key=Key.from_seed(0))
    assert overlap(found.components_, noiseless(rows, 10)) == pytest.approx(1, abs=1e-9)


def test_more_noise_keeps_less_of_the_subspace_and_noise_four_still_most() -> None:
    rows = digits()
    best = noiseless(rows, 10)
    kept = [
        np.mean(
            [
                overlap(PCA(10, records=1797, noise_multiplier=sigma).fit(rows, key=Key.from_seed(s)).components_, best)
                for s in range(5)
            ]
        )
        for sigma in (0.5, 4.0, 64.0)
    ]
    # over 200 seeds 0.9892 with a standard deviation of 0.0014: five standard errors below, false alarms 1e-6
    assert kept[0] > 0.986
    assert kept[1] > 0.5
    assert kept[0] > kept[1] > kept[2]
    assert kept[2] < 0.4  # all but random directions: 10/64


def test_centred_data_give_scikit_learns_directions() -> None:
    generator = np.random.default_rng(0)
    rows = generator.standard_normal((500, 8)) * np.array([5, 4, 3, 1, 1, 1, 1, 1])
    rows = np.vstack([rows, -rows])  # mean zero
    theirs = decomposition.PCA(3).fit(rows).components_
    ours = PCA(3, records=1000, noise_multiplier=1e-9, norm=1e3).fit(rows, key=Key.from_seed(0)).components_
    assert np.allclose(np.abs(np.sum(ours * theirs, axis=1)), 1, atol=1e-5)


# scikit-learn and PyTorch


def test_it_keeps_scikit_learns_conventions() -> None:
    rows = digits()
    pca = PCA(7, records=1797, noise_multiplier=1.0)
    assert clone(pca).get_params() == pca.get_params()
    with pytest.raises(NotFittedError, match="call fit first"):
        pca.transform(rows)
    with pytest.raises(NotFittedError):
        check_is_fitted(pca)
    pipe = make_pipeline(Normalizer(), pca)
    assert pipe.fit(rows).transform(rows).shape == (1797, 7)
    check_is_fitted(pca)
    assert list(pipe.get_feature_names_out()) == [f"pca{k}" for k in range(7)]
    assert pca.components_.shape == (7, 64)
    assert pca.n_features_in_ == 64
    assert np.allclose(pca.components_ @ pca.components_.T, np.eye(7))
    assert np.allclose(pca.transform(pca.inverse_transform(np.eye(7))), np.eye(7))
    assert pca.set_params(n_components=2).fit_transform(rows).shape == (1797, 2)
    with pytest.raises(ValueError, match="got 'components'"):
        pca.set_params(components=2)


def test_as_a_layer_it_projects_and_is_not_trained() -> None:
    rows = digits()
    pca = PCA(7, records=1797, noise_multiplier=1.0).fit(torch.tensor(rows), key=Key.from_seed(0))
    layer = pca.layer()
    assert np.allclose(layer(torch.tensor(rows, dtype=torch.float32)).numpy(), pca.transform(rows), atol=1e-5)
    model = nn.Sequential(layer, nn.Linear(7, 10))
    plan = hush.Plan(records=1797, batch=300, steps=3, noise_multiplier=1.0)
    private = hush.Private(model, torch.optim.SGD(model.parameters(), lr=0.1), plan)
    before = layer.weight.clone()
    labels = torch.tensor(load_digits().target)
    losses = lambda x, y: nn.functional.cross_entropy(model(x), y, reduction="none")  # noqa: E731
    for x, y in private.batches((torch.tensor(rows, dtype=torch.float32), labels)):
        private.step(losses, x, y)
    assert torch.equal(layer.weight, before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_components": 65}, "no 65 directions"),
        ({"noise_multiplier": None}, "need a noise_multiplier, or a target"),
        ({"epsilon": 1.0, "delta": 1e-5}, "not both"),
        ({"sampling": Shuffled()}, "in one sample"),
        ({"norm": -1.0}, "norm of rows"),
        ({"batch": 3000}, "can.t be expected of 1797"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_charged(options: dict[str, Any], message: str) -> None:
    ledger = Ledger(None)
    with pytest.raises(ValueError, match=message):
        PCA(**({"n_components": 3, "records": 1797, "noise_multiplier": 1.0} | options)).fit(digits(), ledger=ledger)
    assert ledger.mechanism() is None


# Plan and ledger


def test_a_target_is_kept_and_charged_as_a_run_of_its_own(tmp_path: Path) -> None:
    pca = PCA(5, records=1797, batch=900, epsilon=1.0, delta=1e-5)
    assert 0.999 < pca.mechanism.epsilon(1e-5).upper <= 1.0
    pca.fit(digits(), ledger=tmp_path / "ledger")
    ledger = Ledger(tmp_path / "ledger")
    assert ledger.mechanism() == pca.mechanism
    assert ledger.budget == Budget(1.0, 1e-5)
    assert ledger.runs[0].plan["method"] == "principal directions"


def test_training_and_directions_share_a_plan_a_run_and_a_budget(tmp_path: Path) -> None:
    rows = torch.tensor(digits(), dtype=torch.float32)
    labels = torch.tensor(load_digits().target)
    pca = PCA(10, records=1797, noise_multiplier=4.0)
    plan = hush.Plan(records=1797, batch=300, steps=30, epsilon=3.0, delta=1e-4, beside=pca.mechanism)
    run = Spending(open_ledger(tmp_path / "ledger", plan), plan)
    pca.fit(rows, ledger=run, key=Key.from_seed(0))
    assert run.ledger.mechanism() == Gaussian(4.0)
    model = nn.Sequential(pca.layer(), nn.Linear(10, 10))
    private = hush.Private(model, torch.optim.SGD(model.parameters(), lr=2.0), plan, ledger=run, key=Key.from_seed(1))
    losses = lambda x, y: nn.functional.cross_entropy(model(x), y, reduction="none")  # noqa: E731
    for x, y in private.batches((rows, labels)):
        private.step(losses, x, y)
    assert private.spent().mechanism == plan.mechanism == compose([*plan.charges(0, 30), (Gaussian(4.0), 1)])
    assert 2.99 < private.spent().epsilon(1e-4).upper <= 3.0
    assert Ledger(tmp_path / "ledger").verify() == ()
    with pytest.raises(ValueError, match="not that often"):
        pca.fit(rows, ledger=run)


def test_what_is_beside_the_steps_is_not_charged_amid_a_block(tmp_path: Path) -> None:
    pca = PCA(2, records=100, noise_multiplier=4.0)
    plan = hush.Plan(records=100, batch=10, steps=200, noise_multiplier=1.0, beside=pca.mechanism)
    run = Spending(Ledger(None), plan)
    run.charge(0)
    with pytest.raises(ValueError, match="before or after"):
        pca.fit(np.zeros((5, 3)), ledger=run)


def test_what_the_plan_does_not_count_is_not_released_in_its_run() -> None:
    pca = PCA(2, records=100, noise_multiplier=4.0)
    for beside in (None, Gaussian(8.0)):
        run = Spending(Ledger(None), hush.Plan(records=100, batch=10, steps=2, noise_multiplier=1.0, beside=beside))
        with pytest.raises(ValueError, match="doesn't count"):
            pca.fit(np.zeros((5, 3)), ledger=run)
        assert run.ledger.mechanism() is None


def test_directions_of_records_are_not_promised_to_users() -> None:
    pca = PCA(2, records=300, noise_multiplier=4.0)
    plan = hush.Plan(records=30, batch=10, steps=2, noise_multiplier=1.0, unit="user", beside=pca.mechanism)
    run = Spending(Ledger(None), plan)
    with pytest.raises(ValueError, match="promises to hide a user"):
        pca.fit(np.zeros((300, 3)), ledger=run)
    assert run.ledger.mechanism() is None


@pytest.mark.parametrize("key", [Key.from_seed(3), Key(bytes(32))], ids=["seed", "secret"])
def test_a_key_that_other_releases_use_gives_a_sample_and_noise_of_its_own(
    key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's own key: its first step must not see the sample that the directions saw."""
    used: list[Key] = []
    add = noise.add

    def seen(key: Key, *given: Any, **more: Any) -> list[Tensor]:
        used.append(key)
        return add(key, *given, **more)

    monkeypatch.setattr(noise, "add", seen)
    pca = PCA(2, records=1797, batch=900, noise_multiplier=4.0)
    plan = hush.Plan(records=1797, batch=900, steps=2, noise_multiplier=1.0, beside=pca.mechanism)
    pca.fit(digits(), ledger=Spending(Ledger(None), plan), key=key)
    pca.fit(digits(), key=key)
    assert key not in used
    assert used[0] == used[1] if key.seed is not None else used[0] != used[1]  # a secret key is never used twice
    mine, of_step = (Poisson().draw(k, 0, 1797, batch=900, records=1797).indices for k in (used[0], key))
    assert set(mine) != set(of_step)


VICTIM = """
import os, signal, sys
import numpy as np
from hush import noise
from hush.methods import pca as module
from hush.sampling import Poisson

folder, stage = sys.argv[1:]

def killed(*given, **more):
    os.kill(os.getpid(), signal.SIGKILL)

if stage == "before the sample is drawn":
    Poisson.draw = killed
elif stage == "before the noise":
    noise.add = killed
pca = module.PCA(2, records=100, batch=50, noise_multiplier=4.0)
pca.fit(np.eye(100), ledger=folder + "/ledger")
print("released", flush=True)
killed()
"""


@pytest.mark.parametrize("stage", ["before the sample is drawn", "before the noise", "after the release"])
def test_killed_at_any_time_it_is_charged_before_a_record_was_read(stage: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", VICTIM, str(tmp_path), stage]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    victim = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert victim.returncode == -signal.SIGKILL, victim.stderr
    assert ("released" in victim.stdout) == (stage == "after the release")
    assert Ledger(tmp_path / "ledger").mechanism() == Gaussian(4.0).poisson(0.5)


@pytest.mark.parametrize("rows", [torch.ones(3, 2, dtype=torch.complex64), torch.eye(3).to_sparse()], ids=str)
def test_rows_that_are_not_dense_real_numbers_are_refused_before_anything_is_charged(rows: torch.Tensor) -> None:
    book = Ledger(None)
    with pytest.raises(ValueError, match="dense rows of real numbers"):
        PCA(1, records=3, noise_multiplier=1.0).fit(rows, ledger=book)
    assert not book.runs
