"""Random numbers that losses and transformations draw belong to the run's key, not to a seed that users publish."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hush
from hush.keys import Key
from hush.randomness import Randomness, seeded

SECRET = Key.from_seed(1).derive("test")
CPU = [torch.device("cpu")]


def draws() -> tuple[Any, ...]:
    return torch.rand(5).tolist(), torch.randn(5).tolist(), np.random.rand(5).tolist(), random.random()


class TestSeeded:
    def test_the_same_secret_gives_the_same_numbers_and_others_others(self) -> None:
        found = []
        for secret in (SECRET, SECRET, b"another"):
            with seeded(secret):
                found.append(draws())
        assert found[0] == found[1]
        assert all(a != b for a, b in zip(found[0], found[2], strict=True))

    def test_the_users_generators_go_on_where_they_were(self) -> None:
        torch.manual_seed(0), np.random.seed(0), random.seed(0)
        torch.randn(3)  # a normal number may be left over
        undisturbed = draws()
        torch.manual_seed(0), np.random.seed(0), random.seed(0)
        torch.randn(3)
        with seeded(SECRET):
            draws()
        assert draws() == undisturbed

    def test_they_are_put_back_after_an_error_too(self) -> None:
        before = torch.get_rng_state()
        with pytest.raises(IndexError), seeded(SECRET):
            torch.rand(1)[7]
        assert torch.equal(before, torch.get_rng_state())

    def test_the_whole_state_of_pytorchs_generator_comes_from_the_secret(self) -> None:
        with seeded(SECRET):
            state = torch.get_rng_state().numpy()[24 : 24 + 8 * 624].view(np.uint64).astype(np.uint32)
            found = torch.empty(1000, dtype=torch.float32).uniform_()
        assert len(set(state.tolist())) > 600
        # a uniform float takes the lower 24 bits of one word; which words are taken is PyTorch's affair
        fractions = {int(x) for x in (found.double() * 2**24).round().tolist()}
        assert fractions <= {int(word) & 0xFFFFFF for word in twister_words(state, 4000)}


def twister_words(state: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    twister = np.random.MT19937()
    own: Any = twister.state
    own["state"] = {"key": state, "pos": 624}
    twister.state = own
    return twister.random_raw(count)


def called(losses: Callable[[], Any]) -> Any:
    return losses()


class TestOfStep:
    def test_steps_draw_different_numbers_whatever_the_users_seed(self) -> None:
        found = []
        for step in (0, 1, 0):
            torch.manual_seed(0)
            found.append(Randomness().of_step(Key.from_seed(2), step, CPU, draws, called))
        assert found[0] == found[2] != found[1]

    @pytest.mark.parametrize("generator", [np.random.rand, random.random])
    def test_numpys_and_pythons_generators_are_set_from_the_step_on_that_uses_them(
        self, generator: Callable[[], float]
    ) -> None:
        randomness, used = Randomness(), []
        for step in range(40):
            np.random.seed(0), random.seed(0)

            def compute(step: int = step) -> float:
                return generator() if step in (0, *range(7, 12), 30) else -step

            used.append(randomness.of_step(Key.from_seed(2), step, CPU, compute, called))
        assert len(set(used)) == 40
        with seeded(Key.from_seed(2).derive("losses", 30)):
            assert used[30] == generator()

    def test_what_is_computed_once_more_begins_from_the_same_numbers(self) -> None:
        def compute() -> tuple[float, float]:
            return float(torch.rand(())), np.random.rand()

        randomness = Randomness()
        randomness.of_step(Key.from_seed(2), 0, CPU, lambda: None, called)
        late = randomness.of_step(Key.from_seed(2), 1, CPU, compute, called)
        assert late == Randomness().of_step(Key.from_seed(2), 1, CPU, compute, called)

    def test_a_loss_that_is_called_again_after_replays_draws_the_steps_own_numbers(self) -> None:
        randomness = Randomness()
        for step in range(3):  # programs replay what they know of a loss function without calling it
            randomness.of_step(Key.from_seed(2), step, CPU, draws, lambda losses: None)
        late = randomness.of_step(Key.from_seed(2), 3, CPU, draws, called)
        assert late == Randomness().of_step(Key.from_seed(2), 3, CPU, draws, called)


class TestTraining:
    def sums(self, x: Tensor, y: Tensor, *, key: int, users_seed: int, engine: Any = None) -> list[Tensor]:
        torch.manual_seed(7)
        model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 3))
        plan = hush.Plan(
            records=len(x), batch=len(x), steps=3, clip=1e3, noise_multiplier=1e-9, sampling=hush.Shuffled()
        )
        private = hush.Private(model, torch.optim.SGD(model.parameters(), lr=0.1), plan, key=Key.from_seed(key))
        torch.manual_seed(users_seed)
        for part in private.batches((x, y)):
            private.step(lambda x, y: nn.functional.cross_entropy(model(x), y, reduction="none"), *part)
        return [p.detach().clone() for p in model.parameters()]

    def test_masks_come_from_the_key_and_not_from_the_users_seed(self) -> None:
        x, y = torch.randn(24, 6, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 3
        one, other = (self.sums(x, y, key=1, users_seed=seed) for seed in (0, 1))
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
        changed = self.sums(x, y, key=2, users_seed=0)
        assert any(float((a - b).abs().max()) > 1e-3 for a, b in zip(one, changed, strict=True))
