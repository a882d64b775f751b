"""`hush spent`: the odometer of a run."""

from __future__ import annotations

import json

from hush.cli.options import JsonOption
from hush.cli.printing import print_answer
from hush.cli.resume import RunArgument
from hush.cli.trouble import told_plainly
from hush.digits import down, number, up


def command(run: RunArgument, as_json: JsonOption = False) -> None:
    """What a run has spent so far, and what to quote.

    Example: hush spent data-run
    """
    with told_plainly():
        from hush.runs.inspecting import inspect

        found = inspect(run)
        spent, planned = found.spent.epsilon(found.delta), found.planned.epsilon(found.delta)
    if as_json:
        answer = {"epsilon": spent.upper, "delta": found.delta, "epsilon_planned": planned.upper, "unit": found.unit}
        answer |= {"finished": found.finished, "steps": found.steps_charged, "steps_planned": found.terms["steps"]}
        print(json.dumps(answer, indent=2))
        return
    state = "finished" if found.finished else f"not finished: hush resume {run}"
    if found.folder.ended.is_file():
        state = f"ended by its survey. {found.folder.ended.read_text(encoding='utf-8').strip()}"
    rows = {
        "spent": f"{down(spent.lower)} <= epsilon <= {up(spent.upper)} at delta = {number(found.delta)}",
        "steps": f"{found.steps_charged} of {found.terms['steps']} charged",
        "survey": f"{len(found.terms['questions'])} questions asked of the data, with noise",
        "planned": f"epsilon <= {up(planned.upper)}: what holds if the run is stopped because of what it showed",
        "neighbours": f"add/remove one {found.unit}",
        "state": state,
    }
    quoted = spent.upper if found.finished else planned.upper
    print_answer(f"quote epsilon <= {up(quoted, 4)} at delta = {number(found.delta)}", str(found.spent), rows)
