"""The report of a run: one self-contained page for whoever asks how private it is, and a local edition for its owner.

`words` says the promise, `figures` draws it, `plots` and `page` render.  The public edition is made of the public
folder alone; the local one adds what was seen while training, is marked so, and stays in the private folder.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from hush.digits import number, short, up
from hush.report import figures, page, words
from hush.report.plots import Plot, write_plot
from hush.runs.folder import read_json, write_text
from hush.runs.inspecting import Inspected, inspect
from hush.tabular.columns import Column

__all__ = ["write_report"]


def write_report(run: Path, local: bool = False, png: bool = False) -> list[Path]:
    """Write a run's report and return the files: the page first, then its pictures if they are wanted."""
    found = inspect(run)
    if local and not found.folder.local.exists():
        raise ValueError(f"{run} has no local metrics; the local edition is for whoever holds the private folder.")
    body, plots = _public(found)
    place = found.folder.public / "report.html"
    if local:
        extra, more = _local(found)
        body, plots = [*body[:1], *extra, *body[1:]], [*plots, *more]
        place = found.folder.private / "report-local.html"
    title = "How private is this model?" + (" (local edition, not for release)" if local else "")
    text = page.page(title, body)
    if not local:
        found.folder.bind("report.html", text)
    write_text(place, text, mode=0o600 if local else 0o644)
    files = [place]
    if png:
        for plot in plots:
            files.append(place.with_name(f"{place.stem}-{plot.name}.png"))
            write_plot(plot, files[-1])
    if found.finished and not local:
        found.folder.hide_times()
    return files


def _public(found: Inspected) -> tuple[list[str], list[Plot]]:
    mechanism = found.spent.mechanism if found.finished and found.spent.mechanism is not None else found.planned
    curve, epsilon = mechanism.tradeoff(400), mechanism.epsilon(found.delta).upper
    charged = found.steps_charged if found.finished else int(found.terms["steps"])
    tradeoff = figures.tradeoff_plot(curve, epsilon, found.delta)
    by_delta, by_epoch = figures.delta_plot(mechanism, found.delta), figures.epochs_plot(found.terms, charged)
    width = float((curve.upper - curve.lower).max())
    right = f"{words.right_at_most(curve):.1%}"
    whole = " with all their rows" if found.unit == "user" else ""
    headline = {
        short(
            epsilon
        ): f"Epsilon is at most {short(epsilon)}, at delta = {number(found.delta)}. Smaller is more private.",
        right: f"The best attacker is right at most {right} of the time. A coin toss is right 50% of the time.",
        f"one {found.unit}": f"The promise is made to each {found.unit}{whole}.",
    }
    state = "" if found.finished else " The run isn't finished; this is what it will have spent at its end, at most."
    rows = [[f"{a.alarms:.1%}", f"{a.found:.1%}", f"{1 - a.found:.1%}"] for a in words.attacks(curve)]
    body = [
        f"<p class='soft'>Privacy report of run <code>{escape(found.run)}</code>, made with hush."
        f"{escape(state)}</p><h1>How private is this model?</h1>",
        page.cards(headline),
        *(f"<p class='alarm'>{page.prose(warning)}</p>" for warning in words.warnings(found, curve)),
        page.heading("The promise"),
        page.paragraphs(words.promise(found, curve, epsilon)),
        page.heading("What an attacker can do"),
        page.figure(
            tradeoff,
            "Every attack has a share of false alarms and a share of misses. No attack lies below the solid curve. "
            f"Its certified band is at most {up(width, 2)} wide. The nearer to blind guessing, the better.",
        ),
        page.number_table(("false alarms", "finds at most", "misses at least"), rows),
        page.bullets(words.reading(found)),
        page.heading("Epsilon"),
        '<div class="pair">',
        page.figure(by_delta, "The same run, quoted at other deltas."),
        page.figure(by_epoch, "How the budget was spent: the survey of the data first, then step by step."),
        "</div>",
        page.heading("What was done"),
        page.facts_table(words.settings(found)),
        *_survey(found),
        page.heading("Randomness and arithmetic"),
        page.paragraphs([words.randomness(found), words.floating_point(found)]),
        page.heading("What was not private"),
        page.bullets(words.not_private(found)),
        page.heading("Checking it"),
        page.paragraphs(
            [
                "Every release was entered into the ledger, and synced to the disk, before it was made. The ledger's "
                "records are chained by digests; the command hush verify checks the chain, that the plan is the one "
                "registered before the first release, and that the model and this page are this run's. Whoever can "
                "rewrite all files together can't be caught by digests: keep the ledger's digest elsewhere.",
            ]
        ),
        page.facts_table(
            {
                "run": found.run,
                "ledger's digest": found.ledger.head,
                "releases": str(mechanism),
                "budget": f"epsilon {number(found.terms['epsilon'])} at delta {number(found.delta)}",
            }
        ),
    ]
    return body, [tradeoff, by_delta, by_epoch]


def _survey(found: Inspected) -> list[str]:
    """The questions asked of the data with noise, and what the columns were found or declared to be."""
    parts = []
    asked = found.terms["questions"]
    if asked:
        parts.append(page.heading("What was asked of the records, with noise"))
        rows = [[q["name"], f"{q['noise_multiplier']:.4g}", number(q["leak"]) if q["leak"] else "-"] for q in asked]
        parts.append(page.number_table(("question", "noise multiplier", "threshold's delta"), rows))
    if found.folder.card.exists():
        card: dict[str, Any] = read_json(found.folder.card)
        columns = card.get("columns")
        if isinstance(columns, dict) and columns:
            shown = {name: str(Column.from_dict(value)) for name, value in list(columns.items())[:40]}
            if len(columns) > 40:
                shown[f"and {len(columns) - 40} more"] = "see model.json"
            parts += [page.heading("What the columns are taken for"), page.facts_table(shown)]
    return parts


def _local(found: Inspected) -> tuple[list[str], list[Plot]]:
    seen = read_json(found.folder.local)
    card = read_json(found.folder.card)
    drawn = figures.local_plots(seen.get("epochs", []), card.get("classes") is not None, found.unit)
    extra = [
        '<p class="alarm">LOCAL EDITION, NOT FOR RELEASE. The numbers of the next section were computed from the '
        "records without noise. Look at them, but don't publish them and don't choose models or settings by them.</p>",
        page.heading("Seen while training (not private)"),
        f"<p>The hold-out has {int(seen.get('held', 0)):,} records.</p>",
        '<div class="pair">',
        *(page.figure(plot, caption) for plot, caption in drawn),
        "</div>",
    ]
    return extra, [plot for plot, _ in drawn]
