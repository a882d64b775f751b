"""A run of `hush train`: registered, surveyed, trained step by step, paused and resumed, and at its end published.

session = start(request, Folder(path))
for seen in session.steps():        # every step is in the ledger before it is drawn
    ...
session.finish()                    # or session.pause(), and later resume(Folder(path))
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.torch  # noqa: F401 (missing, it should be missed before anything is spent)
import torch
import torch.nn.functional as F
from torch import Tensor

from hush import Average, Key, Normalised, Plan, Private, __version__, noise
from hush.accounting import calibrate
from hush.ledger import Budget, Ledger
from hush.runs import publishing
from hush.runs.card import Card, Published
from hush.runs.folder import Folder, read_json, write_json
from hush.runs.inspecting import inspect, total
from hush.runs.preparing import Prepared, prepare
from hush.runs.recipe import Recipe
from hush.runs.request import Request
from hush.runs.surveying import describe
from hush.spending import Spending
from hush.tabular import survey
from hush.tabular.data import Data, Reading, read_data
from hush.tabular.holdout import aside

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CHECKPOINTS = 10
"""How often a run saves its state."""

_ROWS = 50
"""The most rows of the local history."""


@dataclass(frozen=True)
class Seen:
    """After a step: LOCAL ONLY but for the counts."""

    step: int
    steps: int
    loss: float


class Session:
    """A run in progress."""

    def __init__(
        self, folder: Folder, card: Card, private: Private, train: tuple[Tensor, Tensor], held: Data, users: Any
    ) -> None:
        self.folder, self.card, self.private = folder, card, private
        self._train, self._held, self._users = train, held, users
        targets = card.encode_targets(held.targets or [])
        usable = np.flatnonzero(targets >= 0 if card.classes is not None else np.isfinite(targets))
        self._scored = card.encode(held.take(usable)), targets[usable]
        self._loss = F.cross_entropy if card.classes is not None else F.smooth_l1_loss
        found = read_json(folder.local)["epochs"] if folder.local.exists() else []
        self._history: list[dict[str, Any]] = [row for row in found if row["step"] <= private.steps_done]
        self._window: list[tuple[float, float, float, float]] = []

    @property
    def plan(self) -> Plan:
        return self.private.plan

    def epsilon(self) -> float:
        """What the run has spent so far, its survey included."""
        assert self.plan.delta is not None
        return self.private.spent().epsilon(self.plan.delta).upper

    def steps(self) -> Iterator[Seen]:
        """Train, step by step; stop asking at any time and call `pause`."""
        private, plan = self.private, self.plan
        if self._ended():
            return
        an_epoch = max(1, round(1 / plan.rate), math.ceil(plan.steps / _ROWS))
        every = max(1, plan.steps // _CHECKPOINTS)
        for x, y in private.batches(self._train, users=self._users):
            private.step(self._losses, x, y)
            self._look()
            done = private.steps_done
            if done % an_epoch == 0 or done == plan.steps:
                self._remember(done)
            if done % every == 0 or done == plan.steps:
                private.save(self.folder.checkpoint)
            yield Seen(done, plan.steps, private.local.loss)

    def pause(self) -> None:
        """Keep the state, so that `resume` goes on to the same bits."""
        if self.private._pending is None:
            self.private.save(self.folder.checkpoint)

    def finish(self) -> dict[str, Any]:
        """Publish the averaged weights with plan and ledger; returns the local scores."""
        self.private.finish()
        with self.private.averaged() as model:
            publishing.publish(self.folder, self.card, model, self.private)
        return self._history[-1] if self._history else {}

    def score(self) -> float | None:
        """Of the averaged weights on the hold-out: accuracy, or the root mean squared error.  LOCAL ONLY."""
        features, targets = self._scored
        if not len(targets):
            return None
        with self.private.averaged() as model:
            outputs = Published(self.card, model).outputs(features)
            model.train()
        return score(self.card, outputs, targets)

    def _ended(self) -> bool:
        """Whether the ledger says so already: then a crash came between the last step and publishing."""
        spending = self.private.spending
        return any(summary.run == spending.run and summary.finished for summary in spending.ledger.runs)

    def _losses(self, x: Tensor, y: Tensor) -> Tensor:
        outputs = self.private.model(x)
        if self.card.classes is None:
            outputs = outputs[:, 0]
        return self._loss(outputs, y, reduction="none")

    def _look(self) -> None:
        local = self.private.local
        if local.size:
            norms = local.norms.norm(dim=1).float()
            quarter, half = (float(norms.nanquantile(q)) for q in (0.25, 0.5))
            self._window.append((local.loss, quarter, half, float(norms.nanquantile(0.75))))

    def _remember(self, step: int) -> None:
        """One row of the local history for every epoch."""
        means = [float(np.mean(column)) for column in zip(*self._window, strict=True)] or [math.nan] * 4
        clean = [value if math.isfinite(value) else None for value in means]
        row = {"step": step, "epoch": step * self.plan.rate, "loss": clean[0], "norms": clean[1:]}
        row |= {"clipped": _finite(self.private.local.clipped), "score": _finite(self.score())}
        self._history.append(row)
        self._window = []
        write_json(self.folder.local, {"epochs": self._history, "held": self._held.records}, mode=0o600)


def score(card: Card, outputs: Tensor, targets: NDArray[Any]) -> float:
    """Accuracy, or the root mean squared error in the target's units."""
    if card.classes is not None:
        return float((outputs.argmax(dim=1).numpy() == targets).mean())
    assert card.scaling is not None
    return float(np.sqrt(np.mean((outputs[:, 0].numpy() - targets) ** 2))) * card.scaling.scale


# Beginning


def start(request: Request, folder: Folder, ledger: Path | None = None) -> Session:
    """Register a run, ask its survey, and make ready for the first step."""
    key = Key.fresh(request.secure) if request.seed is None else Key.from_seed(request.seed, request.secure)
    secret = secrets.token_bytes(32) if request.seed is None else key.derive("hold-out")
    known = prepare(request, secret)
    asked = survey.questions(known.questions(request.records), request.epsilon, request.delta)
    terms = _terms(request, asked)
    folder.create()
    try:
        folder.need_room(64 << 20)
        write_json(folder.settings, request.settings() | _secrets(request, known, secret, ledger), mode=0o600)
        place = folder.ledger if ledger is None else ledger
        book = Ledger(place, None if place.exists() else Budget(request.epsilon, request.delta))
        _refuse_other_units(book, request.unit)
        run = book.register(terms, total(terms), block=min(64, max(1, request.recipe.steps // 50)))
    except (ValueError, OSError):
        folder.remove()  # nothing was charged, so nothing is lost
        raise
    write_json(folder.plan, {"run": run, "terms": terms})
    card, records = describe(request, known, asked, _teller(asked, book, run, key))
    plan = _plan(request, terms, records)
    write_json(folder.card, card.to_dict())
    write_json(folder.plan, {"run": run, "terms": terms, "plan": plan.to_dict(), "key": key.report()})
    private = _private(card, request.recipe, plan, Spending(book, plan, run), key, request.seed)
    session = _session(folder, card, private, known.train, known.held)
    session.pause()
    return session


# Resuming


def resume(folder: Folder, data: Path | None = None) -> Session:
    """Go on with a run that was stopped, by hand or by a crash."""
    folder.check()
    settings, written = read_json(folder.settings), read_json(folder.plan)
    if folder.manifest.exists():
        raise ValueError(f"The run in {folder.path} is finished; there is nothing left to do.")
    if "plan" not in written or not (folder.checkpoint / "checkpoint.json").exists():
        raise ValueError(
            f"The run in {folder.path} stopped before its first step; what it asked stays charged in its ledger. "
            "Start another one."
        )
    inspect(folder.path)
    card = Card.from_dict(read_json(folder.card))
    try:
        reading, secret = Reading(**settings["reading"]), bytes.fromhex(settings["secret"])
        place = Path(settings["ledger"]) if settings["ledger"] is not None else folder.ledger
        path, share, expected = data or Path(settings["data"]), settings["hold_out"], settings["digest"]
        recipe, labelled = Recipe(**settings["recipe"]), settings["labelled"]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder.settings} is damaged or from another version of hush.") from error
    found = read_data(path, reading)
    if labelled is not None:
        found = found.take(labelled)
    if found.digest(secret) != expected:
        raise ValueError(f"{path} isn't what the run began with; put the records back as they were to go on.")
    held = aside(found.contents(), share, secret)
    plan = Plan.from_dict(written["plan"])
    model = card.network.build()
    optimiser = torch.optim.SGD(model.parameters(), lr=recipe.learning_rate_for(plan.noise_multiplier, plan.batch))
    private = Private.resume(folder.checkpoint, model, optimiser, plan, ledger=place)
    train, aside_ = found.take(np.flatnonzero(~held)), found.take(np.flatnonzero(held))
    return _session(folder, card, private, train, aside_)


# Inside


def _teller(asked: Sequence[survey.Question], book: Ledger, run: str, key: Key) -> survey.Ask:
    """Answers questions of the survey: charged first, then noised and rounded to whole numbers."""

    def ask(question: survey.Question, sums: survey.Floats, sensitivity: float) -> survey.Floats:
        book.reserve(run, asked.index(question) - len(asked), question.charges(), 1)
        std = question.noise_multiplier * sensitivity
        (noisy,) = noise.add(key, 0, [torch.from_numpy(sums)], [std], purpose=f"survey: {question.name}")
        return np.rint(noisy.numpy().astype(np.float64))

    return ask


def _refuse_other_units(book: Ledger, unit: str) -> None:
    """A sum over runs holds for what all of them protect: one more row of a user isn't one more user."""
    for plan in (summary.plan for summary in book.runs):
        other = plan.get("unit") if isinstance(plan, dict) else None
        if other not in (None, unit):
            raise ValueError(
                f"The ledger {book.path} has a run that protects one {other}, and this one is to protect one {unit}; "
                "their sum would hold for neither, so give another --ledger."
            )


def _terms(request: Request, asked: Sequence[survey.Question]) -> dict[str, Any]:
    """What is registered: every release of the run, fixed before the first, from public numbers."""
    recipe = request.recipe
    terms: dict[str, Any] = {
        "hush": __version__,
        "epsilon": request.epsilon,
        "delta": request.delta,
        "unit": request.unit,
        "records": request.records,
        "hold_out": request.hold_out,
        "questions": [asdict(question) for question in asked],
        "rate": recipe.rate,
        "steps": recipe.steps,
        "recipe": recipe.to_dict(),
    }
    budget = request.epsilon, request.delta
    terms["noise_multiplier"] = calibrate.noise(lambda z: total(terms | {"noise_multiplier": z}), *budget)
    return terms


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


def _private(card: Card, recipe: Recipe, plan: Plan, spending: Spending, key: Key, seed: int | None) -> Private:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(secrets.randbits(63) if seed is None else seed)
        model = card.network.build()
    rate = recipe.learning_rate_for(plan.noise_multiplier, plan.batch)
    optimiser = torch.optim.SGD(model.parameters(), lr=rate, momentum=recipe.momentum)
    return Private(model, optimiser, plan, ledger=spending, key=key, average=Average(recipe.decay))


def _session(folder: Folder, card: Card, private: Private, train: Data, held: Data) -> Session:
    """The training part as tensors; records whose target is no class, or no number, are left out one by one."""
    targets = card.encode_targets(train.targets or [])
    usable = np.flatnonzero(targets >= 0 if card.classes is not None else np.isfinite(targets))
    kept = train.take(usable)
    try:
        x, y = torch.from_numpy(card.encode(kept)), torch.from_numpy(targets[usable])
    except MemoryError:
        raise ValueError(
            "The records don't fit into memory as numbers; leave columns out or give fewer rows."
        ) from None
    return Session(folder, card, private, (x, y), held, None if kept.users is None else _numbered(kept.users))


def _numbered(users: Sequence[str]) -> NDArray[np.int64]:
    """Users by numbers: NumPy's texts drop a NUL at the end, and two users would be clipped as one."""
    numbers = {user: number for number, user in enumerate(dict.fromkeys(users))}
    return np.array([numbers[user] for user in users], dtype=np.int64)


def _secrets(request: Request, known: Prepared, secret: bytes, ledger: Path | None) -> dict[str, Any]:
    return {
        "secret": secret.hex(),
        "digest": known.digest,
        "labelled": known.labelled,
        "hold_out": request.hold_out,
        "recipe": request.recipe.to_dict(),
        "ledger": None if ledger is None else str(ledger.resolve()),
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
