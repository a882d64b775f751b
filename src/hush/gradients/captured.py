"""The ghost engine as one program: traced once, compiled, and on a GPU replayed as a CUDA graph.

Norms and factors, the weights, and the weighted sums are traced into one flat graph of tensor operations, with the
backward pass inside, so that the compiler can fuse across all of it. What changes from step to step (the batch, how
much of it is padding, the thresholds) are its inputs. A program has one batch size, its *capacity*: smaller batches
are padded with copies of their first example that get weight zero (on a GPU by the program itself: what was there
before is never read), larger ones go through in several rounds. Nothing is ever left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from hush.gradients import ghost
from hush.gradients.engines import ClippedSum, Memory, Task, Weights, count, pick
from hush.gradients.filling import up_to
from hush.precision import tf32_in_convolutions, tf32_in_products
from hush.randomness import drawn_in_python, unmoved

Run = Callable[[Sequence[Tensor], int | Tensor, Sequence[float]], list[Tensor]]
"""(the batch's tensors, how many of them count, thresholds) to [norms, losses, whether a norm isn't finite, sums]

The norms and losses of what is padding are in it, too.  Which examples count may be said of each: those whose number is
below their entry of a tensor.
"""


class NotCapturable(Exception):
    """The computation can't be traced or captured; it runs as written.  Tried again at the 2nd, 4th, 8th, ... call."""

    calls = 1

    def due(self) -> bool:
        """Counts a call; whether it is time to try again: a parameter may only have had no gradient yet."""
        self.calls += 1
        return self.calls & (self.calls - 1) == 0 and self.calls <= _LAST_TRY


_LAST_TRY = 64
_LARGE = 1 << 30  # bytes; less is nothing to save
_MORE_THAN_PLAIN = 1.5  # times what an ordinary step takes
_FEWEST = 8  # examples in a part


@dataclass(frozen=True)
class Program:
    """The clipped sum of up to `capacity` examples."""

    capacity: int
    run: Run
    notes: tuple[str, ...]
    held: int = 0
    """Bytes of a GPU's memory that a captured graph keeps for itself."""


def captured_sum(task: Task, memory: Memory, capacity: int, compile: bool) -> ClippedSum:
    """The clipped sum by the program for this loss function, built at the first call."""
    parameters, losses, batch, weigh = task.parameters, task.losses, task.batch, task.weigh
    n = count(batch)
    weights = weigh if isinstance(weigh, Weights) else Weights(lambda norms, _: weigh(norms), lambda: ())
    owner = getattr(weights.rule, "__self__", weights.rule) if weights is weigh else weigh
    # a program reads the parameters where they were: others, moved or converted ones, need another
    where = tuple((id(p), p.data_ptr(), p.dtype) for p in parameters)
    shapes = tuple((tuple(x.shape[1:]), x.dtype, x.device) if isinstance(x, Tensor) else x for x in batch)
    switches = tf32_in_products(), tf32_in_convolutions()
    key = (id(losses), id(owner), shapes, where, tuple(map(tuple, task.groups)), switches)
    program = memory.programs.get(key)
    if program is None or (isinstance(program, NotCapturable) and program.due()):
        sample = tuple(_padded(x[:capacity], capacity) if isinstance(x, Tensor) else x for x in batch)
        with unmoved({p.device for p in parameters}):
            built = _built(replace(task, batch=sample), weights, memory, compile)
        if isinstance(program, NotCapturable) and isinstance(built, NotCapturable):
            built.calls = program.calls
        program = memory.programs[key] = built
        memory.kept.append((losses, owner, tuple(parameters)))  # their ids stay their own
    if isinstance(program, NotCapturable):
        raise program
    limits, capacity = tuple(weights.limits()), program.capacity
    tensors = [x for x in batch if isinstance(x, Tensor)]
    if n <= capacity:
        norms, values, spoiled, *sums = program.run(*_counted(task, tensors, 0, capacity), limits)
        return ClippedSum(sums, norms[:n].clone(), values[:n].clone(), program.notes, spoiled)
    total: list[Tensor] = []
    seen: list[tuple[Tensor, Tensor, Tensor]] = []
    for start in range(0, n, capacity):
        size = min(capacity, n - start)
        norms, values, spoiled, *sums = program.run(*_counted(task, tensors, start, capacity), limits)
        total = [a + b for a, b in zip(total, sums, strict=True)] if total else [x.clone() for x in sums]
        seen.append((norms[:size].clone(), values[:size].clone(), spoiled.clone().reshape(1)))
    norms, values, spoiled = (torch.cat(column) for column in zip(*seen, strict=True))
    return ClippedSum(total, norms, values, program.notes, spoiled.any())


def _counted(task: Task, tensors: list[Tensor], start: int, capacity: int) -> tuple[list[Tensor], int | Tensor]:
    """The examples of a round, and how many they are; or which of them count, where some are left out."""
    piece = tensors if tensors[0].shape[0] <= capacity else [x[start : start + capacity] for x in tensors]
    size = piece[0].shape[0]
    if task.left_out is None:
        return piece, size
    assert task.spare is not None
    spare = [x for x in task.spare if isinstance(x, Tensor)]
    below = torch.zeros(capacity, dtype=torch.long, device=piece[0].device)
    below[:size] = torch.where(task.left_out[start : start + size], 0, size)
    return list(up_to(capacity, piece, spare)), below


def _built(*arguments: Any) -> Program | NotCapturable:
    try:
        return build(*arguments)
    except NotCapturable as reason:
        return reason
    except Exception as error:  # tracing is a large thing, and whatever stops it, training can go on without
        return NotCapturable(_first_line(error))


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def build(task: Task, weigh: Weights, memory: Memory, compile: bool) -> Program:
    """The program for batches of this size, or for parts of them where all at once would take too much memory."""
    program = _build(task, weigh, memory, compile)
    while program.held > _LARGE and program.held > _MORE_THAN_PLAIN * _ordinary(task):
        half = -(-program.capacity // 2)
        if half < _FEWEST:
            break
        del program  # and what it holds
        program = _build(replace(task, batch=pick(task.batch, slice(0, half))), weigh, memory, compile)
        program = replace(program, notes=(*program.notes, f"in parts of {half} examples, to save memory"))
    return program


def _ordinary(task: Task) -> int:
    """Bytes of a GPU's memory that an ordinary step's gradients take at most; PyTorch's peak stays what it was."""
    highest = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.enable_grad():
        torch.autograd.grad(task.losses(*task.batch).sum(), list(task.parameters), allow_unused=True)
    most = torch.cuda.max_memory_allocated() - before
    torch.cuda.empty_cache()
    if highest > torch.cuda.max_memory_allocated():
        with suppress(torch.OutOfMemoryError):
            torch.empty(highest - torch.cuda.memory_allocated(), dtype=torch.uint8, device="cuda")
    return most


def _build(task: Task, weigh: Weights, memory: Memory, compile: bool) -> Program:
    """Trace the computation on a batch of the program's size, compile it, and capture it on a GPU."""
    batch = task.batch
    capacity = count(batch)
    is_tensor = [isinstance(x, Tensor) for x in batch]
    inputs = [x for x in batch if isinstance(x, Tensor)]

    def whole(size: Tensor, limits: Tensor, *tensors: Tensor) -> list[Tensor]:
        number = torch.arange(capacity, device=size.device)
        absent = (number >= size) & (size > 0)  # a zero says that someone is there who doesn't count
        rest = iter(tensors)
        full = [_without(absent, next(rest)) if flag else x for flag, x in zip(is_tensor, batch, strict=True)]
        found = ghost.prepare(replace(task, batch=full), memory)
        if any(note.startswith("parameter ") for note in found.notes):
            raise NotCapturable("some parameters take a slower path")
        if not found.settled:
            raise NotCapturable("examples may change places, in another way with other data")
        with torch.no_grad():
            weights = torch.where((number < size)[:, None], weigh.rule(found.norms, limits), 0.0)
            sums = ghost.finish(task, found.factors, weights)
            return [found.norms, found.values, ~found.norms.isfinite().all(), *sums]

    numbers = _numbers(capacity, capacity, [1.0] * len(task.groups), inputs[0])
    begun = drawn_in_python()
    dtype = whole(*numbers, *inputs)[0].dtype  # learns the layouts, too
    if drawn_in_python() != begun:
        raise NotCapturable("random numbers of NumPy's or Python's would be the same at every step")
    numbers = _numbers(capacity, capacity, weigh.limits(), inputs[0], dtype)
    notes = ["ghost"]
    from torch._dynamo import config as dynamo  # here, since it takes a second to import

    # A model that the user compiled is traced as written, and compiled with everything around it.
    with torch.enable_grad(), dynamo.patch(error_on_nested_fx_trace=False):
        traced = _traced(whole, *numbers, *inputs)
    run: Callable[..., list[Tensor]] = traced
    if compile:
        try:
            run = torch.compile(traced, fullgraph=True, dynamic=False)
            with torch.no_grad():
                run(*numbers, *inputs)
            notes.append("compiled")
        except Exception as error:  # the compiler is a large thing, and whatever stops it, the graph can go on without
            run = traced
            notes.append(f"not compiled: {_first_line(error)}")
    if not inputs[0].is_cuda:
        return Program(capacity, _plain(run, capacity, dtype), tuple(notes))
    replay, held = _graph(run, numbers, inputs)
    return Program(capacity, replay, (*notes, "captured in a CUDA graph"), held)


def _traced(computation: Callable[..., list[Tensor]], *inputs: Tensor) -> Callable[..., list[Tensor]]:
    """The computation's operations, found without computing anything where that is possible: it saves memory."""
    try:
        return make_fx(computation, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)
    except Exception:  # it asks for values, such as whether any is finite
        return make_fx(computation)(*inputs)


def _numbers(
    capacity: int, size: int, limits: Sequence[float], beside: Tensor, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """What a program is told of a step beside its batch, as tensors."""
    sizes = torch.full((capacity,), size, device=beside.device)
    return sizes, torch.tensor(list(limits), dtype=dtype, device=beside.device)


def _plain(run: Callable[..., list[Tensor]], capacity: int, dtype: torch.dtype) -> Run:
    """The program as it is."""

    def padded(tensors: Sequence[Tensor], counted: int | Tensor, limits: Sequence[float]) -> list[Tensor]:
        sizes, thresholds = _numbers(capacity, len(tensors[0]), limits, tensors[0], dtype)
        sizes = counted if isinstance(counted, Tensor) else sizes
        with torch.no_grad():
            return list(run(sizes, thresholds, *(_padded(x, capacity) for x in tensors)))

    return padded


@torch.no_grad()
def _graph(
    run: Callable[..., list[Tensor]], numbers: tuple[Tensor, Tensor], inputs: Sequence[Tensor]
) -> tuple[Run, int]:
    """The program replayed as a CUDA graph, and the bytes it keeps for itself.

    It always reads in the same places and writes in the same ones.
    """
    size_now, limits_now = numbers
    static = [x.clone() for x in inputs]

    def captured(room: int) -> tuple[torch.cuda.CUDAGraph, list[Tensor], int]:
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()  # the graph gets its own, and what is left is nobody's
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            # one piece of memory, let go at once, that what follows is cut from: many would lie half empty
            torch.empty(room, dtype=torch.uint8, device=static[0].device)
            outputs = list(run(*numbers, *static))
        torch.cuda.synchronize()  # else the first replay may begin before the graph's random numbers have their seed
        torch._C._cuda_clearCublasWorkspaces()  # so that nobody else writes into the graph's
        return graph, outputs, torch.cuda.memory_reserved() - before

    run(*numbers, *static)  # makes everything ready
    most = captured(0)[2]
    room = min((0, *(most * k // 16 for k in range(8, 16))), key=lambda room: captured(room)[2])
    graph, outputs, own = captured(room)
    capacity = static[0].shape[0]
    told: list[Any] = [capacity, tuple(limits_now.tolist())]

    def replay(tensors: Sequence[Tensor], counted: int | Tensor, limits: Sequence[float]) -> list[Tensor]:
        size = tensors[0].shape[0]
        for held, new in zip(static, tensors, strict=True):
            (held if size == capacity else held[:size]).copy_(new.detach())
        if isinstance(counted, Tensor):
            told[0] = None
            size_now.copy_(counted)
        elif counted != told[0]:
            told[0] = counted
            size_now.fill_(counted)
        if limits != told[1]:
            told[1] = limits
            limits_now.copy_(torch.tensor(limits, dtype=limits_now.dtype))
        graph.replay()
        return outputs

    return replay, own


def _without(absent: Tensor, x: Tensor) -> Tensor:
    """Copies of the first example in the places where there is none."""
    return torch.where(absent.view(-1, *[1] * (x.dim() - 1)), x[:1], x)


def _padded(x: Tensor, capacity: int) -> Tensor:
    short = capacity - x.shape[0]
    return x if short <= 0 else torch.cat([x, x[:1].expand(short, *x.shape[1:])])
