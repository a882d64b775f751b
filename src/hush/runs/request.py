"""What was asked of a run.  Everything but where the data lie is public."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from hush.runs.recipe import Recipe
from hush.tabular.columns import check_range
from hush.tabular.data import Reading
from hush.tabular.schema import Schema

CLASSIFICATION, REGRESSION = "classification", "regression"


@dataclass(frozen=True)
class Request:
    """A run to be made.

    records   how many records (users, with a user column) the file is declared to have; None: released with noise
    task      'classification' or 'regression'; None: what the target's declaration or its survey says
    classes   of the target
    bounds    of all numbers that have no declaration of their own
    hold_out  the share of records put aside for scores that stay local
    user_rows the most rows of a user that take part in a step; None: all of them
    """

    data: Path
    reading: Reading
    epsilon: float
    delta: float
    recipe: Recipe
    schema: Schema = field(default_factory=Schema)
    records: int | None = None
    task: str | None = None
    classes: tuple[str, ...] | None = None
    bounds: tuple[float, float] | None = None
    target_bounds: tuple[float, float] | None = None
    hold_out: float = 0.1
    user_rows: int | None = None
    secure: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < 1e4:
            raise ValueError(f"epsilon must be positive and below 10,000, got {self.epsilon:g}.")
        if not 0 < self.delta < 1:
            raise ValueError(f"delta must lie strictly between 0 and 1, got {self.delta:g}.")
        if not 0 <= self.hold_out < 1:
            raise ValueError(f"The share of the hold-out lies from 0 to below 1, got {self.hold_out:g}.")
        if self.records is not None and not 1 <= self.records <= 2**32:
            raise ValueError(f"The number of records lies from 1 to {2**32:,}, got {self.records}.")
        if self.user_rows is not None and self.reading.user_column is None:
            raise ValueError("The most rows of a user were given, but no --user-column that says whose rows they are.")
        if self.user_rows is not None and self.user_rows < 1:
            raise ValueError(f"The most rows of a user are at least 1, got {self.user_rows}.")
        if self.task not in (None, CLASSIFICATION, REGRESSION):
            raise ValueError(f"The task is classification or regression, got {self.task!r}.")
        for bounds in (self.bounds, self.target_bounds):
            if bounds is not None:
                check_range("number", *bounds)
        if self.classes is not None and (len(set(self.classes)) < 2 or len(set(self.classes)) < len(self.classes)):
            raise ValueError(f"A target has at least two different classes, got {', '.join(self.classes) or 'none'}.")

    @property
    def unit(self) -> str:
        return "record" if self.reading.user_column is None else "user"

    def to_dict(self) -> dict[str, Any]:
        """For the private folder: what going on takes to read and to ask the same."""
        plain = {item.name: getattr(self, item.name) for item in fields(self)}
        return plain | {
            "data": str(self.data.resolve()),
            "reading": asdict(self.reading),
            "recipe": self.recipe.to_dict(),
            "schema": self.schema.to_dict(),
        }

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Request:
        plain: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in data.items()}
        read: dict[str, Any] = {
            "data": Path(data["data"]),
            "reading": Reading(**data["reading"]),
            "recipe": Recipe(**data["recipe"]),
            "schema": Schema.from_dict(data["schema"]),
        }
        return Request(**plain | read)
