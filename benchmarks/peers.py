"""One private training step with Opacus, in each of its ways of computing per-example gradients.

Set up as its users do, by `PrivacyEngine.make_private`, so that clipping, noise and its accountant's bookkeeping are in
the step.  Poisson sampling is asked for, as the promise needs it, and then bypassed: every method gets the same batch.

Opacus is pure Python: `pip install --no-deps --target FOLDER opacus opt_einsum` and FOLDER on the PYTHONPATH are enough
beside an installed PyTorch, NumPy and SciPy.
"""

from __future__ import annotations

import functools
import warnings

import torch
from measure import Step
from models import GPT2, Row, TextLSTM
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MODES = ("hooks", "ghost", "functorch", "ew")


def opacus_model(mode: str, row: Row) -> tuple[nn.Module, str]:
    """The row's model, changed where Opacus can't train it, and what was changed in words."""
    if row.model is TextLSTM:  # the fused LSTM is refused; Opacus brings one made of linear layers
        from opacus.layers import DPLSTM

        return TextLSTM(DPLSTM), "its own LSTM"
    if row.model is GPT2 and mode == "ghost":
        return GPT2(tied=False), "untied: refuses tied weights"
    return row.model(), ""


def opacus_step(mode: str, row: Row, device: torch.device) -> Step:
    """One step: zero the gradients, forward, backward, clip, add noise, update."""
    from opacus import PrivacyEngine

    warnings.filterwarnings("ignore", module="opacus")
    warnings.filterwarnings("ignore", message="Full backward hook is firing")
    model, note = opacus_model(mode, row)
    model = model.to(device)
    inputs, targets = row.data(device)
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=row.batch)
    make_private = functools.partial(
        PrivacyEngine().make_private,
        optimizer=row.optimiser(model.parameters()),
        criterion=nn.CrossEntropyLoss(),
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        grad_sample_mode=mode,
    )
    if mode != "ghost":
        private, optimiser, _ = make_private(module=model)
        losses = row.losses(private, device)

        def step() -> None:
            optimiser.zero_grad()
            losses(inputs, targets).mean().backward()
            optimiser.step()

        return Step(step, lambda: note)

    private, optimiser, criterion, _ = make_private(module=model)

    def ghost_step() -> None:
        optimiser.zero_grad()
        with row.autocast(device):
            scores = private(inputs)
            if row.every_token:
                loss = criterion(scores.flatten(0, 1), targets.flatten(), shape=scores.shape)
            else:
                loss = criterion(scores, targets)
        loss.backward()
        optimiser.step()

    return Step(ghost_step, lambda: note)
