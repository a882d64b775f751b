"""Asking a run what it spent, and whether its parts belong together.  Needs no PyTorch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hush.accounting import Gaussian, Mechanism, compose
from hush.digits import number, short
from hush.ledger import CorruptLedgerError, Ledger, RunSummary, Spent
from hush.plan import Plan
from hush.runs.folder import BOUND, Folder, digest, read_json
from hush.tabular.survey import Question


def total(terms: dict[str, Any]) -> Mechanism:
    """Everything that a run releases, by its terms: the survey's questions and the steps."""
    asked = [part for question in terms["questions"] for part in Question(**question).charges()]
    return compose([*asked, (step_of(terms), terms["steps"])])


def step_of(terms: dict[str, Any]) -> Mechanism:
    """One step of the training."""
    return Gaussian(terms["noise_multiplier"]).poisson(terms["rate"])


@dataclass(frozen=True, eq=False)
class Inspected:
    """What the public part of a run says."""

    folder: Folder
    run: str
    terms: dict[str, Any]
    written: dict[str, Any]
    ledger: Ledger
    spent: Spent
    finished: bool

    @property
    def delta(self) -> float:
        return float(self.terms["delta"])

    @property
    def unit(self) -> str:
        return str(self.terms["unit"])

    @property
    def planned(self) -> Mechanism:
        return total(self.terms)

    @property
    def steps_charged(self) -> int:
        parts = () if self.spent.mechanism is None else self.spent.mechanism.parts()
        return sum(count for part, count in parts if part == step_of(self.terms))


def inspect(run: Path) -> Inspected:
    """A run's public part: its plan, which must be the one that was registered, and its ledger where it is kept."""
    found = _read(run)
    if not same(_registered(found).plan, found.terms):
        raise ValueError(f"{found.folder.plan} isn't the plan that its ledger registered; `hush verify` says more.")
    return found


def _read(run: Path) -> Inspected:
    folder = Folder.at(run)
    folder.check()
    written = read_json(folder.plan)
    try:
        name, terms = written["run"], written["terms"]
        total(terms).epsilon(terms["delta"])
        str(terms["unit"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{folder.plan} is damaged or from another version of hush.") from error
    ledger = Ledger(_ledger(folder))
    known = {summary.run: summary for summary in ledger.runs}
    if name not in known:
        raise ValueError(f"The ledger of {run} doesn't hold this run; it isn't the one that it was made with.")
    return Inspected(folder, name, terms, written, ledger, known[name].spent, known[name].finished)


def _ledger(folder: Folder) -> Path:
    """The ledger: a copy in the public folder or, while a run with a shared one goes on, that one."""
    if folder.ledger.exists():
        return folder.ledger
    shared = read_json(folder.settings).get("ledger") if folder.settings.exists() else None
    if not isinstance(shared, str) or not Path(shared).exists():
        raise ValueError(f"{folder.path} has no ledger; without it nobody knows what was spent.")
    return Path(shared)


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    passed: bool
    words: str


def verify(run: Path) -> tuple[Check, ...]:
    """The ledger's chain and head, the plan and the model belong together."""
    try:
        found = _read(run)
    except CorruptLedgerError as error:
        return (Check(False, f"the ledger's chain is broken: {error}"),)
    checks = [Check(True, "the ledger's chain is whole" + "".join(f"; {r}" for r in found.ledger.verify()))]
    registered = _registered(found)
    checks.append(
        Check(same(registered.plan, found.terms), "the plan's terms are those registered before the first release")
    )
    checks.append(Check(registered.total == found.planned, "the registered releases are those of the terms"))
    checks.append(_within(found))
    if "plan" in found.written:
        checks.append(_plan_check(found))
    if found.folder.manifest.exists():
        checks += _manifest_checks(found)
    else:
        unfinished = not found.finished and not found.folder.weights.exists()
        checks.append(Check(unfinished, "the run isn't finished, so no model is published"))
    return tuple(checks)


def _registered(found: Inspected) -> RunSummary:
    return next(summary for summary in found.ledger.runs if summary.run == found.run)


def same(one: Any, other: Any) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _within(found: Inspected) -> Check:
    epsilon, spent = float(found.terms["epsilon"]), found.spent.epsilon(found.delta).upper
    words = f"spent epsilon {short(spent)} is within the promised {number(epsilon)} at delta {number(found.delta)}"
    return Check(spent <= epsilon, words)


def _plan_check(found: Inspected) -> Check:
    try:
        plan = Plan.from_dict(found.written["plan"])
        same = plan.mechanism == compose([(step_of(found.terms), found.terms["steps"])])
        same = same and plan.unit == found.unit and plan.delta == found.delta
    except (ValueError, KeyError, TypeError):
        same = False
    return Check(same, "the plan that was trained by costs what was registered")


def _manifest_checks(found: Inspected) -> list[Check]:
    manifest = read_json(found.folder.manifest)
    checks = [Check(manifest.get("run") == found.run, "the manifest names this run")]
    try:
        found.ledger.verify(str(manifest.get("ledger_head")))
        checks.append(Check(True, "the ledger still holds the head recorded with the model"))
    except CorruptLedgerError as error:
        checks.append(Check(False, str(error)))
    files = manifest.get("files")
    for name in BOUND:
        path = found.folder.public / name
        recorded = files.get(name) if isinstance(files, dict) else None
        checks.append(Check(path.is_file() and digest(path) == recorded, f"{name} is the file that was published"))
    checks.append(_metadata_check(found, manifest))
    page = found.folder.public / "report.html"
    if page.is_file():
        recorded = files.get(page.name) if isinstance(files, dict) else None
        checks.append(Check(digest(page) == recorded, "report.html is the page that `hush report` wrote"))
    return checks


def _metadata_check(found: Inspected, manifest: dict[str, Any]) -> Check:
    """safetensors: eight bytes with the header's length, then JSON with the metadata."""
    try:
        with found.folder.weights.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            stated = json.loads(file.read(min(length, 1 << 24)))["__metadata__"]
        same = stated == {"run": found.run, "ledger": manifest.get("ledger_head")}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        same = False
    return Check(same, "the model names this run and this state of the ledger")
