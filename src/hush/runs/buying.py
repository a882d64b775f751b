"""What a budget buys: for each batch size and number of epochs, the noise that keeps it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

from hush.accounting import Gaussian, calibrate
from hush.accounting.checks import check_positive, check_whole
from hush.digits import number, up

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Offer:
    """A run that keeps the budget.

    noise_multiplier  of every step
    noise_per_step    the noise of the average gradient, in clip norms and for each coordinate: z/batch
    noise_in_all      of the sum of all steps' average gradients over their number: z/(batch steps^(1/2))
    """

    batch: float
    epochs: float
    steps: int
    noise_multiplier: float
    noise_per_step: float
    noise_in_all: float


@dataclass(frozen=True)
class Bought:
    """All offers of a budget."""

    records: int
    epsilon: float
    delta: float
    offers: tuple[Offer, ...]

    neighbours: ClassVar[str] = "add/remove one"
    sampling: ClassVar[str] = "poisson"

    def to_dict(self) -> dict[str, Any]:
        """With the relation and the sampling, without which epsilon says nothing."""
        return asdict(self) | {"neighbours": self.neighbours, "sampling": self.sampling}


def default_batches(records: int) -> tuple[float, ...]:
    """From about a two hundredth of the records to all of them, by powers of two."""
    largest = 2 ** math.floor(math.log2(records))
    return tuple(sorted({float(max(1, largest >> shift)) for shift in (0, 1, 2, 3, 5, 7)} | {float(records)}))


def buy(
    records: int, epsilon: float, delta: float, epochs: tuple[float, ...], batches: tuple[float, ...] | None = None
) -> Bought:
    """The smallest noise for every combination, by the certified account."""
    check_whole("The number of records", records)
    check_positive("epsilon", epsilon)
    sizes = default_batches(records) if batches is None else batches
    too_large = [batch for batch in sizes if batch > records]
    if too_large:
        raise ValueError(f"A batch of {too_large[0]:g} is larger than the {records} records.")
    offers = [_offer(records, epsilon, delta, batch, length) for batch in sizes for length in epochs]
    return Bought(records, epsilon, delta, tuple(offers))


def _offer(records: int, epsilon: float, delta: float, batch: float, epochs: float) -> Offer:
    steps = max(1, math.ceil(Fraction(str(epochs)) * records / Fraction(str(batch))))
    if steps > 10**9:
        raise ValueError(f"{epochs:g} epochs in batches of {batch:g} are {steps:,} steps; give larger batches.")
    noise = calibrate.noise(lambda z: Gaussian(z).poisson(batch / records) * steps, epsilon, delta)
    return Offer(batch, epochs, steps, noise, noise / batch, noise / batch / math.sqrt(steps))


def table(bought: Bought) -> Table:
    """Rows of batch sizes, columns of epochs; in each place the noise multiplier and the noise of a step."""
    from rich.table import Table

    epochs = sorted({offer.epochs for offer in bought.offers})
    best = {length: min(o.noise_in_all for o in bought.offers if o.epochs == length) for length in epochs}
    drawn = Table(
        title=f"epsilon {number(bought.epsilon)} at delta {number(bought.delta)} for {bought.records:,} records, "
        f"{bought.neighbours} record, Poisson sampling",
        caption="In each place: the noise multiplier (and the noise on a coordinate of a step's average gradient, "
        "in clip norms). * marks each column's best batch: with it all steps together have the least noise.",
        title_justify="left",
        caption_justify="left",
    )
    drawn.add_column("batch", justify="right")
    for length in epochs:
        drawn.add_column(f"{length:g} epochs", justify="right")
    for batch in sorted({offer.batch for offer in bought.offers}):
        row = {offer.epochs: offer for offer in bought.offers if offer.batch == batch}
        whole = " (all)" if batch == bought.records else ""
        drawn.add_row(f"{batch:,.10g}{whole}", *(_cell(row[length], best[length]) for length in epochs))
    return drawn


def _cell(offer: Offer, best: float) -> str:
    text = f"{up(offer.noise_multiplier, 3)} ({up(offer.noise_per_step, 2)})"  # rounded up: less would not keep epsilon
    return f"[bold]* {text}[/]" if offer.noise_in_all <= best * (1 + 1e-9) else text
