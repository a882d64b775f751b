"""`hush verify`: do a run's ledger, plan, model and report belong together?"""

from __future__ import annotations

import sys

from hush.cli.resume import RunArgument
from hush.cli.trouble import told_plainly


def command(run: RunArgument) -> int:
    """Check a run: the ledger's chain and head, that the plan is the registered one, and model and report its own.

    Example: hush verify data-run
    """
    with told_plainly():
        from hush.runs.inspecting import verify

        checks = verify(run)
    for check in checks:
        print(f"{'ok  ' if check.passed else 'FAIL'}  {check.words}")
    wrong = [check for check in checks if not check.passed]
    if wrong:
        print(f"Error: {len(wrong)} of {len(checks)} checks failed.", file=sys.stderr)
    else:
        print(f"All {len(checks)} checks passed.")
    return 1 if wrong else 0
