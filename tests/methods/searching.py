"""What the tests of searches share: small candidates, a training function that makes all the noise it can."""

from __future__ import annotations

import functools
import logging
import os
import subprocess
import sys
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hush
from hush.keys import Key
from hush.methods import selection
from hush.methods.selection.running import _number

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def candidates(count: int = 3, noise: float = 4.0) -> tuple[selection.Candidate, ...]:
    plan = hush.Plan(records=40, batch=20, steps=2, noise_multiplier=noise, delta=1e-3)
    return tuple(selection.Candidate({"rate": 0.1 * (k + 1)}, plan) for k in range(count))


class Trainer:
    """Trains a small model, makes all the noise it can, and counts its calls."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.scores: list[float] = []
        self.calls = self.steps = 0
        self.fail_at = fail_at

    def __call__(self, trial: selection.Trial) -> tuple[nn.Module, float]:
        self.calls += 1
        if self.calls == self.fail_at:
            raise KeyboardInterrupt
        print("a loser's score")  # noqa: T201
        print("a loser's score", file=sys.__stderr__)
        os.write(1, b"a loser's score")
        subprocess.run(["echo", "a loser's score"], check=True)
        logging.getLogger("trial").log(1000, "a loser's log")
        warnings.warn("a loser's warning", stacklevel=1)
        logging.getLogger("trial").error("a loser's log")
        model = nn.Linear(3, 2)
        private = trial.private(model, torch.optim.SGD(model.parameters(), lr=trial.settings["rate"]))

        def losses(x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(model(x), y, reduction="none")

        for x, y in private.batches((X, Y)):
            private.step(losses, x, y)
            self.steps += 1
            self.after_step()
        with torch.no_grad():
            score = float((model(X).argmax(1) == Y).sum() + model.weight.sum())
        self.scores.append(score)
        return model, score

    def after_step(self) -> None:
        pass


@functools.cache
def search(runs: Any = None, score: Any = None) -> selection.Search:
    return selection.Search(candidates(), runs or selection.Geometric(6), score or selection.Public(), delta=1e-3)


@functools.cache
def key_with(runs: int) -> Key:
    """A key whose secret number of runs is this one."""
    return next(key for key in map(Key.from_seed, range(1000)) if _number(search(), key) == runs)


def same(one: selection.Selected, two: selection.Selected) -> bool:
    assert one.state is not None
    assert two.state is not None
    equal = all(torch.equal(one.state[name], two.state[name]) for name in two.state)
    return equal and one.score == two.score and one.settings == two.settings
