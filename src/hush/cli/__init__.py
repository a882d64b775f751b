"""The command line: `hush epsilon`, `delta`, `calibrate`, `curve`, `compare`; `plan`, `train` and what follows it.

One file a command.  What they share: `options` reads what was typed, `run` is the training run it describes as a value,
`accountants` asks the papers' methods for comparison, `printing` says the answer to people and machines.  Everything
else is asked of `hush.accounting`.

NumPy, SciPy, Rich and Matplotlib are imported where they are needed: an answer should take less than a second.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.exceptions import TyperException

from hush import __version__
from hush.cli import (
    calibrate,
    compare,
    curve,
    delta,
    epsilon,
    plan,
    predict,
    report,
    reproduce,
    resume,
    spent,
    train,
    verify,
)

app = typer.Typer(
    name="hush",
    help="How private is this training run? Certified answers.\n\n"
    "Example: hush epsilon --rate 256/60000 --noise 1.3 --epochs 15 --delta 1e-5",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"hush {__version__}")
        raise typer.Exit


@app.callback()
def _hush(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


app.command("epsilon")(epsilon.command)
app.command("delta")(delta.command)
app.command("calibrate")(calibrate.command)
app.command("curve")(curve.command)
app.command("compare")(compare.command)
app.command("plan")(plan.command)
app.command("train")(train.command)
app.command("resume")(resume.command)
app.command("predict")(predict.command)
app.command("spent")(spent.command)
app.command("verify")(verify.command)
app.command("report")(report.command)
app.command("reproduce")(reproduce.command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; bad input is one sentence on stderr and status 2."""
    command = typer.main.get_command(app)
    with warnings.catch_warnings():
        # An overflow that the certificate accounts for is no news to whoever asked.  Appended, so that stricter
        # filters, such as those of the tests, come first.
        warnings.simplefilter("ignore", append=True)
        try:
            status = command.main(arguments, prog_name="hush", standalone_mode=False)
        except TyperException as error:
            return _complain(error.format_message(), error.exit_code)
        except ValueError as error:
            return _complain(str(error), 2)
        except (ArithmeticError, MemoryError):
            return _complain("These numbers are too extreme to compute with: check --noise, --rate and --steps.", 2)
        except OSError as error:
            return _complain(f"Can't write {error.filename or 'the answer'}: {error.strerror}.", 2)
        except typer.Abort:
            return 1
    return status if isinstance(status, int) else 0


def _complain(sentence: str, status: int) -> int:
    if sentence:
        print(f"Error: {' '.join(sentence.split())}", file=sys.stderr)
    return status
