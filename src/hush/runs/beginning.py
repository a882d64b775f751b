"""Up to a run's first step, or back to where it stood: read, register, survey, save.

session = start(request, Folder(path))
for seen in session.steps():        # every step is in the ledger before it is drawn
    ...
session.finish()                    # or session.pause(), and later resume(Folder(path))

Both are two halves: `opened` and `reopened` read the records and release nothing; `begin` goes on from wherever the run
stands: nothing registered yet, registered, surveyed in part, or a checkpoint saved.  So a run that is killed, at
whatever moment, goes on from there.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hush import Average, Key, Normalised, Plan, Private, __version__
from hush.accounting import calibrate
from hush.ledger import Budget, Ledger
from hush.rounding import rounding_margin
from hush.runs.answers import Answers
from hush.runs.card import Card
from hush.runs.folder import Folder, read_json, write_json, write_text
from hush.runs.inspecting import inspect, same, total
from hush.runs.preparing import Prepared, prepare
from hush.runs.recipe import default_share
from hush.runs.request import Request
from hush.runs.session import Session, usable
from hush.runs.surveying import UnclearError, describe
from hush.spending import Spending
from hush.tabular import survey
from hush.tabular.holdout import aside
from hush.units import Users

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Opened:
    """A run whose records are read.  Private: `key`, of the survey's noise; `secret`, of the hold-out; `known`."""

    folder: Folder
    ledger: Path | None
    request: Request
    terms: dict[str, Any]
    key: Key
    secret: bytes
    known: Prepared
    budget: float | None = None  # of a shared ledger, at the run's delta

    @property
    def questions(self) -> tuple[survey.Question, ...]:
        return tuple(survey.Question(**question) for question in self.terms["questions"])

    def settings(self) -> dict[str, Any]:
        return {
            "request": self.request.to_dict(),
            "terms": self.terms,
            "key": self.key.to_json(),
            "secret": self.secret.hex(),
            "digest": self.known.digest,
            "ledger": None if self.ledger is None else str(self.ledger.resolve()),
            "budget": self.budget,
        }


def start(request: Request, folder: Folder, ledger: Path | None = None) -> Session:
    """A new run, ready for its first step."""
    return begin(opened(request, folder, ledger))


def resume(folder: Folder, data: Path | None = None) -> Session:
    """A run that was stopped, by hand or by a crash, ready to go on."""
    return begin(reopened(folder, data))


# Reading: nothing is released


def opened(request: Request, folder: Folder, ledger: Path | None = None, budget: float | None = None) -> Opened:
    """Read the records of a new run and fix its terms."""
    folder.refuse_taken()
    if budget is not None and ledger is None:
        raise ValueError("A --budget is for a ledger that several runs share; name it with --ledger FILE.")
    if budget is not None and not request.epsilon <= budget < math.inf:
        raise ValueError(
            f"The ledger's --budget {budget:g} must be at least the run's own --epsilon {request.epsilon:g}."
        )
    if request.records is not None:
        rounding_margin(request.recipe.rate * request.records)  # refuses batches that are too large
    key = Key.fresh(request.secure) if request.seed is None else Key.from_seed(request.seed, request.secure)
    secret = secrets.token_bytes(32) if request.seed is None else key.derive("hold-out")
    known = prepare(request, secret)
    name = secrets.token_hex(8) if request.seed is None else key.derive("name", size=8).hex()
    return Opened(folder, ledger, request, _terms(request, name, known), key, secret, known, budget)


def reopened(folder: Folder, data: Path | None = None) -> Opened:
    """Read the records of a run that was begun; they must be what they were."""
    folder.check()
    if folder.manifest.exists():
        raise ValueError(f"The run in {folder.path} is finished; there is nothing left to do.")
    settings = read_json(folder.settings)
    if folder.plan.exists():
        inspect(folder.path)
    try:
        request = Request.from_dict(settings["request"])
        key, secret = Key.from_json(settings["key"]), bytes.fromhex(settings["secret"])
        ledger = None if settings["ledger"] is None else Path(settings["ledger"])
        terms, expected, budget = settings["terms"], settings["digest"], settings.get("budget")
        total(terms)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{folder.settings} is damaged or from another version of hush.") from error
    request = request if data is None else replace(request, data=data)
    known = prepare(request, secret)
    if known.digest != expected:
        raise ValueError(f"{request.data} isn't what the run began with; put the records back as they were to go on.")
    return Opened(folder, ledger, request, terms, key, secret, known, budget)


# Going on


def begin(run: Opened, stopped: Callable[[], bool] = lambda: False) -> Session:
    """Everything that is left to do before the next step, each part of it on the disk before the next is begun.

    `stopped` is asked in between: a KeyboardInterrupt then comes where the run can go on without any loss.
    """
    folder = run.folder
    book, name = _registered(run)
    if not folder.started:
        _survey(run, book, name, stopped)
    card, (plan, share) = Card.from_dict(read_json(folder.card)), _planned(folder)
    if folder.started:
        model = card.network.build()
        rate = run.request.recipe.learning_rate_for(plan.noise_multiplier, plan.batch)
        optimiser = torch.optim.SGD(model.parameters(), lr=rate)
        return _session(run, card, share, Private.resume(folder.checkpoint, model, optimiser, plan, ledger=book))
    session = _session(run, card, share, _private(run, card, plan, Spending(book, plan, name, mark=book.mark(name))))
    session.pause()
    return session


def _registered(run: Opened) -> tuple[Ledger, str]:
    """The ledger, and the run's name in it; a kill may have come before the name was written down."""
    folder, request, terms = run.folder, run.request, run.terms
    place = folder.ledger if run.ledger is None else run.ledger
    laid_out = folder.settings.exists()
    if not laid_out:
        folder.create()
    try:
        if not laid_out:
            folder.need_room(64 << 20)
            write_json(folder.settings, run.settings(), mode=0o600)
        begun = place.exists() and place.stat().st_size > 0
        book = Ledger(place, _budget(run, begun))
        names = [summary.run for summary in book.runs if laid_out and same(summary.plan, terms)]
        if not names:
            _refuse_other_units(book, request.unit)
            names = [book.register(terms, total(terms), block=min(64, max(1, request.recipe.steps // 50)))]
    except (ValueError, OSError):
        if not laid_out:
            folder.remove()  # nothing was charged, so nothing is lost
        raise
    if not folder.plan.exists():
        write_json(folder.plan, {"run": names[0], "terms": terms})
    return book, names[0]


def _budget(run: Opened, begun: bool) -> Budget | None:
    """What a new ledger is to keep to, and what one that exists must have: what was asked for, if it was."""
    if run.budget is not None:
        return Budget(run.budget, run.request.delta)
    return None if begun else Budget(run.request.epsilon, run.request.delta)


def _survey(run: Opened, book: Ledger, name: str, stopped: Callable[[], bool]) -> None:
    """Ask, or be told again, and write down the model's description and the plan."""
    folder, request = run.folder, run.request
    answers = Answers(folder.survey, book, name, run.key, run.questions)

    def ask(question: survey.Question, sums: survey.Floats, sensitivity: float) -> survey.Floats:
        answer = answers.ask(question, sums, sensitivity)
        if stopped():
            raise KeyboardInterrupt
        return answer

    try:
        card, records = describe(request, run.known, run.questions, ask)
    except UnclearError as error:
        write_text(folder.ended, f"{error}\n", mode=0o600)
        raise
    # the rate was fixed when nobody knew how many records there are; all that is declared takes part
    share = default_share(request.recipe.rate, records) if request.records is None else 1.0
    plan = _plan(request, run.terms, max(1, round(records * share)))
    write_json(folder.card, card.to_dict())
    written = {"run": name, "terms": run.terms, "plan": plan.to_dict(), "share": share, "key": run.key.report()}
    write_json(folder.plan, written)


def _planned(folder: Folder) -> tuple[Plan, float]:
    """The plan, and the share of the records that take part."""
    written = read_json(folder.plan)
    try:
        return Plan.from_dict(written["plan"]), float(written["share"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{folder.plan} is damaged or from another version of hush.") from error


def _refuse_other_units(book: Ledger, unit: str) -> None:
    """A sum over runs holds for what all of them protect: one more row of a user isn't one more user."""
    for plan in (summary.plan for summary in book.runs):
        other = plan.get("unit") if isinstance(plan, dict) else None
        if other not in (None, unit):
            raise ValueError(
                f"The ledger {book.path} has a run that protects one {other}, and this one is to protect one {unit}; "
                "their sum would hold for neither, so give another --ledger."
            )


# The parts of a run


def _terms(request: Request, name: str, known: Prepared) -> dict[str, Any]:
    """What is registered: every release of the run, fixed before the first, from public numbers."""
    recipe = request.recipe
    terms: dict[str, Any] = {
        "hush": __version__,
        "name": name,
        "epsilon": request.epsilon,
        "delta": request.delta,
        "unit": request.unit,
        "records": request.records,
        "user_rows": request.user_rows,
        "hold_out": request.hold_out,
        "pixels": None if known.train.pixels is None else _pixels(request, known.train.pixels),
        "questions": [asdict(question) for question in known.questions(request)],
        "rate": recipe.rate,
        "steps": recipe.steps,
        "recipe": recipe.to_dict(),
    }
    budget = request.epsilon, request.delta
    terms["noise_multiplier"] = calibrate.noise(lambda z: total(terms | {"noise_multiplier": z}), *budget)
    return terms


def _pixels(request: Request, names: Sequence[str]) -> str:
    """Which columns of a table are an image, and who says so: public."""
    source = "by their names" if request.reading.shape is None else "as declared"
    return f"the {len(names)} columns from {names[0]} to {names[-1]} are the pixels of one image, {source}"


def _plan(request: Request, terms: dict[str, Any], records: int) -> Plan:
    recipe = request.recipe
    return Plan(
        records=records,
        batch=recipe.rate * records,
        steps=recipe.steps,
        clip=Normalised(recipe.clip, recipe.stability),
        noise_multiplier=terms["noise_multiplier"],
        epsilon=request.epsilon,
        delta=request.delta,
        unit=request.unit,
    )


def _private(run: Opened, card: Card, plan: Plan, spending: Spending) -> Private:
    """The first step's state.  Weights and key are drawn anew until a checkpoint has them: no two tries share noise."""
    recipe, seed = run.request.recipe, run.request.seed
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(secrets.randbits(63) if seed is None else seed)
        model = card.network.build()
    rate = recipe.learning_rate_for(plan.noise_multiplier, plan.batch)
    optimiser = torch.optim.SGD(model.parameters(), lr=rate, momentum=recipe.momentum)
    key = Key.fresh(run.request.secure) if seed is None else run.key
    return Private(model, optimiser, plan, ledger=spending, key=key, average=Average(recipe.decay))


def _session(run: Opened, card: Card, share: float, private: Private) -> Session:
    """The training part as tensors; records whose target is no class, or no number, are left out one by one."""
    train = run.known.train
    if share < 1:
        train = train.take(np.flatnonzero(~aside(train.contents(), 1 - share, run.key.derive("share"))))
    targets = card.encode_targets(train.targets or [])
    rows = usable(card, targets)
    kept = train.take(rows)
    try:
        x, y = torch.from_numpy(card.encode(kept)), torch.from_numpy(targets[rows])
    except MemoryError:
        raise ValueError(
            "The records don't fit into memory as numbers; go on with `hush resume` where there is more of it. "
            "What was spent is in the ledger."
        ) from None
    users = None if kept.users is None else Users(_numbered(kept.users), run.request.user_rows)
    return Session(run.folder, card, private, (x, y), run.known.held, users)


def _numbered(users: Sequence[str]) -> NDArray[np.int64]:
    """Users by numbers: NumPy's texts drop a NUL at the end, and two users would be clipped as one."""
    numbers = {user: number for number, user in enumerate(dict.fromkeys(users))}
    return np.array([numbers[user] for user in users], dtype=np.int64)
