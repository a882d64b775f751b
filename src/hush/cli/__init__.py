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
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
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


class _Command(TyperCommand):
    """Its help names no type for flags, which take no value."""

    def get_params(self, ctx: Any) -> Any:
        return _flags_bare(super().get_params(ctx))


class _Commands(TyperGroup):
    def get_params(self, ctx: Any) -> Any:
        return _flags_bare(super().get_params(ctx))


def _flags_bare(parameters: Any) -> Any:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""
    return parameters


app = typer.Typer(
    name="hush",
    cls=_Commands,
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


for _name, _function in (
    ("epsilon", epsilon.command),
    ("delta", delta.command),
    ("calibrate", calibrate.command),
    ("curve", curve.command),
    ("compare", compare.command),
    ("plan", plan.command),
    ("train", train.command),
    ("resume", resume.command),
    ("predict", predict.command),
    ("spent", spent.command),
    ("verify", verify.command),
    ("report", report.command),
    ("reproduce", reproduce.command),
):
    app.command(_name, cls=_Command)(_function)


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
            words = error.format_message().replace("Value error, ", "")  # a validator's word for what is plain
            hint = (
                " Choose one well below 1/records, e.g. 1e-5." if words.startswith("Missing option '--delta'") else ""
            )
            return _complain(words + hint, error.exit_code)
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
