"""`hush epsilon`: the number to quote."""

from __future__ import annotations

import math

from hush.cli.accountants import paper_moments, where_defined
from hush.cli.options import DeltaOption, JsonOption, about_a_run
from hush.cli.printing import facts, interval, print_answer, print_json, promise
from hush.cli.run import Run
from hush.digits import near, number, up


@about_a_run
def command(
    run: Run,
    delta: DeltaOption,
    as_json: JsonOption = False,
) -> None:
    """The epsilon of a run at a given delta: the number to quote, with its certificate.

    Example: hush epsilon --rate 256/60000 --noise 1.3 --epochs 15 --delta 1e-5
    """
    from hush.accounting.answers import EPSILON_LIMIT

    mechanism = run.mechanism()
    certified, errors = mechanism.epsilon(delta), mechanism.error_sum()
    clt = where_defined(lambda: mechanism.clt().epsilon(delta))
    mu = None if clt is None else mechanism.clt().mu
    moments = where_defined(lambda: paper_moments(mechanism, delta))
    # Beyond the limit epsilon isn't resolved; the delta that remains there tells how bad it is.
    remains = mechanism.delta(EPSILON_LIMIT).upper if math.isinf(certified.upper) else None
    if as_json:
        answer = interval("epsilon", certified) | {
            "delta": delta,
            "epsilon_clt": clt,
            "mu_clt": mu,
            "epsilon_moments": moments,
            "min_error_sum": errors.lower,
        }
        print_json(answer | ({} if remains is None else {"delta_at_limit": remains}), run, mechanism)
        return
    rows = facts(run, mechanism, "epsilon", certified, errors)
    if moments is not None:
        tight = (
            "true as well, but not as tight"
            if moments >= certified.upper
            else "a true bound where the certified answer ends, at 10,000"
        )
        rows["moments"] = f"epsilon <= {up(moments, 5)} by the moments accountant: {tight}"
    if mechanism.mu is not None:
        known = "exactly" if mechanism.tag == "exact" else "by the analysis"
        rows["Gaussian"] = f"mu-GDP with mu = {up(mechanism.mu)}, {known}"
    elif clt is not None and mu is not None:
        said = f"epsilon ~ {near(clt)} (mu ~ {near(mu)}): an approximation, not a bound; don't quote it"
        rows["CLT"] = said if clt <= EPSILON_LIMIT else f"says nothing here: mu ~ {near(mu)} is too large for it"
    if remains is None:
        headline = f"epsilon <= {up(certified.upper)} at delta = {number(delta)}"
        words = promise(up(certified.upper, 4), number(delta), run, mechanism)
        print_answer(headline, words, rows)
    else:
        verdict = "exceeds" if certified.lower >= EPSILON_LIMIT else "may exceed"
        headline = f"epsilon {verdict} {EPSILON_LIMIT:,.0f} at delta = {number(delta)}: no protection worth the name"
        words = f"Even at epsilon = {EPSILON_LIMIT:,.0f} a delta of {up(remains)} remains."
        print_answer(headline, words, rows, good=False)
