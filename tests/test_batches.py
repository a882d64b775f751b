"""Draws turned into data: the right records, honest empty batches, charges before draws, refusals by name."""

from __future__ import annotations

import itertools
import random
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, WeightedRandomSampler

from hush.batches import Batch, batches
from hush.keys import Key
from hush.sampling import Poisson
from hush.sources import Items, Tensors, source, without_rows
from hush.units import Draw, Users

KEY = Key.from_seed(40)
# Python warns of forks in processes with threads from 3.12 on, PyTorch of more workers than processors.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore:This DataLoader will create")

RECORDS = 30
X = torch.arange(RECORDS * 6, dtype=torch.float64).view(RECORDS, 2, 3)
Y = torch.arange(RECORDS) % 7


class Pairs(Dataset[Any]):
    """The same data, record by record; `noisy` adds random numbers as an augmentation would."""

    def __init__(self, noisy: bool = False) -> None:
        self.noisy = noisy

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        if not 0 <= i < RECORDS:
            raise IndexError(i)
        if self.noisy:
            return X[i] + torch.rand(()) + np.random.rand() + random.random(), int(Y[i])
        return X[i], int(Y[i])


def poisson(step: int) -> Draw:
    return Poisson().draw(KEY, step, RECORDS, batch=1.5, records=RECORDS)


def run(data: Any, steps: int = 12, workers: int = 0, collate: Any = None, **options: Any) -> list[Batch]:
    options = {"charge": lambda step: None, "key": KEY, "workers": workers} | options
    return list(batches(source(data, collate), range(steps), options.pop("draw", poisson), **options))


DATA: dict[str, Any] = {
    "tensors": (X, Y),
    "arrays": (X.numpy(), Y.numpy()),
    "mixed": (X, Y.numpy()),
    "TensorDataset": TensorDataset(X, Y),
    "data set": Pairs(),
    "list": [(X[i], int(Y[i])) for i in range(RECORDS)],
}


@pytest.mark.parametrize("data", DATA.values(), ids=DATA.keys())
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_hold_the_drawn_records_in_order_and_may_be_empty(data: Any, workers: int) -> None:
    seen = run(data, workers=workers)
    assert [batch.step for batch in seen] == list(range(12))
    assert any(len(batch.draw) == 0 for batch in seen)
    assert any(len(batch.draw) > 1 for batch in seen)
    for batch in seen:
        x, y = batch.data
        positions = torch.from_numpy(poisson(batch.step).indices)
        assert np.array_equal(batch.draw.indices, positions)
        assert torch.equal(x, X[positions])
        assert torch.equal(y, Y[positions])
        assert (x.shape[1:], x.dtype, y.dtype) == ((2, 3), torch.float64, torch.int64)


def test_a_subset_is_drawn_from_by_its_own_positions() -> None:
    subset = Subset(Pairs(), range(10, 20))
    (batch,) = run(subset, 1, draw=lambda step: Draw(np.array([0, 3])))
    assert torch.equal(batch.data[0], X[[10, 13]])


def test_a_single_tensor_gives_batches_of_one_column() -> None:
    (batch,) = run(X, 1, draw=lambda step: Draw(np.array([2])))
    (x,) = batch.data
    assert torch.equal(x, X[[2]])


def test_read_only_and_memory_mapped_arrays_work(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X.numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    frozen = Y.numpy().copy()
    frozen.flags.writeable = False
    for batch in run((mapped, frozen)):
        assert torch.equal(batch.data[0], X[torch.from_numpy(batch.draw.indices)])


def test_a_batch_does_not_share_memory_with_the_data() -> None:
    data = (X.clone(), Y.numpy().copy())
    (batch,) = run(data, 1, draw=lambda step: Draw(np.arange(3)))
    batch.data[0].zero_()
    batch.data[1].zero_()
    assert torch.equal(data[0], X)
    assert np.array_equal(data[1], Y.numpy())


def padded(items: list[tuple[Tensor, int]]) -> dict[str, Any]:
    assert items
    rows = torch.stack([x.flatten() for x, _ in items])
    return {"rows": rows, "names": [str(y) for _, y in items], "more": (rows.sum(1), [rows.bool()])}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("data", [Pairs(), (X, Y)], ids=["data set", "tensors"])
def test_a_collate_function_of_the_users_makes_the_batches_and_the_empty_ones(data: Any, workers: int) -> None:
    for batch in run(data, workers=workers, collate=padded):
        count = len(batch.draw)
        assert batch.data["rows"].shape == (count, 6)
        assert len(batch.data["names"]) == count
        assert batch.data["more"][0].shape == (count,)
        assert (batch.data["more"][1][0].shape, batch.data["more"][1][0].dtype) == ((count, 6), torch.bool)


def test_empty_batches_keep_the_shape_of_any_nesting() -> None:
    Named = namedtuple("Named", "a b")
    nested = OrderedDict(p=Named(torch.ones(3, 2), np.ones((3, 4))), q=["x", "y", "z"], r=(torch.ones(3),))
    empty = without_rows(nested)
    assert type(empty) is OrderedDict
    assert type(empty["p"]) is Named
    assert (empty["p"].a.shape, empty["p"].b.shape) == ((0, 2), (0, 4))
    assert (empty["q"], empty["r"][0].shape) == ([], (0,))


def test_a_batch_that_can_not_be_emptied_is_refused() -> None:
    with pytest.raises(ValueError, match="can't make an empty one of int"):
        without_rows((torch.ones(2), 3))
    with pytest.raises(ValueError, match="can't make an empty one of Tensor"):
        without_rows(torch.tensor(3.0))


def test_an_empty_data_set_of_tensors_still_has_shapes() -> None:
    (batch,) = run((X[:0], Y[:0]), 1, draw=lambda step: Draw(np.empty(0, dtype=np.int64)))
    assert [column.shape for column in batch.data] == [(0, 2, 3), (0,)]
    with pytest.raises(ValueError, match="without records"):
        run([], 1, draw=lambda step: Draw(np.empty(0, dtype=np.int64)))


def test_users_come_with_their_units() -> None:
    users = Users([f"user {i // 5}" for i in range(RECORDS)])
    (batch,) = run(Pairs(), 1, draw=lambda step: users.gather(np.array([1, 4]), KEY, step))
    assert torch.equal(batch.data[1], Y[[5, 6, 7, 8, 9, 20, 21, 22, 23, 24]])
    assert batch.draw.units is not None
    assert batch.draw.units.tolist() == [0] * 5 + [1] * 5


# Charges


@pytest.mark.parametrize(("data", "workers"), [((X, Y), 0), (Pairs(), 0), (Pairs(), 2)])
def test_each_step_is_charged_before_it_is_drawn(data: Any, workers: int) -> None:
    events: list[tuple[str, int]] = []

    def charge(step: int) -> None:
        events.append(("charge", step))

    def draw(step: int) -> Draw:
        events.append(("draw", step))
        return poisson(step)

    run(data, 9, workers, charge=charge, draw=draw)
    assert events == [(event, step) for step in range(9) for event in ("charge", "draw")]


@pytest.mark.parametrize(("data", "workers", "ahead"), [((X, Y), 0, 0), (Pairs(), 0, 0), (Pairs(), 1, 3)])
def test_nothing_is_charged_or_drawn_further_ahead_than_said(data: Any, workers: int, ahead: int) -> None:
    charged: list[int] = []
    stream = batches(
        source(data), itertools.count(), poisson, charge=charged.append, key=KEY, workers=workers, prefetch=3
    )
    assert charged == []
    for _ in range(4):
        batch = next(stream)
        assert max(charged) <= batch.step + ahead
    stream.close()  # type: ignore[attr-defined]


class Spent(Exception):
    """The ledger's refusal."""


@pytest.mark.parametrize(("data", "workers"), [((X, Y), 0), (Pairs(), 0), (Pairs(), 2)])
def test_a_refused_step_is_not_drawn_and_those_before_it_are_all_handed_out(data: Any, workers: int) -> None:
    drawn: list[int] = []

    def charge(step: int) -> None:
        if step == 5:
            raise Spent

    def draw(step: int) -> Draw:
        drawn.append(step)
        return poisson(step)

    stream = batches(source(data), range(12), draw, charge=charge, key=KEY, workers=workers)
    handed = []
    with pytest.raises(Spent):  # noqa: PT012
        for batch in stream:
            handed.append(batch.step)  # noqa: PERF401
    assert handed == drawn == list(range(5))


# Randomness of the data set's own


def test_augmentation_does_not_depend_on_workers_or_on_the_steps_before() -> None:
    reference = run(Pairs(noisy=True), 8)
    by_workers = run(Pairs(noisy=True), 8, workers=2)
    resumed = batches(source(Pairs(noisy=True)), range(5, 8), poisson, charge=lambda step: None, key=KEY)
    for ours, theirs in [*zip(reference, by_workers, strict=True), *zip(reference[5:], resumed, strict=True)]:
        assert torch.equal(ours.data[0], theirs.data[0])
    assert len({float(b.data[0][0, 0, 0] % 1) for b in reference if len(b.draw)}) > 3


@pytest.mark.parametrize("workers", [0, 1])
def test_loading_leaves_the_global_generators_alone(workers: int) -> None:
    def states() -> tuple[Any, ...]:
        return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()

    before = states()
    run(Pairs(noisy=True), 6, workers)
    assert states() == before


# Errors


class Failing(Pairs):
    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        raise OSError("disk")


@pytest.mark.parametrize("workers", [0, 1])
def test_errors_of_the_data_set_are_raised(workers: int) -> None:
    with pytest.raises(OSError, match="disk"):
        run(Failing(), workers=workers)


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        return itertools.count()


class Frame:
    """Indexed by column, like the data frames of pandas."""

    iloc = None

    def __len__(self) -> int:
        return 3

    def __getitem__(self, column: str) -> list[int]:
        return [1, 2, 3]


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "DataLoader": (lambda: DataLoader(Pairs(), batch_size=4), r"DataLoader draws its own batches.*loader\.dataset"),
    "WeightedRandomSampler": (lambda: WeightedRandomSampler([0.5, 0.5], 2), "WeightedRandomSampler chooses records"),
    "IterableDataset": (Endless, "Endless can only be read in its own order"),
    "iterator": (lambda: iter([1, 2]), "list_iterator can only be read in its own order"),
    "dictionary": (lambda: {"x": X}, "dict has no records numbered"),
    "data frame": (Frame, "Frame has no records numbered"),
    "function": (lambda: len, "builtin_function_or_method has no length"),
    "tuple of lists": (lambda: ([1, 2], X), r"got \(list, Tensor\)"),
    "empty tuple": (tuple, "holds tensors or NumPy arrays"),
    "different lengths": (lambda: (X, Y[:-1]), r"as many records each, got \[29, 30\]"),
    "a number": (lambda: (X, torch.tensor(3)), "one is a number"),
    "strings": (lambda: (np.array(["a", "b"]),), "no tensors of NumPy's <U1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_leave_the_drawing_to_hush_is_refused_by_name(name: str) -> None:
    build, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        source(build())


@pytest.mark.parametrize("workers", [-1, 1.5, True, "2"])
def test_the_number_of_workers_is_a_whole_number(workers: Any) -> None:
    with pytest.raises(ValueError, match="number of workers"):
        run(Pairs(), workers=workers)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_tensors_on_a_gpu_are_taken_there() -> None:
    for batch in run((X.cuda(), Y)):
        x, y = batch.data
        assert (x.device.type, y.device.type) == ("cuda", "cpu")
        assert torch.equal(x.cpu(), X[torch.from_numpy(batch.draw.indices)])


def test_the_fast_path_is_for_plain_tensors_only() -> None:
    class Augmented(TensorDataset):
        def __getitem__(self, index: Any) -> Any:
            return tuple(column + 1 for column in super().__getitem__(index))

    assert isinstance(source((X, Y)), Tensors)
    assert isinstance(source(TensorDataset(X, Y)), Tensors)
    assert isinstance(source(Augmented(X, Y)), Items)
    (batch,) = run(Augmented(X, Y), 1, draw=lambda step: Draw(np.array([4])))
    assert torch.equal(batch.data[0], X[[4]] + 1)
