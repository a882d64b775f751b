"""The DP-MAC step (Harder et al. 2018, Algorithm 1), made in a `Private` run in place of its own.

    plan = hush.Plan(records=60_000, batch=1000, epochs=10, epsilon=2.0, delta=1e-5, clip=Expansion(0.15))
    private = hush.Private(model, torch.optim.Adam(model.parameters(), lr=0.01), plan, ledger="run.ledger")
    mac = MAC(private, CrossEntropy())
    for x, y in private.batches(train_set):
        mac.step(x, y)

Sample, noise, ledger, plan, checkpoints, averages and schedulers are the run's.  DP-MAC has no state but thresholds
that were learned, and they are kept in the run's checkpoints, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hush.accounting.checks import check_whole
from hush.batches import batches as drawn_batches
from hush.gradients import Memory
from hush.gradients.company import refuse_company
from hush.gradients.placing import now_and_then
from hush.keys import Key
from hush.local import Local
from hush.methods.expansion import Expansion
from hush.methods.mac.activations import Activation
from hush.methods.mac.coefficients import Records, at_present, bounds, clipped_weights, joined, pieces
from hush.methods.mac.coordinates import ZSteps, coordinates, projected
from hush.methods.mac.network import Layer, network_of
from hush.methods.mac.objectives import Objective
from hush.methods.mac.quadratic import Quadratic, Solver, semidefinite
from hush.methods.mac.thresholds import Histogram
from hush.methods.sums import margin, unpack
from hush.optim import AdamBC
from hush.sources import source
from hush.training import Private

_SLACK = 1e-6
"""How much smaller than its bound a record's share is kept: more than what rounding in float64 carries over from one
record's coordinates to another's."""


class MAC:
    """Makes the steps of a private run by the method of auxiliary coordinates.

    private      the run; its plan's clip is an `Expansion`, its model sequential: linear layers and activations, with
                 what isn't trained (a projection, a flattening) before them
    output       what the last layer is fitted by: `SquaredError()`, `CrossEntropy()` or `BinaryCrossEntropy()`
    z_steps      how coordinates are moved
    w_steps      how many steps the run's optimiser makes on a perturbed objective
    solver       `ConjugateGradient()` or `LBFGS()`: the optimiser's one step is then along the way to the perturbed
                 objective's minimum, and SGD with a learning rate of one goes all of it; needs the curvature
    activations  bounds for activations that hush has none for, by the type of their module
    """

    def __init__(
        self,
        private: Private,
        output: Objective,
        *,
        z_steps: ZSteps | None = None,
        w_steps: int = 1,
        solver: Solver | None = None,
        activations: Mapping[type[nn.Module], Activation] | None = None,
    ) -> None:
        plan = private.plan
        if not isinstance(plan.clip, Expansion):
            raise ValueError(f"DP-MAC clips the parts of an expansion; plan clip=Expansion(...), not {plan.clip}.")
        if plan.unit != "record":
            raise ValueError(f"DP-MAC clips record by record; it can't protect a {plan.unit} with several.")
        if plan.grouped is not None:
            raise ValueError("DP-MAC clips record by record; leave grouped out of the plan.")
        check_whole("The number of W steps", w_steps)
        if solver is not None and "curvature" not in plan.clip.parts:
            raise ValueError("A first-order expansion has no minimum; release the curvature, or leave the solver out.")
        self.private, self.expansion = private, plan.clip
        self.network = network_of(private.model, output, tuple((activations or {}).items()))
        self.z_steps = z_steps if z_steps is not None else ZSteps()
        self.w_steps, self.solver = w_steps, solver
        self.value: tuple[float, ...] | None = None
        """The noisy mean objective of every layer at the last step, where the expansion releases it: public."""
        trained = {id(p) for layer in self.layers for p in layer.linear.parameters()}
        given = (p for group in private.optimiser.param_groups for p in group["params"] if p.requires_grad)
        if {id(p) for p in given} != trained:
            raise ValueError(
                "The optimiser must have exactly the parameters of the trained linear layers; give it those."
            )
        bounds(self.layers, self.expansion, None)  # refuses what can't be bounded before anything is charged
        self._memory = Memory()

    @property
    def layers(self) -> tuple[Layer, ...]:
        return self.network.layers

    @property
    def thresholds(self) -> tuple[float, ...]:
        """How much one record may now add to each part, layer by layer: the paper's sensitivities; public."""
        return tuple(bound for bound, _ in self._bounds())

    # A step

    def step(self, x: Tensor, y: Tensor) -> None:
        """One step on the batch that the run handed out: Z steps, one joint release, a W step for every layer."""
        private = self.private
        drawn = private.in_hand()
        if not len(x) == len(y) == len(drawn.draw):
            raise ValueError(
                f"The batch has {len(x)} records and {len(y)} targets, and {len(drawn.draw)} were drawn; give step the "
                "batch as it came."
            )
        records = self.records(x, y)
        limits = self._bounds()
        parts, norms = self._sums(records, limits)
        released = self._released(parts, limits)
        private.local = Local(records[-1].value, norms, tuple(bound for bound, _ in limits))
        self._update(drawn.step, released, [bound for bound, _ in limits])

    @torch.no_grad()
    def records(self, x: Tensor, y: Tensor) -> list[Records]:
        """For every layer, the records with their coordinates after the Z steps: PRIVATE, never released."""
        self._refuse_mixing(x)
        last = self.layers[-1]
        wanted = last.objective.prepared(y, last.width)
        found = [self._piece(a, b) for a, b in zip(pieces(x), pieces(wanted), strict=True)]
        return [joined(parts, len(x)) for parts in zip(*found, strict=True)]

    def _piece(self, x: Tensor, wanted: Tensor) -> list[Records]:
        layers, expansion = self.layers, self.expansion
        start = projected(self.network.start(x), expansion.inputs)
        if expansion.targets is not None:
            wanted = projected(wanted, expansion.targets)
        zs = coordinates(layers, start, wanted, self.z_steps, expansion.coordinates)
        inputs, targets = [start, *zs], [*zs, wanted]
        return [at_present(layer, inputs[k], targets[k]) for k, layer in enumerate(layers)]

    def _refuse_mixing(self, x: Tensor) -> None:
        """What comes before the layers is the user's code: ask now and then whether it keeps records apart."""
        network = self.network
        if len(network.before) == 0 or len(x) < 2 or not now_and_then("company", self._memory):
            return

        def summary(x: Tensor) -> Tensor:
            rows = network.start(x)
            along: Tensor = rows @ torch.arange(1, rows.shape[1] + 1, dtype=rows.dtype, device=rows.device).cos()
            return along

        refuse_company(summary, (x,), summary(x))

    def _bounds(self) -> list[tuple[float, bool]]:
        learned: Any = self.private.threshold
        return bounds(self.layers, self.expansion, learned)

    def _sums(self, records: Sequence[Records], limits: Sequence[tuple[float, bool]]) -> tuple[list[Tensor], Tensor]:
        """Every part's clipped sum, divided by its bound and the root of their number: a record adds at most 1."""
        room = 1 - _SLACK - margin(self.private.plan.batch)
        scale = math.sqrt(len(limits))
        names = self.expansion.parts
        norms = torch.stack([layer.norms(part) for layer in records for part in names], dim=1)
        finite = norms.isfinite().all(dim=1)
        parts = []
        for i, (bound, analytic) in enumerate(limits):
            weights = clipped_weights(norms[:, i], bound, analytic).where(finite, norms.new_zeros(()))
            parts.append(records[i // len(names)].total(names[i % len(names)], room * weights) / (scale * bound))
        return parts, norms

    def _released(self, parts: list[Tensor], limits: Sequence[tuple[float, bool]]) -> list[Tensor]:
        """All parts with one noise, each scaled back: the paper's joint release."""
        noisy = self.private.release(parts)
        scale = math.sqrt(len(limits)) / self.private.plan.normaliser
        return [total * (scale * bound) for total, (bound, _) in zip(noisy, limits, strict=True)]

    # Post-processing

    def _update(self, step: int, released: Sequence[Tensor], limits: Sequence[float]) -> None:
        private, names = self.private, self.expansion.parts
        (std,) = private.plan.stds(step, ())
        spreads = [std * math.sqrt(len(released)) * bound / private.plan.normaliser for bound in limits]
        quadratics, values = [], []
        for k in range(len(self.layers)):
            own = dict(zip(names, released[k * len(names) :], strict=False))
            spread = dict(zip(names, spreads[k * len(names) :], strict=False))
            quadratics.append(_quadratic(own["gradient"], own.get("curvature"), spread.get("curvature", 0.0)))
            values.append(own.get("value"))
        self.value = tuple(float(value) for value in values if value is not None) or None
        if isinstance(private.optimiser, AdamBC) and self.solver is None:
            each: dict[Tensor, float] = {
                p: spreads[k * len(names)] ** 2
                for k, layer in enumerate(self.layers)
                for p in layer.linear.parameters()
            }
            private.optimiser.expect_noise(each)
        starts = [layer.weights() for layer in self.layers]
        for _ in range(1 if self.solver is not None else self.w_steps):
            for layer, quadratic, start in zip(self.layers, quadratics, starts, strict=True):
                towards = quadratic.slope(layer.weights() - start) if self.solver is None else -self.solver(quadratic)
                _set_gradient(layer.linear, towards)
            private.optimiser.step()
        private.follow(step)

    # Thresholds

    def learn(self, histogram: Histogram, data: Any) -> tuple[float, ...]:
        """Release how large the records' parts are, and clip them from here on at the histogram's quantile.

        The plan has `beside=histogram.mechanism`; it is charged before the sample is drawn.
        """
        private = self.private
        if any(analytic for _, analytic in self._bounds()):
            raise ValueError("Bounds by analysis aren't learned; give thresholds to start from.")
        # a key of its own, so that no step's coins or noise are used a second time
        seed = None if private.key.seed is None else private.key.seed64("histogram", private.steps_done)
        key = Key.fresh(private.key.secure) if seed is None else Key.from_seed(seed, private.key.secure)
        held = source(data, None)
        (batch,) = drawn_batches(
            held,
            [0],
            lambda step: histogram.draw(key, held.records),
            charge=lambda step: private.spending.charge_beside(histogram.mechanism),
            key=key,
        )
        x, y = batch.data
        norms = [layer.norms(part) for layer in self.records(x, y) for part in self.expansion.parts]
        found = histogram.quantiles(key, torch.stack(norms, dim=1))
        private.threshold = found  # type: ignore[assignment]  # a clipping's state: public, kept in checkpoints
        return found


def _quadratic(gradient: Tensor, packed: Tensor | None, std: float) -> Quadratic:
    if packed is None:
        return Quadratic(gradient, None)
    size = gradient.shape[1]
    return Quadratic(gradient, semidefinite(unpack(packed, size)), std * math.sqrt(2 * size))


def _set_gradient(linear: nn.Linear, towards: Tensor) -> None:
    if linear.bias is not None:
        linear.bias.grad = towards[:, -1].to(linear.bias.dtype)
        towards = towards[:, :-1]
    linear.weight.grad = towards.to(linear.weight.dtype)
