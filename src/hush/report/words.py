"""The promise in words for people who answer for other people's data, and what it leaves out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hush.accounting.errors import ErrorCurve
from hush.digits import ceiling, number, short
from hush.runs.folder import read_json
from hush.runs.inspecting import Inspected
from hush.runs.strength import delta_warning, factor, strength

ALARMS = (0.001, 0.01, 0.05, 0.1, 0.25)
"""False-alarm rates to speak of."""


@dataclass(frozen=True)
class Attack:
    """The best that any attacker can do at a rate of false alarms: finds at most `found` of those who took part."""

    alarms: float
    found: float


def attacks(curve: ErrorCurve) -> list[Attack]:
    """Power at a few false-alarm rates, rounded up to a tenth of a percent."""
    misses, _ = curve(np.array(ALARMS))
    return [Attack(a, min(1.0, float(ceiling(1 - m, 3)))) for a, m in zip(ALARMS, misses.tolist(), strict=True)]


def right_at_most(curve: ErrorCurve) -> float:
    """How often an attacker with even odds is right: 1 - (smallest sum of errors)/2, rounded up."""
    return min(1.0, float(ceiling(1 - curve.error_sum.lower / 2, 3)))


def promise(found: Inspected, curve: ErrorCurve, epsilon: float) -> list[str]:
    """Paragraphs, plain text."""
    one = f"one {found.unit}" + (" with all their rows" if found.unit == "user" else "")
    right, five = right_at_most(curve), attacks(curve)[2]
    level = strength(right)
    return [
        "This model was trained on records that must stay confidential. It was trained so that "
        f"{level.model.format(one=one)}. This doesn't rest on assumptions about attackers or their computers: "
        "it is a property of how the model was made, and it holds for every attacker, now and later.",
        f"Imagine the strongest attacker: they know everything but one {found.unit}, know how the model was trained, "
        f"and hold the published model. They want to know whether that {one} took part. Before they look, it is a "
        "coin toss, and they would be right half of the time. After everything that was published they are right at "
        f"most {right:.1%} of the time. An attacker who raises a false alarm in {five.alarms:.0%} of the cases finds "
        f"at most {five.found:.1%} of those who took part; by guessing blindly it would be {five.alarms:.0%}.",
        f"In the usual numbers: ({short(epsilon)}, {number(found.delta)})-differential privacy for adding or removing "
        f"{one}. No outcome becomes more than e^{short(epsilon)} (at most {factor(float(short(epsilon)))}) times as "
        f"likely, up to a probability of {number(found.delta)}. The curve below says more than these two "
        "numbers and is what the statements above rest on.",
    ]


def warnings(found: Inspected, curve: ErrorCurve) -> list[str]:
    """What whoever reads the numbers must not miss."""
    records = (found.written.get("plan") or {}).get("records")
    delta = delta_warning(found.delta, int(records), found.unit) if records is not None else ""
    return [words for words in (strength(right_at_most(curve)).warning, delta[:1].upper() + delta[1:]) if words]


def reading(found: Inspected) -> list[str]:
    """What the numbers mean and don't mean."""
    tag = found.planned.tag
    exact = (
        "The account is exact: an attacker who reaches the curve exists, and none does better."
        if tag == "exact"
        else "The account is an upper bound: no attacker does better than the curve, and perhaps none reaches it."
    )
    return [
        exact + " It is certified: computed with error bounds, and rounded against us.",
        f"The promise is for {found.unit}s. Whoever has several {found.unit}s in the data is protected less: "
        "k of them by more than k times epsilon, at the same delta."
        if found.unit == "record"
        else "The promise is for a user with all their rows, as the user column names them.",
        "The promise is about taking part. What the model says about everybody (that smoking harms) it also says "
        "about those who took part; privacy can't prevent that, and isn't meant to.",
    ]


def not_private(found: Inspected) -> list[str]:
    """What this run takes for public, or doesn't protect."""
    terms = found.terms
    items = [
        "The names of the columns and of the target, and everything in plan.json: settings and noise.",
        "Whatever was declared: kinds and bounds of columns, categories, classes (for images the subfolders' names). "
        "Whoever declared them should not have read them off the records.",
        "That the run was made at all, and when. It tells that the file could be read, fits its declarations, "
        "and that its targets are not all the same.",
    ]
    if terms.get("records") is not None:
        items.append(f"The number of {found.unit}s, declared as {int(terms['records']):,}.")
    if float(terms.get("hold_out") or 0) > 0:
        items.append(
            f"Scores on the hold-out ({float(terms['hold_out']):.0%} of the {found.unit}s, put aside by a coin each). "
            "They were computed without noise, stay with the owner of the data, and are not on this page."
        )
    items += [
        "How long steps took, and other traces outside of the published files.",
        "Choices made by trying several runs on the same records, unless they share one ledger and its budget.",
    ]
    return items


def randomness(found: Inspected) -> str:
    """Where coins and noise come from, by the command's options rather than the library's."""
    return str(found.written.get("key", "")).replace("secure=True", "the option --secure")


def floating_point(found: Inspected) -> str:
    """Which assumptions about the arithmetic the promise rests on."""
    if "AES" in str(found.written.get("key", "")):
        return (
            "Noise is drawn as if it were real-valued and rounded to a grid, so that its last digits tell nothing. "
            "Norms are computed in floating point and enlarged by a bound on their rounding errors before clipping."
        )
    return (
        "The proof takes noise for real numbers; it was drawn as floating-point numbers, whose last digits are not "
        "hardened against an attacker who studies them (the option --secure does that). Norms are computed in floating "
        "point and enlarged by a bound on their rounding errors before clipping. Answers of the survey are rounded to "
        "whole numbers."
    )


def _steps(found: Inspected) -> str:
    """Planned, and where a crash made them differ, trained and charged."""
    planned, rate = int(found.terms["steps"]), float(found.terms["rate"])
    done = int(found.written.get("steps_done", planned))
    if not found.finished or done == found.steps_charged == planned:
        return f"{planned:,} ({planned * rate:.4g} epochs)"
    return f"{done:,} trained ({done * rate:.4g} epochs), {found.steps_charged:,} charged, {planned:,} planned"


def settings(found: Inspected) -> dict[str, str]:
    """The numbers of the run, all public."""
    terms, plan = found.terms, found.written.get("plan") or {}
    recipe: dict[str, Any] = terms.get("recipe") or {}
    unit = found.unit
    known = "declared" if terms.get("records") is not None else "released with noise"
    aside, share = float(terms.get("hold_out") or 0), float(found.written.get("share") or 1)
    known += f", {aside:.0%} put aside" if aside else ""
    known += f", {share:.2%} of the others took part, by a coin each" if share < 1 else ""
    rows = {
        "what it predicts": _predicted(found),
        "who is protected": f"one {unit} (neighbours: add/remove one {unit})",
        "what a row is": str(terms.get("pixels") or ""),
        "sampling": f"Poisson: every {unit} by its own coin of probability {terms['rate']:g} in each step",
        "rows of a user": f"at most {terms['user_rows']:,} in a step" if terms.get("user_rows") else "",
        f"{unit}s trained on": f"{plan['records']:,} ({known})" if "records" in plan else "not yet released",
        "expected batch": f"{float(plan['batch']):,.6g}" if "batch" in plan else "not yet released",
        "steps": _steps(found),
        "clipping": f"every {unit}'s gradient scaled to at most norm {recipe.get('clip', '?')}",
        "noise": f"Gaussian, {terms['noise_multiplier']:.6g} times the norm, on the sum of a step",
        "optimiser": f"SGD with momentum {recipe.get('momentum', '?')}, weights averaged over the last steps",
        "accounting": f"certified, {'exact' if found.planned.tag == 'exact' else 'an upper bound'}",
    }
    versions = found.written.get("versions")
    if isinstance(versions, dict):
        rows["versions"] = ", ".join(f"{name} {number}" for name, number in versions.items())
    if found.written.get("finished"):
        rows["finished"] = str(found.written["finished"])
    return {name: words for name, words in rows.items() if words}


def _predicted(found: Inspected) -> str:
    """What the published model answers; nothing before there is one."""
    if not found.folder.card.exists():
        return ""
    card = read_json(found.folder.card)
    name, classes = str(card.get("target") or "the class"), card.get("classes")
    if not classes:
        return f"{name}, a number"
    shown = ", ".join(map(str, classes[:8])) + (f" and {len(classes) - 8} more" if len(classes) > 8 else "")
    return f"{name}: {shown}"
