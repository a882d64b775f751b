"""The private step, and the run around it.

    plan = hush.Plan(records=60_000, batch=256, epochs=15, epsilon=3.0, delta=1e-5, clip=1.0)
    private = hush.Private(model, torch.optim.SGD(model.parameters(), lr=0.25), plan, ledger="run.ledger")

    def losses(x, y):                                    # one loss per example
        return F.cross_entropy(model(x), y, reduction="none")

    for x, y in private.batches(train_set):              # charged, then drawn; possibly empty
        private.step(losses, x, y)                       # clip, add, noise, optimiser.step()
    private.spent().epsilon(1e-5)

The model and the optimiser stay the user's own: a step writes `parameter.grad` and calls `optimiser.step()`, so what
follows the noisy gradient (momentum, weight decay, schedulers, averages) is post-processing and works as ever.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from hush import averaging, noise
from hush.accounting.checks import check_whole
from hush.arguments import average_of, capacity_of, check_optimiser, engine_at, engine_of, key_of, population_of
from hush.averaging import Average
from hush.batches import Batch
from hush.batches import batches as drawn_batches
from hush.clipping import votes
from hush.gradients import ClippedSum, Engine, Loop, Memory, Projected, Vmap, clipped_sum, refuse
from hush.gradients.check import named
from hush.gradients.engines import Weights
from hush.gradients.filling import cut
from hush.keys import Key
from hush.ledger import BudgetExceededError, Ledger, Spent
from hush.local import Local
from hush.plan import Plan
from hush.precision import Watch, is_compiled, unit_roundoff
from hush.prepared import Prepared
from hush.randomness import Randomness
from hush.rounding import BFLOAT16, UNNOTICED, rounding_margin, summed_at_once
from hush.sources import Collate, Items, source
from hush.spending import Spending, open_ledger
from hush.trained import Trained, of_each
from hush.units import Draw, Records, Users


class Private:
    """Trains a model by a plan.

    ledger      where steps are charged before they are drawn: a path, a shared `Ledger`, or None (lost at the end);
                a new one takes the plan's target as its budget
    key         of the sampling coins and the noise; None asks the operating system.  `Key.from_seed` is for tests, and
                gives every run the same noise; from any other key a run derives its own
    secure      coins and noise from a cipher, the noise hardened against floating-point attacks; on a CPU, examples
                computed in pieces of one size, so that no example's rounding depends on its company
    engine      how per-example gradients are clipped and summed: speed and memory only
    microbatch  how many examples are computed at once: memory only
    scheduler   a learning-rate scheduler to step after every optimiser step
    average     an `Average` of the weights to keep
    """

    def __init__(
        self,
        model: nn.Module,
        optimiser: Optimizer,
        plan: Plan,
        *,
        ledger: Ledger | Spending | str | os.PathLike[str] | None = None,
        key: Key | None = None,
        secure: bool = False,
        engine: Engine | None = None,
        microbatch: int | None = None,
        scheduler: LRScheduler | None = None,
        average: Average | None = None,
    ) -> None:
        refuse(model)
        check_optimiser(optimiser, scheduler)
        self.model, self.optimiser, self.plan, self.scheduler = model, optimiser, plan, scheduler
        self.engine = engine_of(engine, plan)
        given = key_of(key, secure)
        on_cpu = not any(p.is_cuda for p in model.parameters())
        whole = plan.projections is not None
        at_once, self._filling = cut(plan.batch, microbatch, alike=given.secure and on_cpu, whole=whole, on_cpu=on_cpu)
        self.microbatch = summed_at_once(plan.batch, at_once)
        self.average = average_of(average)
        self.averages = averaging.start(list(model.parameters())) if average is not None else []
        self.threshold = plan.clip.start()
        self.local = Local()
        self.steps_done = 0
        """How many steps were drawn; the next one has this number."""
        self._trained = Trained(model, optimiser)
        plan.stds(0, self._trained.names, self.threshold)  # refuses those without a norm before anything is charged
        self._memory = Memory(capacity=capacity_of(plan, self.microbatch, model, self._trained.parameters))
        self._randomness = Randomness()
        self._busy = threading.Lock()
        self._said: tuple[str, ...] | None = None
        self._watch = Watch(model)
        self._prepared = Prepared(model)
        self._pending: Batch | None = None
        self._reader: object = None
        self._draw_ahead: Callable[[], None] | None = None
        if isinstance(ledger, Spending):
            self.spending, self.key = ledger, given
        else:
            self.spending = Spending(open_ledger(ledger, plan), plan)
            self.key = given.of_run(self.spending.run)

    def __setattr__(self, name: str, value: Any) -> None:
        if (name in _FIXED and name in self.__dict__) or (name == "steps_done" and value < getattr(self, name, 0)):
            raise ValueError(f"A run's {name} can't be changed, since its account rests on it; begin another run.")
        super().__setattr__(name, value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("A run can't be copied, since its noise would be used twice; save and resume it.")

    # The loop

    def batches(
        self,
        data: Any,
        *,
        steps: int | None = None,
        workers: int = 0,
        users: Any = None,
        collate: Collate | None = None,
    ) -> Iterator[Any]:
        """The batches of the steps that are left, or of the next `steps` of them; may be empty.

        data    tensors or arrays in a tuple, or a map-style data set
        users   where the plan's unit isn't the record: the id of every record's user
        Ends when the plan is done, or with a warning when the ledger's budget refuses the next step.
        """
        if steps:
            check_whole("The number of steps", steps)
        records = source(data, collate)
        population = population_of(self.plan, records.records, users)
        if users is not None and collate is not None and isinstance(records, Items):
            records.refuse_reordering()
        return self._read(records, population, self.plan.steps if steps is None else steps, workers)

    def _read(self, records: Any, population: Records | Users, count: int, workers: int) -> Iterator[Any]:
        me = self._reader = object()
        key = self.key
        # which steps these are is settled now, at the first batch: a step's coins and noise are never used twice
        steps = range(self.steps_done, min(self.plan.steps, self.steps_done + count))
        ahead: dict[int, Draw] = {}

        def draw(step: int) -> Draw:
            return ahead.pop(step) if step in ahead else self.plan.draw(key, step, population)

        def draw_ahead() -> None:
            if workers == 0 and self.steps_done in steps:
                ahead[self.steps_done] = draw(self.steps_done)

        self._draw_ahead = draw_ahead
        batches = drawn_batches(records, steps, draw, charge=_later, key=key, workers=workers)
        try:
            for batch in batches:
                if self._reader is not me:
                    raise ValueError(
                        "Another loop over batches() was begun; go on with that one, not with two at once."
                    )
                if batch.draw.units is not None and self._pending is not None and len(self._pending.draw):
                    raise ValueError(
                        "The batch before this one wasn't given to step(), which must know whose records it sees; take "
                        "one batch, make its step, then take the next."
                    )
                try:
                    self.spending.charge(batch.step)
                except BudgetExceededError as refused:
                    warnings.warn(f"Stopped after {batch.step} of {self.plan.steps} steps. {refused}", stacklevel=2)
                    return
                self.steps_done = batch.step + 1
                self._pending, given = batch, [batch.data]
                del batch  # nothing here holds a batch while the next one is read
                yield given.pop()
            if self._reader is me and self.steps_done == self.plan.steps:
                self.spending.finish(self.steps_done)
        finally:
            # at the interpreter's end nothing can be given back; the block then counts in full
            if self._reader is me and not sys.is_finalizing():
                self.spending.close(self.steps_done)
                self._reader = None

    def step(self, losses: Callable[..., Tensor], *batch: Any) -> None:
        """One step on the batch that `batches` handed out, moved or transformed since at most, its rows in their order.

        `losses(*batch)` gives one loss per example and may be called on parts of the batch.
        """
        with self._alone():
            self._step(losses, batch)

    def _step(self, losses: Callable[..., Tensor], batch: Sequence[Any]) -> None:
        drawn = self.in_hand()
        on_leaves, leaves = self._prepared.ready(losses, batch, len(drawn.draw))
        self._trained.drop_gradients()
        self._watch.look(on_leaves, leaves, len(drawn.draw), again=isinstance(self.engine, Loop | Vmap | Projected))
        names, parameters = self._trained.look()
        plan, step = self.plan, drawn.step
        thresholds = plan.clip.thresholds(step, names, self.threshold)
        groups = plan.clip.groups(names)
        units = None if drawn.draw.units is None else torch.from_numpy(drawn.draw.units)
        stds = of_each(groups, plan.stds(step, names, self.threshold))
        coarsest = max(self._watch.roundoff, unit_roundoff(parameters))
        ahead: list[list[Tensor]] = []

        def meanwhile(sums: list[Tensor]) -> None:
            if self._draw_ahead is not None:
                self._draw_ahead()
            if self._noise_ahead():
                ahead[:] = sums, noisy_mean(sums)

        def noisy_mean(sums: list[Tensor]) -> list[Tensor]:
            own = isinstance(self.engine, Projected)  # its sums are nobody else's
            noisy = noise.add(self.key, step, sums, stds, in_place=own)
            torch._foreach_div_(noisy, plan.normaliser)
            return noisy

        def limits() -> tuple[float, ...]:
            # the engine, which has run when this is asked, may have met what can't be seen from outside
            compute = max(coarsest, BFLOAT16) if self._memory.half else coarsest
            margin = rounding_margin(plan.batch, compute) + (UNNOTICED if plan.projections is not None else 0.0)
            return tuple(threshold * (1 - margin) for threshold in thresholds)

        def compute(losses: Callable[..., Tensor]) -> ClippedSum:
            return clipped_sum(
                parameters,
                losses,
                leaves,
                groups=groups,
                weigh=Weights(plan.clip.weigh, limits),
                units=units,
                engine=engine_at(self.engine, self.key, step, parameters, self._watch.roundoff),
                microbatch=self.microbatch,
                filling=self._filling,
                memory=self._memory,
                meanwhile=meanwhile,
                random=self._randomness.used,
            )

        found = self._randomness.of_step(self.key, step, {p.device for p in parameters}, on_leaves, compute)
        self._pending = None  # from here on this step's noise is used up
        self.local = Local(found.losses, found.norms, limits(), self._noted(found.notes, names))
        mean = ahead[1] if ahead and ahead[0] is found.sums else noisy_mean(found.sums)
        self._trained.receive(mean, [std / plan.normaliser for std in stds])
        self._count(step, found.norms, thresholds)
        self.optimiser.step()
        self.follow(step)

    # For methods that make the steps in their own way (`hush.methods.mac`)

    def in_hand(self) -> Batch:
        """The batch that the next step is made on; refused where there is none, and in a fork of the process."""
        if self._pending is None:
            raise ValueError("A step needs a batch of its own; take one from batches() for every step.")
        self.spending.check_process()
        return self._pending

    def release(self, sums: Sequence[Tensor]) -> list[Tensor]:
        """Sums over the batch in hand, to which a unit adds at most the plan's one threshold in all, with its noise.

        Uses the batch up: a step's noise is used once.
        """
        with self._alone():
            drawn = self.in_hand()
            (std,) = self.plan.stds(drawn.step, self._trained.names, self.threshold)
            self._pending = None
            return noise.add(self.key, drawn.step, sums, [std] * len(sums))

    def follow(self, step: int) -> None:
        """What comes after the optimiser has moved: the scheduler's step and the average."""
        if self.scheduler is not None:
            self.scheduler.step()
        if self.average is not None:
            self.average.update(self.averages, list(self.model.parameters()), step)

    def _noise_ahead(self) -> bool:
        """Whether noise is asked for while a GPU still computes the sums: where that is possible and there is room."""
        return not (self.key.secure or isinstance(self.engine, Projected)) and self._trained.all_on_one_gpu()

    def _count(self, step: int, norms: Tensor, thresholds: Sequence[float]) -> None:
        """Released with the gradient: how many norms lie below the threshold, for a clipping that follows it."""
        if self.plan.count_std is not None:
            total = votes(norms, thresholds[0]).reshape(1)
            noisy = noise.add(self.key, step, [total], [self.plan.count_std], purpose="count noise")
            self.threshold = self.plan.clip.follow(self.threshold, noisy[0].item(), self.plan.batch)

    # Asking

    def spent(self) -> Spent:
        """What this run has charged so far, reserved steps included: `spent().epsilon(delta)`."""
        return self.spending.ledger.spent(self.spending.run)

    def finish(self) -> None:
        """End the run here for good; what it was admitted to and didn't use is free for other runs of the ledger."""
        self._reader = self._pending = None
        self.spending.finish(self.steps_done)

    @contextmanager
    def averaged(self) -> Iterator[nn.Module]:
        """The model with its averaged weights inside, its own again after: for evaluating or saving it."""
        if self.average is None:
            raise ValueError("No average is kept; give Private(average=Average()) to keep one.")
        weights = list(self.model.parameters())
        averaging.swap(self.averages, weights)
        try:
            yield self.model
        finally:
            averaging.swap(self.averages, weights)

    def report(self) -> str:
        """The plan, the source of randomness and what was spent, in words; `local.report()` has what steps met."""
        spent = f"Drawn: {self.steps_done:,} of {self.plan.steps:,} steps. Charged: {self.spent()}."
        if self.steps_done < self.plan.steps:
            spent += " If it stops here because of what was seen, quote the whole plan's promise."
        return "\n".join([str(self.plan), self.key.report(), spent])

    # Checkpoints

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Everything a run needs to go on.  SECRET: whoever has the checkpoint can subtract the noise."""
        from hush import snapshots

        snapshots.save(self, folder)

    @staticmethod
    def resume(
        folder: str | os.PathLike[str],
        model: nn.Module,
        optimiser: Optimizer,
        plan: Plan | None = None,
        *,
        ledger: Ledger | str | os.PathLike[str] | None = None,
        engine: Engine | None = None,
        microbatch: int | None = None,
        scheduler: LRScheduler | None = None,
    ) -> Private:
        """The run of a checkpoint, its state loaded into the given model, optimiser and scheduler.

        If nothing was charged since it was saved, it goes on to the same bits.  Otherwise what was charged stays
        charged, and it goes on under a fresh key: noise is never used twice.
        """
        from hush import snapshots

        return snapshots.resume(folder, model, optimiser, plan, ledger, engine, microbatch, scheduler)

    # Inside

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One step at a time: two threads would put the same noise on two sums."""
        if not self._busy.acquire(blocking=False):
            raise ValueError("Another thread is making this run's step; make one step after the other.")
        try:
            yield
        finally:
            self._busy.release()

    def _noted(self, notes: tuple[str, ...], names: list[str]) -> tuple[str, ...]:
        """What was noted so far, and what comes to it; mostly the same at every step."""
        if notes == self._said:
            return self.local.notes
        self._said = notes
        more = [named(note, names) for note in notes]
        if "compiled" not in notes and is_compiled(self.model):
            more.append("the model's compiled code was not used: it ran as written")
        return tuple(dict.fromkeys((*self.local.notes, *more)))


_FIXED = frozenset({"plan", "key", "engine", "microbatch", "spending"})


def _later(step: int) -> None:
    """Batches are drawn ahead; a step is charged when its batch is handed out, before anything is computed from it."""
