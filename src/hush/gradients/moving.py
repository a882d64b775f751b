"""Where the examples of a batch go, followed from call to call.

They begin in the first dimension of the batch's tensors. Every call on data that is listed here is known to leave each
example where it was, or to take it to where the call's own arguments say, whatever the data. Any other call, and one
that takes examples out of their order (sorted by length, sent to experts, a matrix of a permutation), loses them: then
nothing that was found at another call can be relied on, and the places are looked for again. So it is a list of what
is safe, not of what isn't: what nobody thought of costs time, and nothing else.

Whether examples *mix* is another question, which `probing` and `company` ask.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from hush.gradients.axes import (
    PACKED,
    Axis,
    Lost,
    agreed,
    contracted,
    cut,
    in_order,
    indexed,
    joined,
    product,
    reshaped,
)


class Whereabouts:
    """Which dimension holds the examples, of every tensor made of a batch; None: it holds none (a maximal length)."""

    def __init__(
        self,
        batch: Iterable[Tensor],
        examples: int,
        is_data: Callable[[Tensor], bool],
        is_clean: Callable[[Tensor], bool],
    ) -> None:
        """`is_data`: whether a tensor may be made of the batch; `is_clean`: whether it was seen not to be."""
        self._examples, self._is_data, self._is_clean = examples, is_data, is_clean
        self._known: dict[int, tuple[weakref.ref[Tensor], Axis | None]] = {}
        self._filled: set[int] = set()  # memory that held no examples until some were written into it
        self.chance = False  # an order that comes from the data was 0, 1, ..., n - 1 this time
        for tensor in batch:
            self.note(tensor, Axis(0) if tensor.dim() and tensor.shape[0] == examples else None)

    def note(self, tensor: Tensor, axis: Axis | None) -> None:
        self._known[id(tensor)] = (weakref.ref(tensor), axis)

    def of(self, tensor: Tensor) -> Axis | None:
        """Lost where data came from code that wasn't seen."""
        held = self._known.get(id(tensor))
        if held is not None and held[0]() is tensor:
            if held[1] is None and self._filled and _memory(tensor) in self._filled:
                raise Lost  # they came in by another view
            return held[1]
        if self._is_data(tensor):
            raise Lost
        return None

    def follow(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: Sequence[Tensor],
        results: list[Tensor],
        in_place: bool,
    ) -> list[Axis | None]:
        """Note and return where a call's results have their examples; `Lost` where that can't be told."""
        name = _PROPERTIES.get(func) or getattr(func, "__name__", "").strip("_")
        rule = _RULES.get(name)
        if rule is None or (in_place and rule not in _IN_PLACE):
            raise Lost
        call = _Call(name, args, kwargs, tensors, self._examples, self)
        axes = [rule(call, result, k) for k, result in enumerate(results)]
        for axis, result in zip(axes, results, strict=True):
            if axis is not None and axis != PACKED:
                if not 0 <= axis.dim < result.dim() or result.shape[axis.dim] != axis.size(self._examples):
                    raise Lost
                if in_place and self.of(result) is None:
                    self._filled.add(_memory(result))
            self.note(result, axis)
        return axes

    def stays(self, index: Any) -> bool:
        """Whether an index leaves all examples where they are; while a program is traced, this was asked before."""
        fixed = not isinstance(index, Tensor) or self._is_clean(index)
        if get_proxy_mode() is not None:
            return fixed
        if not in_order(index, self._examples):
            return False
        self.chance = self.chance or not fixed
        return True


@dataclass(frozen=True)
class _Call:
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tensors: Sequence[Tensor]
    examples: int
    whereabouts: Whereabouts

    def of(self, tensor: Tensor) -> Axis | None:
        axis = self.whereabouts.of(tensor)
        if axis == PACKED and self.name not in _ON_PACKED:
            raise Lost
        return axis

    @property
    def axes(self) -> list[Axis | None]:
        return [self.of(tensor) for tensor in self.tensors]

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)

    def dim(self, position: int, default: Any = None) -> Any:
        return self.argument(position, "dim", self.kwargs.get("axis", default))


_Rule = Callable[[_Call, Tensor, int], Axis | None]


def _pointwise(call: _Call, out: Tensor, _: int) -> Axis | None:
    """Entries meet entries, dimensions counted from the last, as tensors are broadcast."""
    if call.name == "where" and len(call.args) + len(call.kwargs) < 2:
        raise Lost  # the positions of what is true
    found = {
        axis._replace(dim=axis.dim - tensor.dim())
        for tensor, axis in zip(call.tensors, call.axes, strict=True)
        if axis is not None
    }
    axis = agreed(found)
    return None if axis is None or out.dim() == 0 else axis._replace(dim=out.dim() + axis.dim)


def _copying(call: _Call, out: Tensor, _: int) -> Axis | None:
    """The first tensor in another form, or filled with something else."""
    return call.of(call.tensors[0])


def _broadcasting(call: _Call, out: Tensor, k: int) -> Axis | None:
    axis = call.of(call.tensors[k])
    return None if axis is None else axis._replace(dim=out.dim() - call.tensors[k].dim() + axis.dim)


def _keeping(call: _Call, out: Tensor, _: int) -> Axis | None:
    """Whatever happens along other dimensions, counted from the first."""
    axis = agreed(call.axes)
    return None if out.dim() == 0 else axis


def _layer(call: _Call, out: Tensor, _: int) -> Axis | None:
    """A layer on the first tensor, its parameters the others."""
    axis, *others = call.axes
    if any(other is not None for other in others):
        raise Lost
    return axis


def _linear(call: _Call, out: Tensor, k: int) -> Axis | None:
    axis = _layer(call, out, k)
    if axis is not None and axis.dim == call.tensors[0].dim() - 1:
        raise Lost
    return axis


def _rows(call: _Call, out: Tensor, k: int) -> Axis | None:
    """Examples are first, and stay there."""
    axis = _layer(call, out, k)
    if axis is not None and axis.dim != 0:
        raise Lost
    return axis


def _convolving(call: _Call, out: Tensor, k: int) -> Axis | None:
    """Without a dimension for examples, the first would be that of the channels."""
    if len({tensor.dim() for tensor in call.tensors[:2]}) != 1:
        raise Lost
    return _rows(call, out, k)


def _bilinear(call: _Call, out: Tensor, k: int) -> Axis | None:
    one, two, *others = call.axes
    axis = agreed((one, two))
    if any(other is not None for other in others) or (axis is not None and axis.dim >= out.dim() - 1):
        raise Lost
    return axis


def _losses(call: _Call, out: Tensor, k: int) -> Axis | None:
    axis = _keeping(call, out, k)
    if axis is not None and axis.dim != 0:
        raise Lost
    return axis


def _padding(call: _Call, out: Tensor, k: int) -> Axis | None:
    axis, sides = _layer(call, out, k), list(call.argument(1, "pad", ()))
    if axis is not None:
        last = 2 * (out.dim() - 1 - axis.dim)
        if any(sides[last : last + 2]):
            raise Lost
    return axis


def _looking_up(call: _Call, out: Tensor, _: int) -> Axis | None:
    """Rows of a table that holds no examples, by indices that may."""
    table = call.argument(1, "weight")
    if call.args[0].is_floating_point() or call.of(table) is not None:
        raise Lost
    if call.name == "embedding_bag" and call.args[0].dim() != 2:
        raise Lost
    return agreed(call.axes)


def _reducing(call: _Call, out: Tensor, k: int) -> Axis | None:
    """Sums and the like over some dimensions; over the examples' own, none are left."""
    x = call.tensors[0]
    if call.name in ("max", "min") and len(call.tensors) > 1:
        return _pointwise(call, out, k)
    axis = agreed(call.axes)
    position, default = _REDUCED.get(call.name, (1, None))
    given = call.dim(position, default)
    if axis is None or given is None or isinstance(given, bool):
        return None
    if any(t.dim() != x.dim() for t in call.tensors):
        raise Lost
    gone = {d % x.dim() for d in ([given] if isinstance(given, int) else given)}
    if axis.dim in gone or not gone:
        return None
    return axis if out.dim() == x.dim() else axis._replace(dim=axis.dim - sum(d < axis.dim for d in gone))


def _reshaping(call: _Call, out: Tensor, _: int) -> Axis | None:
    x = call.tensors[0]
    axis = call.of(x)
    return None if axis is None else reshaped(axis, call.examples, x.shape, out.shape)


def _permuting(call: _Call, out: Tensor, _: int) -> Axis | None:
    x = call.tensors[0]
    axis, dims = call.of(x), list(range(x.dim()))
    if axis is None:
        return None
    if call.name == "permute":
        given = call.argument(1, "dims")
        order = [d % x.dim() for d in (given if isinstance(given, list | tuple) else call.args[1:])]
    elif call.name in ("movedim", "moveaxis"):
        one, two = call.argument(1, "source"), call.argument(2, "destination")
        one, two = ([d % x.dim() for d in ([a] if isinstance(a, int) else a)] for a in (one, two))
        order = [d for d in dims if d not in one]
        for to, source in sorted(zip(two, one, strict=True)):
            order.insert(to, source)
    else:
        order = dims
        if call.name in ("t", "T"):
            order = dims[::-1]
        else:
            fixed = (-2, -1) if call.name in ("mT", "mH", "adjoint") else None
            a, b = fixed or (call.argument(1, "dim0"), call.argument(2, "dim1"))
            order[a], order[b] = order[b], order[a]
    return axis._replace(dim=order.index(axis.dim))


def _expanding(call: _Call, out: Tensor, _: int) -> Axis | None:
    x = call.tensors[0]
    axis = call.of(x)
    if axis is None:
        return None
    axis, before = axis._replace(dim=out.dim() - x.dim() + axis.dim), axis
    return axis._replace(outer=axis.outer * (out.shape[axis.dim] // x.shape[before.dim]))


def _stretching(call: _Call, out: Tensor, _: int) -> Axis | None:
    """repeat_interleave"""
    x, times, dim = call.tensors[0], call.argument(1, "repeats"), call.dim(2)
    axis = call.of(x)
    if not isinstance(times, int) or (dim is None and x.dim() > 1):
        raise Lost
    along = (dim or 0) % x.dim()
    return axis if axis is None or axis.dim != along else axis._replace(inner=axis.inner * times)


def _joining(call: _Call, out: Tensor, _: int) -> Axis | None:
    pieces = call.argument(0, "tensors")
    axes = [call.of(piece) for piece in pieces]
    dim = call.dim(1, 0) % out.dim()
    if call.name == "hstack":
        dim = min(1, out.dim() - 1)
    if call.name != "stack":
        return joined(axes, dim)
    axis = agreed(axes)
    return None if axis is None else axis._replace(dim=axis.dim + (dim <= axis.dim))


def _parting(call: _Call, out: Tensor, _: int) -> Axis | None:
    x = call.tensors[0]
    axis, along = call.of(x), call.dim(2, 0) % x.dim()
    if axis is None or axis.dim != along:
        return axis
    return cut(axis, call.examples, 0, out.shape[along])  # pieces of whole rows begin where one does


def _narrowing(call: _Call, out: Tensor, _: int) -> Axis | None:
    axis, along = call.of(call.tensors[0]), call.dim(1) % out.dim()
    if axis is None or axis.dim != along:
        return axis
    return cut(axis, call.examples, int(call.argument(2, "start")), out.shape[along])


def _choosing(call: _Call, out: Tensor, _: int) -> Axis | None:
    """One index along a dimension, which is gone then."""
    x = call.tensors[0]
    axis, along = call.of(x), call.dim(1, 0) % x.dim()
    if axis is None or axis.dim == along:
        if axis is not None:
            raise Lost
        return None
    return axis._replace(dim=axis.dim - (along < axis.dim))


def _turning(call: _Call, out: Tensor, _: int) -> Axis | None:
    """flip and roll"""
    x = call.tensors[0]
    axis, dims = call.of(x), call.argument(1 if call.name == "flip" else 2, "dims", None)
    if call.name == "flip" and isinstance(dims, int):
        dims = call.args[1:]
    dims = [dims] if isinstance(dims, int) else dims
    if axis is not None and (not dims or axis.dim in {d % x.dim() for d in dims}):
        raise Lost
    return axis


def _ordering(call: _Call, out: Tensor, _: int) -> Axis | None:
    """sort, argsort, topk"""
    x = call.tensors[0]
    axis = call.of(x)
    numbers = [value for value in call.args[1:] if isinstance(value, int) and not isinstance(value, bool)]
    if call.name == "topk" and "k" not in call.kwargs:
        numbers = numbers[1:]
    dim = call.kwargs.get("dim", numbers[0] if numbers else -1)
    if axis is not None and dim % x.dim() == axis.dim:
        raise Lost
    return axis


def _gathering(call: _Call, out: Tensor, _: int) -> Axis | None:
    x, index = call.tensors[0], call.tensors[1]
    axis, own = call.of(x), call.of(index)
    dim = call.dim(2 if call.name == "take_along_dim" else 1)
    if axis is None:
        return own
    if dim is None or x.dim() != index.dim() or dim % x.dim() == axis.dim:
        raise Lost
    return agreed((axis, own))


def _scattering(call: _Call, out: Tensor, _: int) -> Axis | None:
    """Entries of one example are put at entries of the same one."""
    axis = agreed(call.axes)
    if axis is not None and (call.dim(1) % out.dim() == axis.dim or any(t.dim() != out.dim() for t in call.tensors)):
        raise Lost
    return axis


def _selecting(call: _Call, out: Tensor, _: int) -> Axis | None:
    x, along, index = call.tensors[0], call.dim(1) % out.dim(), call.argument(2, "index")
    axis, own = call.of(x), call.of(index)
    if axis is None:
        return None if own is None else own._replace(dim=along)
    if axis.dim == along:
        if axis[1:] != (1, 1) or not call.whereabouts.stays(index):
            raise Lost
        return axis
    if own is not None:
        raise Lost
    return axis


def _indexing(call: _Call, out: Tensor, _: int) -> Axis | None:
    return _at_index(call, call.args[0], call.args[1], call.of(call.args[0]))


def _writing(call: _Call, out: Tensor, _: int) -> Axis | None:
    """`x[index] = value`: what is written lies at the examples' own places."""
    x, index, value = call.args
    axis = call.of(x)
    wanted = call.of(value) if isinstance(value, Tensor) else None
    if isinstance(index, Tensor) and index.dtype == torch.bool and wanted is None:
        return agreed((axis, call.of(index)))
    view = indexed(x.shape, index)
    dims = len(view.dims) + view.width + sum(item is None for item in (index if isinstance(index, tuple) else (index,)))
    there = None if wanted is None else wanted._replace(dim=dims - value.dim() + wanted.dim)
    if axis is not None:
        agreed((_at_index(call, x, index, axis), there))
        return axis
    rows = [Axis(d) for d, row in view.taken.items() if not isinstance(row, int) and call.whereabouts.stays(row)]
    if there is not None:
        rows += [
            there._replace(dim=d) for d, (at, part) in view.dims.items() if at == there.dim and part == slice(None)
        ]
    elif not any(isinstance(item, Tensor) and call.of(item) is not None for item in view.taken.values()):
        return None
    if len(rows) != 1:
        raise Lost
    agreed((_at_index(call, x, index, rows[0]), there))
    return rows[0]


def _at_index(call: _Call, x: Tensor, index: Any, axis: Axis | None) -> Axis | None:
    view, n = indexed(x.shape, index), call.examples
    own = {  # where the indices have their examples, counted from the end of their own dimensions
        here._replace(dim=here.dim - item.dim())
        for item in view.taken.values()
        if isinstance(item, Tensor) and (here := call.of(item)) is not None
    }
    if axis is None:  # a table that holds none
        by = agreed(own)
        return None if by is None else by._replace(dim=view.block + view.width + by.dim)
    if axis.dim in view.dims:
        place, part = view.dims[axis.dim]
        if own or part.step not in (None, 1):
            raise Lost
        if part == slice(None):
            return axis._replace(dim=place)
        start, stop, _ = slice(part.start, part.stop).indices(x.shape[axis.dim])
        return cut(axis, n, start, max(stop - start, 0))._replace(dim=place)
    row = view.taken[axis.dim]
    if isinstance(row, int) or axis[1:] != (1, 1) or view.width == 0 or not call.whereabouts.stays(row):
        raise Lost
    shape = torch.as_tensor(row).shape
    along = Axis(list(shape).index(n) - len(shape))
    agreed((along, *own))
    return along._replace(dim=view.block + view.width + along.dim)


def _multiplying(call: _Call, out: Tensor, _: int) -> Axis | None:
    a, b = call.tensors[:2]
    if call.name in ("rmatmul",):
        a, b = b, a
    return product(call.of(a), a.dim(), call.of(b), b.dim(), out.dim())


def _adding_product(call: _Call, out: Tensor, _: int) -> Axis | None:
    """addmm, baddbmm"""
    beside, a, b = call.tensors[:3]
    axis, more = product(call.of(a), a.dim(), call.of(b), b.dim(), out.dim()), call.of(beside)
    return agreed((axis, None if more is None else more._replace(dim=out.dim() - beside.dim() + more.dim)))


def _einsum(call: _Call, out: Tensor, _: int) -> Axis | None:
    if not call.args or not isinstance(call.args[0], str):
        raise Lost
    return contracted(call.args[0], call.axes, [tensor.dim() for tensor in call.tensors])


def _dotting(call: _Call, out: Tensor, _: int) -> Axis | None:
    """tensordot"""
    a, b = call.tensors[:2]
    axis, dims = call.of(a), call.argument(2, "dims", 2)
    if call.of(b) is not None or not isinstance(dims, int) or (axis is not None and axis.dim >= a.dim() - dims):
        raise Lost
    return axis


def _measuring(call: _Call, out: Tensor, _: int) -> Axis | None:
    """cdist: between rows of the one and rows of the other"""
    a, b = call.tensors[:2]
    found = [
        None if axis is None else axis._replace(dim=out.dim() - x.dim() + axis.dim)
        for x, axis in ((a, call.of(a)), (b, call.of(b)))
    ]
    if found[1] is not None and found[1].dim >= out.dim() - 2:
        raise Lost
    if found[0] is not None and found[0].dim == out.dim() - 1:
        raise Lost
    return agreed(found)


def _attending(call: _Call, out: Tensor, _: int) -> Axis | None:
    axis = agreed([call.of(tensor) for tensor in call.tensors[:3]])
    masks = [(call.of(mask), mask.dim()) for mask in call.tensors[3:]]
    if axis is None and all(other is None for other, _ in masks):
        return None
    if axis is None or axis.dim >= out.dim() - 2:
        raise Lost
    if any(other is not None and other.dim - dims != axis.dim - out.dim() for other, dims in masks):
        raise Lost
    return axis


def _multi_head(call: _Call, out: Tensor, k: int) -> Axis | None:
    """Positions first, then examples; of the weights, examples first."""
    axis = agreed([call.of(tensor) for tensor in call.args[:3]])
    if axis is None or axis.dim != 1 or call.args[0].dim() != 3:
        raise Lost
    return axis if k == 0 else axis._replace(dim=0)


def _recurrent(call: _Call, out: Tensor, k: int) -> Axis | None:
    """Outputs have the examples where inputs have them, states second; packed sequences come with their sizes."""
    packed = isinstance(call.args[3], list | tuple)
    axis, state = call.of(call.args[0]), call.args[2 if packed else 1]
    states = agreed(call.of(s) for s in (state if isinstance(state, list | tuple) else (state,)))
    if axis is None or (axis != PACKED if packed else axis.dim != (0 if call.args[8] else 1)):
        raise Lost
    inside = Axis(1) if packed else axis._replace(dim=1)
    if states not in (None, inside):
        raise Lost
    return axis if k == 0 else inside


def _cell(call: _Call, out: Tensor, k: int) -> Axis | None:
    """One step of a recurrent network: examples are first."""
    axis = agreed(call.axes)
    if axis is None or axis.dim != 0:
        raise Lost
    return axis


def _packing(call: _Call, out: Tensor, k: int) -> Axis | None:
    if call.of(call.args[0]) != Axis(0 if call.args[2] else 1) or call.of(call.args[1]) not in (None, Axis(0)):
        raise Lost
    return PACKED if k == 0 else None


def _unpacking(call: _Call, out: Tensor, k: int) -> Axis | None:
    if call.of(call.args[0]) != PACKED:
        raise Lost
    return Axis(0 if call.args[2] or k else 1)


def _connecting(call: _Call, out: Tensor, _: int) -> Axis | None:
    """ctc_loss: scores have the examples second, targets and lengths first."""
    scores, *rest = call.axes
    if scores not in (None, Axis(1)) or agreed(rest) not in (None, Axis(0)):
        raise Lost
    return Axis(0) if out.dim() else None


def _constant(call: _Call, out: Tensor, _: int) -> Axis | None:
    """Made beside data, or of a size that came from them, but not of them."""
    return None


_REDUCED = {  # where the dimension is among the arguments, and which it is by default
    **dict.fromkeys(["norm", "linalg_vector_norm", "vector_norm", "quantile", "nanquantile"], (2, None)),
    "kthvalue": (2, -1),
    "mode": (1, -1),
    "cosine_similarity": (2, 1),
}

_NAMES: dict[_Rule, str] = {
    _pointwise: """
        add radd iadd sub rsub isub subtract mul rmul imul multiply div rdiv idiv truediv rtruediv itruediv divide
        true_divide floordiv rfloordiv ifloordiv floor_divide mod rmod imod fmod remainder pow rpow ipow float_power neg
        negative pos positive abs absolute sign sgn signbit exp exp2 expm1 log log2 log10 log1p sqrt rsqrt square
        reciprocal sin cos tan asin acos atan arcsin arccos arctan sinh cosh tanh asinh acosh atanh arcsinh arccosh
        arctanh atan2 arctan2 sinc erf erfc erfinv lgamma digamma polygamma i0 sigmoid special_expit logit floor ceil
        round trunc fix frac clamp clip clamp_min clamp_max maximum minimum fmax fmin lerp addcmul addcdiv hypot ldexp
        logaddexp logaddexp2 xlogy nan_to_num heaviside where masked_fill deg2rad rad2deg copysign
        eq ne lt le gt ge not_equal less greater less_equal greater_equal isclose isfinite isinf isnan isposinf isneginf
        logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor and rand iand or
        ror ior xor rxor ixor invert lshift rshift
        relu relu6 elu selu celu gelu silu mish softplus softsign hardtanh hardswish hardsigmoid leaky_relu rrelu
        threshold logsigmoid log_sigmoid tanhshrink softshrink hardshrink
        bernoulli dropout alpha_dropout dropout1d dropout2d dropout3d feature_dropout feature_alpha_dropout
        native_dropout copy fill zero normal uniform poisson exponential complex polar angle
        mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div
        poisson_nll_loss gaussian_nll_loss soft_margin_loss hinge_embedding_loss margin_ranking_loss
        """,
    _copying: """
        to type type_as float double half bfloat16 int long short bool byte char clone contiguous detach cpu cuda alias
        requires_grad zeros_like ones_like full_like empty_like rand_like randn_like randint_like real imag conj
        resolve_conj resolve_neg data pin_memory
        """,
    _broadcasting: "broadcast_tensors",
    _keeping: """
        softmax log_softmax softmin gumbel_softmax normalize glu cumsum cumprod logcumsumexp cummax cummin tril triu
        one_hot pairwise_distance fft_fft fft_ifft fft_rfft fft_irfft fft_fft2 fft_ifft2 fft_rfft2 fft_irfft2 fft_fftn
        fft_ifftn fft_rfftn fft_irfftn stft view_as_real view_as_complex diff
        """,
    _layer: """
        layer_norm rms_norm prelu bucketize
        max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d
        adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d lp_pool1d lp_pool2d lp_pool3d
        max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool1d_with_indices
        adaptive_max_pool2d_with_indices adaptive_max_pool3d_with_indices fractional_max_pool2d fractional_max_pool3d
        fractional_max_pool2d_with_indices fractional_max_pool3d_with_indices unfold
        """,
    _linear: "linear",
    _convolving: "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d",
    _bilinear: "bilinear",
    _rows: """
        group_norm instance_norm batch_norm
        local_response_norm interpolate upsample upsample_nearest upsample_bilinear pixel_shuffle pixel_unshuffle
        channel_shuffle native_channel_shuffle fold
        """,
    _losses: """
        cross_entropy nll_loss nll_loss_nd multi_margin_loss multilabel_margin_loss multilabel_soft_margin_loss
        triplet_margin_loss triplet_margin_with_distance_loss cosine_embedding_loss grid_sample affine_grid
        max_unpool1d max_unpool2d max_unpool3d
        """,
    _padding: "pad",
    _looking_up: "embedding embedding_bag",
    _reducing: """
        sum mean nansum nanmean amax amin aminmax max min argmax argmin prod std var std_mean var_mean norm
        linalg_vector_norm vector_norm logsumexp all any median nanmedian mode kthvalue quantile nanquantile
        count_nonzero cosine_similarity
        """,
    _reshaping: "view reshape view_as reshape_as flatten unflatten ravel squeeze unsqueeze atleast_1d",
    _permuting: "transpose swapaxes swapdims permute movedim moveaxis t T mT mH adjoint",
    _expanding: "expand expand_as broadcast_to repeat tile",
    _stretching: "repeat_interleave",
    _joining: "cat concat concatenate stack hstack",
    _parting: "split chunk unsafe_split unsafe_chunk split_with_sizes",
    _narrowing: "narrow",
    _choosing: "select unbind",
    _turning: "flip roll",
    _ordering: "sort argsort topk",
    _gathering: "gather take_along_dim",
    _scattering: "scatter scatter_add scatter_reduce",
    _selecting: "index_select",
    _indexing: "getitem",
    _writing: "setitem",
    _multiplying: "matmul rmatmul bmm mm mv",
    _adding_product: "addmm baddbmm addmv",
    _einsum: "einsum",
    _dotting: "tensordot",
    _measuring: "cdist",
    _attending: "scaled_dot_product_attention",
    _multi_head: "multi_head_attention_forward",
    _recurrent: "lstm gru rnn_tanh rnn_relu",
    _cell: "lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell",
    _packing: "pack_padded_sequence",
    _unpacking: "pad_packed_sequence",
    _connecting: "ctc_loss",
    _constant: "new_zeros new_ones new_full new_empty zeros ones empty arange rand randn eye",
}
_RULES: dict[str, _Rule] = {name: rule for rule, names in _NAMES.items() for name in names.split()}
_PROPERTIES: dict[Any, str] = {
    getattr(Tensor, name).__get__: name for name in ("T", "mT", "mH", "data", "real", "imag")
}
_IN_PLACE = {_pointwise, _copying, _keeping, _scattering, _writing}
_ON_PACKED = {"lstm", "gru", "rnn_tanh", "rnn_relu", "pad_packed_sequence"}


def _memory(tensor: Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata
    return address
