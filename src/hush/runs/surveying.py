"""What a model's description still lacks, asked of the records: the survey's answers turned into a card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hush.runs.card import Card
from hush.runs.networks import Network
from hush.runs.preparing import Prepared
from hush.runs.request import CLASSIFICATION, REGRESSION, Request
from hush.tabular import survey
from hush.tabular.columns import Column, Number
from hush.tabular.data import Data


class UnclearError(ValueError):
    """The survey's answers don't suffice for a model: this run is over, and another one must declare more."""

    def __init__(self, words: str) -> None:
        super().__init__(
            f"{words} in another run, under another --output: this one can't go on. What was asked of the records so "
            "far stays charged in the ledger."
        )


def describe(request: Request, known: Prepared, asked: Sequence[survey.Question], ask: survey.Ask) -> tuple[Card, int]:
    """The model's description and the number of units to train on, from what was declared and what is asked now."""
    questions = {question.name: question for question in asked}
    speakers = known.train.take(known.train.speakers())
    targets = speakers.targets or []
    if survey.COUNT in questions:
        records = survey.count(ask, questions[survey.COUNT], speakers.records)
    else:
        records = max(1, round((request.records or 1) * (1 - request.hold_out)))
    task, classes = known.task, known.classes
    if survey.CLASSES in questions:
        shown = survey.classes(ask, questions[survey.CLASSES], targets)
        if task is None:
            few = 2 <= len(shown) <= 100 and sum(shown.values()) >= 0.8 * records
            task = CLASSIFICATION if few else REGRESSION
        classes = tuple(shown) if task == CLASSIFICATION else None
        if classes is not None and len(classes) < 2:
            raise UnclearError("Fewer than two classes stand out from the noise; declare them with --classes A,B,...")
    columns, scaling = _columns(request, known, questions, ask, speakers)
    if task == REGRESSION and scaling is None:
        values, how = "The target's values don't stand out from the noise", "--target-bounds LOW:HIGH"
        if survey.CLASSES in questions:
            values, how = f"{values}, neither as classes nor as numbers", f"--classes A,B,... or {how}"
        raise UnclearError(f"{values}; declare {how}")
    if survey.FIRST_PIXELS in questions:
        looks = questions[survey.FIRST_PIXELS], questions[survey.SECOND_PIXELS]
        found = survey.bounds(ask, *looks, np.asarray(speakers.inputs))
        if found is None:
            raise UnclearError("The pixels' numbers don't stand out from the noise; declare --bounds LOW:HIGH")
        known = replace(known, bounds=found)
    return _card(request, known, columns, classes, None if classes is not None else scaling), records


def _columns(
    request: Request, known: Prepared, questions: dict[str, survey.Question], ask: survey.Ask, speakers: Data
) -> tuple[dict[str, Column] | None, Number | None]:
    if survey.FIRST_LOOK not in questions:
        found: dict[str, Column] = {}
    else:
        wanted = dict(known.wanted)
        table = {} if known.columns is None else dict(speakers.inputs.columns)  # type: ignore[union-attr]
        target = request.reading.target or "target"
        if known.surveys_target:
            wanted[target], table[target] = None, speakers.targets or []
        looks = questions[survey.FIRST_LOOK], questions[survey.SECOND_LOOK]
        found = survey.columns(ask, *looks, table, wanted, linear=[target] if known.surveys_target else [])
        surveyed = found.pop(target) if known.surveys_target else None
        if isinstance(surveyed, Number) and known.scaling is None:
            known = replace(known, scaling=surveyed)
    if known.columns is None:
        return None, known.scaling
    return {n: c if isinstance(c, Column) else found[n] for n, c in known.columns.items()}, known.scaling


def _card(
    request: Request,
    known: Prepared,
    columns: dict[str, Column] | None,
    classes: tuple[str, ...] | None,
    scaling: Number | None,
) -> Card:
    outputs = 1 if classes is None else len(classes)
    reading = request.reading
    if columns is not None:
        inputs, image = sum(column.width for column in columns.values()), None
        if inputs == 0:
            raise UnclearError("No column stands out from the noise; declare them by a --schema")
    else:
        shape = known.train.inputs.shape[1:]  # type: ignore[union-attr]
        inputs, image = int(np.prod(shape)), tuple(shape) if len(shape) == 3 and min(shape[1:]) >= 8 else None
    network = Network(inputs, outputs, request.recipe.hidden, image)
    place = (reading.user_column, reading.image_size, reading.grey, known.train.pixels)
    return Card(reading.target, classes, scaling, columns, known.bounds, network, *place)
