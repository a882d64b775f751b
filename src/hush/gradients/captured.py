"""The ghost engine as a program: traced once, compiled, and on a GPU replayed as a CUDA graph.

Both halves of the engine (norms and factors; weighted sums) are traced into flat graphs of tensor operations, with the
backward pass inside, so that the compiler can fuse across all of it. Between the halves the weights are computed as
always. A program has one batch size, its *capacity*: smaller batches are padded with copies of their first example that
get weight zero, larger ones go through in several rounds. Nothing is ever left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from hush.gradients import ghost
from hush.gradients.engines import ClippedSum, Groups, Losses, Memory, Weigh, count
from hush.gradients.factors import Factor, tensors_of, with_tensors

Run = Callable[..., list[Tensor]]


class NotCapturable(Exception):
    """The computation can't be traced or captured; it runs as written.  Tried again at the 2nd, 4th, 8th, ... call."""

    calls = 1

    def due(self) -> bool:
        """Counts a call; whether it is time to try again: a parameter may only have had no gradient yet."""
        self.calls += 1
        return self.calls & (self.calls - 1) == 0 and self.calls <= _LAST_TRY


_LAST_TRY = 64


@dataclass(frozen=True)
class Program:
    """Compiled halves for batches of `capacity` examples: `first` gives norms, losses, factors; `second` the sums."""

    capacity: int
    first: Run
    second: Run
    notes: tuple[str, ...]


def captured_sum(
    parameters: Sequence[Tensor],
    losses: Losses,
    batch: Sequence[Any],
    groups: Groups,
    weigh: Weigh,
    memory: Memory,
    capacity: int,
    compile: bool,
) -> ClippedSum:
    """The clipped sum by the program for this loss function, built at the first call."""
    n = count(batch)
    # a program reads the parameters where they were: others, moved or converted ones, need another
    where = tuple((id(p), p.data_ptr(), p.dtype) for p in parameters)
    shapes = tuple((tuple(x.shape[1:]), x.dtype, x.device) if isinstance(x, Tensor) else x for x in batch)
    key = (id(losses), shapes, where, tuple(map(tuple, groups)))
    program = memory.programs.get(key)
    if program is None or (isinstance(program, NotCapturable) and program.due()):
        sample = tuple(_padded(x[:capacity], capacity) if isinstance(x, Tensor) else x for x in batch)
        built = _built(parameters, losses, sample, groups, memory, compile)
        if isinstance(program, NotCapturable) and isinstance(built, NotCapturable):
            built.calls = program.calls
        program = memory.programs[key] = built
        memory.kept.append((losses, tuple(parameters)))  # their ids stay their own
    if isinstance(program, NotCapturable):
        raise program
    sums: list[Tensor] = []
    all_norms, all_values = [], []
    for start in range(0, n, capacity):
        stop = min(start + capacity, n)
        piece = [_padded(x[start:stop], capacity) for x in batch if isinstance(x, Tensor)]
        norms, values, *parts = program.first(*piece)
        weights = weigh(norms[: stop - start])
        if stop - start < capacity:
            weights = torch.cat([weights, weights.new_zeros(capacity - (stop - start), weights.shape[1])])
        more = program.second(weights, *parts)
        if n <= capacity:
            sums = more
            return ClippedSum(sums, norms[:n].clone(), values[:n].clone(), program.notes)
        sums = [total + extra for total, extra in zip(sums, more, strict=True)] if sums else [x.clone() for x in more]
        all_norms.append(norms[: stop - start].clone())
        all_values.append(values[: stop - start].clone())
    return ClippedSum(sums, torch.cat(all_norms), torch.cat(all_values), program.notes)


def _built(*arguments: Any) -> Program | NotCapturable:
    try:
        return build(*arguments)
    except NotCapturable as reason:
        return reason
    except Exception as error:  # tracing is a large thing, and whatever stops it, training can go on without
        return NotCapturable(_first_line(error))


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def build(
    parameters: Sequence[Tensor],
    losses: Losses,
    batch: Sequence[Any],
    groups: Groups,
    memory: Memory,
    compile: bool,
) -> Program:
    """Trace both halves on a batch of the program's size, compile them, and capture them on a GPU."""
    capacity = count(batch)
    is_tensor = [isinstance(x, Tensor) for x in batch]
    inputs = [x for x in batch if isinstance(x, Tensor)]
    shape: list[dict[int, list[Factor]]] = []

    def first(*tensors: Tensor) -> list[Tensor]:
        rest = iter(tensors)
        full = [next(rest) if flag else x for flag, x in zip(is_tensor, batch, strict=True)]
        found = ghost.prepare(parameters, losses, full, groups, None, memory)
        if any(note.startswith("parameter ") for note in found.notes):
            raise NotCapturable("some parameters take a slower path")
        shape[:] = [found.factors]
        return [found.norms, found.values, *(t for k in found.factors for f in found.factors[k] for t in tensors_of(f))]

    def second(weights: Tensor, *tensors: Tensor) -> list[Tensor]:
        rest = iter(tensors)
        factors = {k: [with_tensors(f, rest) for f in found] for k, found in shape[0].items()}
        return ghost.finish(parameters, factors, groups, weights)

    warm = first(*inputs)  # learns the layouts outside the trace
    weights = torch.ones_like(warm[0])
    notes = ["ghost"]
    from torch._dynamo import config as dynamo  # here, since it takes a second to import

    # A model that the user compiled is traced as written, and compiled with everything around it.
    with torch.enable_grad(), dynamo.patch(error_on_nested_fx_trace=False):
        traced = make_fx(first)(*inputs)
    parts = warm[2:]
    with torch.no_grad():
        traced_second = make_fx(second)(weights, *parts)
    run_first: Run = traced
    run_second: Run = traced_second
    if compile:
        try:
            run_first = torch.compile(traced, fullgraph=True, dynamic=False)
            run_second = torch.compile(traced_second, fullgraph=True, dynamic=False)
            with torch.no_grad():
                run_second(weights, *run_first(*inputs)[2:])
            notes.append("compiled")
        except Exception as error:  # the compiler is a large thing, and whatever stops it, the graph can go on without
            run_first, run_second = traced, traced_second
            notes.append(f"not compiled: {_first_line(error)}")
    run_first, run_second = _without_grad(run_first), _without_grad(run_second)
    if inputs[0].is_cuda:
        run_first = _graph(run_first, inputs)
        made = run_first(*inputs)
        run_second = _graph(run_second, [weights], made[2:])
        notes.append("captured in CUDA graphs")
    return Program(capacity, run_first, run_second, tuple(notes))


def _without_grad(run: Run) -> Run:
    def quiet(*tensors: Tensor) -> list[Tensor]:
        with torch.no_grad():
            return list(run(*tensors))

    return quiet


def _graph(run: Run, inputs: Sequence[Tensor], fixed: Sequence[Tensor] = ()) -> Run:
    """Replay `run(*inputs, *fixed)` as a CUDA graph; `fixed` are other graphs' outputs, read in place."""
    static = [x.clone() for x in inputs]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run(*static, *fixed)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = run(*static, *fixed)

    def replay(*tensors: Tensor) -> list[Tensor]:
        for held, new in zip(static, tensors, strict=False):
            held.copy_(new)
        graph.replay()
        return outputs

    return replay


def _padded(x: Tensor, capacity: int) -> Tensor:
    short = capacity - x.shape[0]
    return x if short <= 0 else torch.cat([x, x[:1].expand(short, *x.shape[1:])])
