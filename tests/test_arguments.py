"""What is given by mistake is refused in a sentence, before anything is charged."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hush import Key, Ledger, Plan, Private, Schedule, gradients
from hush.gradients import Auto
from hush.sources import source


def plan(**changed: Any) -> Plan:
    return Plan(**{"records": 100, "batch": 20, "steps": 3, "noise_multiplier": 1.0} | changed)


def run(**changed: Any) -> Private:
    model = nn.Linear(4, 2)
    given: dict[str, Any] = {"model": model, "optimiser": torch.optim.SGD(model.parameters(), lr=0.1), "plan": plan()}
    return Private(**given | changed)


def scheduler_of_another() -> Any:
    return torch.optim.lr_scheduler.StepLR(torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0), 1)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model": "net"}, "A model is a torch.nn.Module, got str."),
        ({"optimiser": None}, "A run needs an optimiser of torch.optim or one like it, got NoneType."),
        ({"plan": None}, "A run needs a hush.Plan, got NoneType."),
        ({"engine": "ghost"}, "An engine is a value such as hush.gradients.Ghost(), got 'ghost'."),
        ({"engine": gradients.Ghost}, "An engine is a value such as hush.gradients.Ghost(), got the class Ghost."),
        ({"key": 3}, "A key is Key.fresh() or, in tests, Key.from_seed(seed), got 3."),
        ({"microbatch": 0}, "The microbatch must be a whole number from 1 on, got 0."),
        ({"microbatch": 2.5}, "The microbatch must be a whole number from 1 on, got 2.5."),
        ({"microbatch": "8"}, "The microbatch must be a whole number from 1 on, got 8."),
        ({"scheduler": "cosine"}, "A scheduler is one of torch.optim.lr_scheduler, got 'cosine'."),
        (
            {"scheduler": scheduler_of_another()},
            "The scheduler was made for another optimiser; make it for the one that is trained with.",
        ),
        ({"average": 0.9}, "An average of the weights is a value such as hush.Average(0.99), got float."),
        ({"ledger": 3}, "A ledger is a path, a hush.Ledger, or None for one in memory, got int."),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_run_is_refused_in_a_sentence(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        run(**changed)


@pytest.mark.parametrize("steps", [2.5, -1])
def test_steps_that_are_none_are_refused(steps: Any) -> None:
    with pytest.raises(ValueError, match=r"^The number of steps must be a whole number from 1 on, got "):
        run().batches(torch.zeros(100, 4), steps=steps)


def test_a_folder_is_no_ledger(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a folder; give the path of a file"):
        Ledger(tmp_path)


def test_what_is_right_is_taken() -> None:
    private = run(engine=Auto(), key=Key.from_seed(1), microbatch=np.int64(8))
    assert private.microbatch == 8
    model = nn.Linear(4, 2)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    parts = [torch.optim.lr_scheduler.ConstantLR(optimiser), torch.optim.lr_scheduler.StepLR(optimiser, 1)]
    for scheduler in (
        torch.optim.lr_scheduler.SequentialLR(optimiser, parts, [1]),
        torch.optim.lr_scheduler.ChainedScheduler(parts, optimiser),
    ):
        assert run(model=model, optimiser=optimiser, scheduler=scheduler).scheduler is scheduler


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"noise_profile": 2.0}, "A noise profile is a hush.Schedule of factors, got 2.0."),
        ({"beside": 3}, "What is released beside the steps is a mechanism of hush.accounting, got 3."),
        ({"delta": "1e-5"}, "Gaussian noise needs a delta above 0 and below 1, got '1e-5'."),
    ],
)
def test_a_plan_is_refused_in_a_sentence(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        plan(**changed)
    assert plan(noise_profile=Schedule((0, 1.0)), delta=np.float64(1e-5)).steps == 3


@pytest.mark.parametrize(
    ("given", "users", "said"),
    [
        (plan(unit="user"), None, r"The plan's unit is the user; give batches\(users=...\), an id for every record."),
        (plan(), np.arange(100), r"The plan's unit is the record, so it takes no users; give Plan\(unit='user'\)"),
    ],
)
def test_users_and_the_plan_must_agree(given: Plan, users: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        run(plan=given).batches((torch.randn(100, 4),), users=users)


@pytest.mark.parametrize("kind", [torch.as_tensor, np.asarray])
def test_columns_in_a_list_are_no_records(kind: Callable[[Any], Any]) -> None:
    x, y = kind(np.zeros((5, 3))), kind(np.zeros(5))
    with pytest.raises(ValueError, match="these look like columns; pass them in a tuple"):
        source([x, y])
    assert source((x, y)).records == 5
    assert source([y, y, y]).records == 3  # as well records of five numbers each
