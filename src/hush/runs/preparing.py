"""Before anything is spent: read the records, check them against what was declared, and list what is to be asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hush.runs.request import CLASSIFICATION, REGRESSION, Request
from hush.tabular import cells, survey
from hush.tabular.columns import A_DATE, Category, Column, Hashed, Number, refuse_others
from hush.tabular.data import Data, read_data
from hush.tabular.holdout import aside
from hush.tabular.images import classes_of
from hush.tabular.schema import Wanted
from hush.tabular.tables import Table


@dataclass(frozen=True, eq=False)
class Prepared:
    """The records, split, and what is known about them without having asked.

    Private: `train`, `held`, `digest`.  Public: all else.  `columns` maps to None what nobody declared.
    """

    train: Data
    held: Data
    digest: str
    columns: Mapping[str, Column | Wanted | None] | None
    bounds: tuple[float, float] | None
    task: str | None
    classes: tuple[str, ...] | None
    scaling: Number | None

    @property
    def wanted(self) -> dict[str, Wanted | None]:
        """The columns to be surveyed."""
        return {} if self.columns is None else {n: c for n, c in self.columns.items() if not isinstance(c, Column)}

    @property
    def surveys_target(self) -> bool:
        """Whether the target's bounds must be asked for: it is a number, or may turn out to be one."""
        return self.task != CLASSIFICATION and self.scaling is None

    @property
    def surveys_pixels(self) -> bool:
        """Whether the bounds of an array's numbers must be asked for."""
        return self.columns is None and self.bounds is None

    def questions(self, request: Request) -> tuple[survey.Question, ...]:
        """What has to be asked of the records, fixed before any answer."""
        columns = len(self.wanted) + self.surveys_target
        asked = {
            survey.COUNT: request.records is None,
            survey.CLASSES: self.task != REGRESSION and self.classes is None,
            survey.FIRST_LOOK: columns > 0,
            survey.SECOND_LOOK: columns > 0,
            survey.FIRST_PIXELS: self.surveys_pixels,
            survey.SECOND_PIXELS: self.surveys_pixels,
        }
        names = [name for name, due in asked.items() if due]
        return survey.questions(names, request.epsilon, request.delta, columns)


def prepare(request: Request, secret: bytes) -> Prepared:
    """Read and check.  Refusals are for the owner of the data: that a run was made tells that they passed."""
    data = read_data(request.data, request.reading)
    task, classes, scaling = _target(request)
    columns, bounds = _inputs(request, data)
    labelled = _labelled(data, task, classes)
    data = data if labelled is None else data.take(labelled)
    held = aside(data.contents(), request.hold_out, secret)
    train = data.take(np.flatnonzero(~held))
    if train.records == 0:
        raise ValueError("No record is left to train on; lower --hold-out or give more records.")
    aside_ = data.take(np.flatnonzero(held))
    return Prepared(train, aside_, data.digest(secret), columns, bounds, task, classes, scaling)


def _target(request: Request) -> tuple[str | None, tuple[str, ...] | None, Number | None]:
    """Task, classes and scaling of the target, as far as they are declared."""
    name = request.reading.target
    declared = request.schema.columns.get(name) if name is not None else None
    task, classes = request.task, request.classes
    scaling = None if request.target_bounds is None else Number.linear(*request.target_bounds)
    if request.data.is_dir():
        classes = classes or classes_of(request.data)
    if isinstance(declared, Category):
        classes = classes or declared.values
    elif isinstance(declared, Number):
        scaling = scaling or Number.linear(declared.low, declared.high)
    elif declared is not None and not isinstance(declared, Wanted):
        raise ValueError(f"The target {name!r} is a category or a number, but the schema declares a {declared.kind}.")
    elif isinstance(declared, Wanted):
        if declared.kind == "date":
            raise ValueError(f"The target {name!r} is a category or a number, but the schema declares a date.")
        task = task or (REGRESSION if declared.kind == "number" else CLASSIFICATION)
    if classes is not None and scaling is not None:
        raise ValueError("A target has classes or bounds, not both; declare one of them.")
    task = task or (CLASSIFICATION if classes is not None else REGRESSION if scaling is not None else None)
    if task == REGRESSION and classes is not None:
        raise ValueError("Classes were declared for a regression; leave out --classes or --task.")
    if task == CLASSIFICATION and scaling is not None:
        raise ValueError("Bounds were declared for the target of a classification; declare its classes instead.")
    if classes is not None and len(set(classes)) < 2:
        raise ValueError(f"A target has at least two different classes, got {', '.join(classes) or 'none'}.")
    return task, classes, scaling


def _inputs(
    request: Request, data: Data
) -> tuple[Mapping[str, Column | Wanted | None] | None, tuple[float, float] | None]:
    """What is declared of every column of a table, or the bounds of an array."""
    if not isinstance(data.inputs, Table):
        if request.bounds is not None:
            return None, request.bounds
        if data.inputs.dtype.kind not in "biuf":
            raise ValueError(f"Inputs are numbers, but the array is of type {data.inputs.dtype}.")
        return None, (0.0, 255.0) if data.inputs.dtype == np.uint8 else None
    names = data.inputs.names
    known = {*names, request.reading.target, request.reading.user_column}
    unknown = [name for name in request.schema.columns if name not in known]
    if unknown:
        raise ValueError(f"The schema declares the column {unknown[0]!r}, which {request.data} doesn't have.")
    schema = request.schema if request.bounds is None else request.schema.with_bounds(*request.bounds, names)
    columns: dict[str, Column | Wanted | None] = {}
    for name in names:
        declared = schema.columns.get(name)
        columns[name] = Hashed() if isinstance(declared, Wanted) and declared.kind == "category" else declared
        _check(declared, data.inputs.columns[name], repr(name))
    if all(isinstance(column, Column) and column.width == 0 for column in columns.values()):
        raise ValueError("The schema leaves out every column; there is nothing to predict from.")
    return columns, None


def _check(declared: Column | Wanted | None, texts: Sequence[str], name: str) -> None:
    """Refuse what isn't of the declared kind, before anything is spent."""
    if isinstance(declared, Column):
        declared.encode(texts, name)
    elif declared is not None and declared.kind == "number":
        refuse_others(texts, cells.numbers(texts), name, "number")
    elif declared is not None and declared.kind == "date":
        refuse_others(texts, cells.dates(texts), name, A_DATE)


def _labelled(data: Data, task: str | None, classes: Sequence[str] | None) -> list[int] | None:
    """The rows that have a target, None if all have one; refuses targets that can't be meant."""
    assert data.targets is not None
    targets = [text.strip() for text in data.targets]
    present = [row for row, text in enumerate(targets) if not cells.is_missing(text) or (classes and text in classes)]
    if not present:
        raise ValueError("The target is missing in every row.")
    if classes is not None:
        for row in present:
            if targets[row] not in classes:
                listed = ", ".join(classes[:8])
                raise ValueError(f"Row {row + 1} has the target {targets[row][:40]!r}; the classes are {listed}.")
    if task == REGRESSION:
        values = cells.numbers([targets[row] for row in present])
        wrong = np.flatnonzero(np.isnan(values)).tolist()
        if wrong:
            row = present[wrong[0]]
            raise ValueError(f"Row {row + 1} has the target {targets[row][:40]!r}, and a regression needs a number.")
    elif len({targets[row] for row in present}) == 1:
        raise ValueError(f"Every row has the target {targets[present[0]][:40]!r}; there is nothing to tell apart.")
    return None if len(present) == data.records else present
