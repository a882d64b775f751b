"""Simple models without privacy, to compare with: scikit-learn's, and the global average for ratings."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hush.experiments.trainer import Records


def score(name: str, train: Records, test: Records) -> float:
    """Accuracy in percent, or RMSE of ratings."""
    if name == "global-average":
        return float((test.y.float() - train.y.float().mean()).square().mean().sqrt())
    rows, labels, others, truth = (_flat(part) for part in (train.x, train.y, test.x, test.y))
    return 100 * float(np.mean(_classifier(name).fit(rows, labels).predict(others) == truth))


def _flat(values: torch.Tensor) -> Any:
    array = values.cpu().numpy()
    return array.reshape(len(array), -1) if array.ndim > 1 else array


def _classifier(name: str) -> Any:
    from sklearn.naive_bayes import BernoulliNB  # type: ignore[import-untyped]
    from sklearn.neighbors import KNeighborsClassifier  # type: ignore[import-untyped]
    from sklearn.tree import DecisionTreeClassifier  # type: ignore[import-untyped]

    known = {
        "nearest-neighbours": lambda: KNeighborsClassifier(1, algorithm="brute"),
        "naive-bayes": BernoulliNB,
        "tree": lambda: DecisionTreeClassifier(min_samples_leaf=20, random_state=0),
    }
    if name not in known:
        raise ValueError(f"There is no baseline {name!r}; the names are {', '.join(known)}, global-average.")
    return known[name]()
