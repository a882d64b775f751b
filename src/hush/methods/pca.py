"""Principal directions with differential privacy (Dwork et al. 2014, as used by Abadi et al. 2016).

Every row x is scaled into the unit ball, a sample is drawn, and the symmetric matrix A^T A = sum of x x^T is released
with Gaussian noise on its upper triangle, mirrored; its leading eigenvectors are the directions.  Neither the mean nor
the number of the rows is used: both are private, and the eigenvectors of a sum don't depend on its normalisation.

How far one row moves the release: by x x^T, whose Frobenius norm is |x|^2 <= 1; replacing x by y moves it by

    |x x^T - y y^T|_F = (|x|^4 + |y|^4 - 2 (x.y)^2)^(1/2) <= 2^(1/2),

which orthogonal unit rows attain: not 2, as sums of vectors in general.  `hush.methods.sums.pack` lays the triangle out
so that its Euclidean norm is the Frobenius norm, so these are the sensitivities of what is released.

    pca = PCA(60, records=60_000, noise_multiplier=4.0)
    plan = hush.Plan(records=60_000, batch=600, epochs=10, epsilon=2.0, delta=1e-5, beside=pca.mechanism)
    run = Spending(open_ledger("run.ledger", plan), plan)
    pca.fit(images, ledger=run)                                   # charged to the same run as the steps that follow
    model = nn.Sequential(pca.layer(), nn.Linear(60, 1000), nn.ReLU(), nn.Linear(1000, 10))
    private = hush.Private(model, optimiser, plan, ledger=run)
"""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hush import noise
from hush.accounting import Gaussian, Mechanism, Neighbours, calibrate
from hush.accounting.checks import check_positive, check_whole
from hush.keys import Key
from hush.ledger import Budget, Ledger
from hush.methods.sums import margin, pack, unpack
from hush.sampling import Poisson, Uniform
from hush.spending import Spending

_ROWS_AT_ONCE = 4096
_NAMES = ("n_components", "records", "batch", "noise_multiplier", "epsilon", "delta", "norm", "sampling")


def sensitivity(neighbours: Neighbours) -> float:
    """Of the packed triangle of a sum of x x^T, |x| <= 1: one if a row comes or goes, 2^(1/2) if one is replaced."""
    return math.sqrt(neighbours.sensitivity)


class PCA:
    """Private principal directions, with scikit-learn's conventions.  Its parameters are public numbers.

    n_components      how many directions to keep
    records           how many rows the data are declared to have
    batch             how many of them the sample is expected to have; None: all
    noise_multiplier  the noise's standard deviation over the sensitivity; or else
    epsilon, delta    a target, and the noise is found
    norm              rows longer than this are shortened to it; None: every row is scaled to length one (Abadi et al.)
    sampling          `Poisson()` (one record added or removed) or `Uniform()` (one replaced); None: Poisson
    """

    components_: NDArray[np.float64]
    """The directions, one a row, strongest first; each has its largest entry positive."""
    eigenvalues_: NDArray[np.float64]
    """What the noisy matrix stretches them by: sums over the sample in units of `norm` squared, never normalised."""
    n_features_in_: int

    def __init__(
        self,
        n_components: int,
        *,
        records: int,
        batch: float | None = None,
        noise_multiplier: float | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        norm: float | None = None,
        sampling: Poisson | Uniform | None = None,
    ) -> None:
        self.n_components, self.records, self.batch = n_components, records, batch
        self.noise_multiplier, self.epsilon, self.delta = noise_multiplier, epsilon, delta
        self.norm, self.sampling = norm, sampling

    # What it costs

    @property
    def mechanism(self) -> Mechanism:
        """The release on its sample, for a plan's `beside`."""
        return self._on_sample(self.release)

    @property
    def release(self) -> Gaussian:
        """What is done with the sample; a target's noise is found here."""
        neighbours = self._sampler().neighbours
        if self.noise_multiplier is not None:
            if self.epsilon is not None:
                raise ValueError("Give a noise multiplier or a target (epsilon and delta), not both.")
            return Gaussian(float(self.noise_multiplier), neighbours)
        if self.epsilon is None or self.delta is None:
            raise ValueError("Principal directions need a noise_multiplier, or a target: epsilon and delta.")
        family = lambda value: self._on_sample(Gaussian(value, neighbours))  # noqa: E731
        return Gaussian(calibrate.noise(family, self.epsilon, self.delta), neighbours)

    def _on_sample(self, release: Gaussian) -> Mechanism:
        return self._sampler().mechanism(release, batch=self._batch(), records=self.records)

    # Finding directions

    def fit(
        self,
        X: Any,
        y: object = None,
        *,
        ledger: Ledger | Spending | str | os.PathLike[str] | None = None,
        key: Key | None = None,
    ) -> PCA:
        """Charge the release, draw the sample, find the directions.

        ledger  where it is charged before anything is drawn: the `Spending` of a run whose plan has it `beside`, or a
                ledger or its path, where it becomes a run of its own; None: it is not written down
        key     of sample and noise; None asks the operating system.  `Key.from_seed` is for tests
        """
        rows = X.detach() if isinstance(X, Tensor) else torch.as_tensor(np.asarray(X))
        if rows.dim() != 2:
            raise ValueError(f"Principal directions are found in rows of features, got a shape of {tuple(rows.shape)}.")
        if rows.is_complex() or rows.layout is not torch.strided:
            raise ValueError(
                "Principal directions are found in dense rows of real numbers; give X.to_dense(), or X.real."
            )
        check_whole("The number of components", self.n_components)
        if self.n_components > rows.shape[1]:
            raise ValueError(f"{rows.shape[1]} features have no {self.n_components} directions; ask for fewer.")
        release, sampler = self.release, self._sampler()
        charged = self._charge(ledger, self._on_sample(release))
        key = _own(Key.fresh() if key is None else key, charged)
        drawn = sampler.draw(key, 0, len(rows), batch=self._batch(), records=self.records)
        total = pack(self.scatter(rows[torch.from_numpy(drawn.indices).to(rows.device)]))
        std = release.noise_multiplier * sensitivity(release.neighbours)
        released = unpack(noise.add(key, 0, [total], [std], purpose="pca noise")[0], rows.shape[1])
        values, vectors = torch.linalg.eigh(released)  # ascending
        directions = vectors.flip(1)[:, : self.n_components].T.cpu().numpy()
        strongest = directions[np.arange(len(directions)), np.abs(directions).argmax(axis=1)]
        self.components_ = directions * np.sign(strongest)[:, None]
        self.eigenvalues_ = values.flip(0)[: self.n_components].cpu().numpy()
        self.n_features_in_ = rows.shape[1]
        return self

    def scatter(self, rows: Tensor) -> Tensor:
        """The sum of x x^T over the rows, each scaled into the unit ball, in float64: PRIVATE, before noise.

        A row with an entry that isn't finite counts as zero.
        """
        room = math.sqrt(1 - margin(self._batch()))
        total = torch.zeros(rows.shape[1], rows.shape[1], dtype=torch.float64, device=rows.device)
        for part in rows.split(_ROWS_AT_ONCE):
            part = part.to(torch.float64)
            # by the largest entry first: squares of tiny numbers vanish, and a length without them is too short
            largest = part.abs().amax(dim=1, keepdim=True)
            usable = largest.isfinite() & (largest > 0)
            part = torch.where(usable, part / largest, torch.zeros_like(part))
            limit = torch.linalg.vector_norm(part, dim=1, keepdim=True)
            if self.norm is not None:
                limit = torch.maximum(limit, float(self.norm) / largest)
            scaled = torch.where(usable, part * (room / limit), torch.zeros_like(part))
            total += scaled.T @ scaled
        return total

    def _charge(self, ledger: Ledger | Spending | str | os.PathLike[str] | None, mechanism: Mechanism) -> str:
        """Returns a name of this charge that no other has."""
        if isinstance(ledger, Spending):
            if ledger.plan.unit != "record":
                raise ValueError(
                    f"Principal directions hide single rows, and the plan promises to hide a {ledger.plan.unit}, who "
                    "may have several; find them without that plan, or give a plan whose unit is the record."
                )
            ledger.charge_beside(mechanism)
            return ledger.ledger.mark(ledger.run)
        budget = None if self.epsilon is None or self.delta is None else Budget(self.epsilon, self.delta)
        if not isinstance(ledger, Ledger):
            ledger = Ledger(ledger, None if ledger is not None and os.path.exists(ledger) else budget)
        run = ledger.register({"method": "principal directions"} | self._plain(), mechanism, block=1)
        ledger.reserve(run, 0, mechanism, 1)
        ledger.finish(run)
        return run

    def _sampler(self) -> Poisson | Uniform:
        sampler = Poisson() if self.sampling is None else self.sampling
        if not isinstance(sampler, Poisson | Uniform):
            raise ValueError(f"Principal directions are found in one sample: Poisson() or Uniform(), got {sampler!r}.")
        sampler.check(self._batch(), self.records)
        if self.norm is not None:
            check_positive("The norm of rows", self.norm)
        return sampler

    def _batch(self) -> float:
        return self.records if self.batch is None else self.batch

    # Using them

    def transform(self, X: Any) -> NDArray[Any]:
        """The coordinates of rows along the directions.  Nothing is subtracted: there is no mean."""
        return np.asarray(np.asarray(X) @ self._found().T)

    def fit_transform(self, X: Any, y: object = None, **options: Any) -> NDArray[Any]:
        return self.fit(X, y, **options).transform(X)

    def inverse_transform(self, X: Any) -> NDArray[Any]:
        """The rows in the span of the directions that have these coordinates."""
        return np.asarray(np.asarray(X) @ self._found())

    def layer(self, dtype: torch.dtype = torch.float32) -> nn.Linear:
        """The projection as the frozen first layer of a network; it flattens nothing and trains nothing."""
        directions = torch.as_tensor(self._found(), dtype=dtype)
        linear = nn.Linear(directions.shape[1], directions.shape[0], bias=False, dtype=dtype)
        with torch.no_grad():
            linear.weight.copy_(directions)
        linear.weight.requires_grad_(False)
        return linear

    def _found(self) -> NDArray[np.float64]:
        if not hasattr(self, "components_"):
            raise _not_fitted()("The directions aren't known yet; call fit first.")
        return self.components_

    # scikit-learn's conventions

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _NAMES}

    def set_params(self, **values: Any) -> PCA:
        for name, value in values.items():
            if name not in _NAMES:
                raise ValueError(f"Principal directions have the parameters {', '.join(_NAMES)}, got {name!r}.")
            setattr(self, name, value)
        return self

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """pca0, pca1, ..."""
        return np.array([f"pca{k}" for k in range(len(self._found()))], dtype=object)

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import Tags, TargetTags, TransformerTags  # type: ignore[import-untyped]

        return Tags(estimator_type=None, target_tags=TargetTags(required=False), transformer_tags=TransformerTags())

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "components_")

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.get_params().items() if value is not None)
        return f"PCA({given})"

    def _plain(self) -> dict[str, Any]:
        plain = self.get_params()
        plain["sampling"] = type(self._sampler()).__name__.lower()
        return plain


def _own(key: Key, charged: str) -> Key:
    """A key for this release alone, also where the given one is the run's or was used for a fit before.

    The coins of a training's first step would otherwise be those of this sample, and two releases from one sample cost
    more than two releases from a sample each.  A seed's key depends on nothing else.
    """
    purpose = "principal directions" if key.seed is not None else f"principal directions {charged}"
    return Key(key.derive(purpose), key.secure, key.seed)


def _not_fitted() -> type[ValueError]:
    """scikit-learn's own error, which is a ValueError, where it is installed."""
    try:
        from sklearn.exceptions import NotFittedError  # type: ignore[import-untyped]
    except ImportError:
        return ValueError
    return NotFittedError  # type: ignore[no-any-return]
