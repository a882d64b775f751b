"""Calls that are known to leave each example where it was, or to take it to where their arguments say.

A rule gives the dimension in which a call's result holds the examples, from where its arguments do; `Lost` where the
arguments, or the data, might put them elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from hush.gradients.axes import (
    PACKED,
    Axis,
    Lost,
    agreed,
    contracted,
    product,
)
from hush.gradients.views import (
    choosing,
    expanding,
    gathering,
    indexing,
    joining,
    narrowing,
    ordering,
    parting,
    permuting,
    reshaping,
    scattering,
    selecting,
    stretching,
    turning,
    writing,
)

if TYPE_CHECKING:
    from hush.gradients.moving import Whereabouts


@dataclass(frozen=True)
class Call:
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


Rule = Callable[[Call, Tensor, int], Axis | None]


def _pointwise(call: Call, out: Tensor, _: int) -> Axis | None:
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


def _copying(call: Call, out: Tensor, _: int) -> Axis | None:
    """The first tensor in another form, or filled with something else."""
    return call.of(call.tensors[0])


def _broadcasting(call: Call, out: Tensor, k: int) -> Axis | None:
    axis = call.of(call.tensors[k])
    return None if axis is None else axis._replace(dim=out.dim() - call.tensors[k].dim() + axis.dim)


def _keeping(call: Call, out: Tensor, _: int) -> Axis | None:
    """Whatever happens along other dimensions, counted from the first."""
    axis = agreed(call.axes)
    return None if out.dim() == 0 else axis


def _layer(call: Call, out: Tensor, _: int) -> Axis | None:
    """A layer on the first tensor, its parameters the others."""
    axis, *others = call.axes
    if any(other is not None for other in others):
        raise Lost
    return axis


def _linear(call: Call, out: Tensor, k: int) -> Axis | None:
    axis = _layer(call, out, k)
    if axis is not None and axis.dim == call.tensors[0].dim() - 1:
        raise Lost
    return axis


def _first(rule: Rule) -> Rule:
    """What a rule says of examples that are first, and stay there."""

    def at_first(call: Call, out: Tensor, k: int) -> Axis | None:
        axis = rule(call, out, k)
        if axis is not None and axis.dim != 0:
            raise Lost
        return axis

    return at_first


_rows, _losses = _first(_layer), _first(_keeping)


def _convolving(call: Call, out: Tensor, k: int) -> Axis | None:
    """Without a dimension for examples, the first would be that of the channels."""
    if len({tensor.dim() for tensor in call.tensors[:2]}) != 1:
        raise Lost
    return _rows(call, out, k)


def _bilinear(call: Call, out: Tensor, k: int) -> Axis | None:
    one, two, *others = call.axes
    axis = agreed((one, two))
    if any(other is not None for other in others) or (axis is not None and axis.dim >= out.dim() - 1):
        raise Lost
    return axis


def _padding(call: Call, out: Tensor, k: int) -> Axis | None:
    axis, sides = _layer(call, out, k), list(call.argument(1, "pad", ()))
    if axis is not None:
        last = 2 * (out.dim() - 1 - axis.dim)
        if any(sides[last : last + 2]):
            raise Lost
    return axis


def _looking_up(call: Call, out: Tensor, _: int) -> Axis | None:
    """Rows of a table that holds no examples, by indices that may."""
    table = call.argument(1, "weight")
    if call.args[0].is_floating_point() or call.of(table) is not None:
        raise Lost
    if call.name == "embedding_bag" and call.args[0].dim() != 2:
        raise Lost
    return agreed(call.axes)


def _reducing(call: Call, out: Tensor, k: int) -> Axis | None:
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


def _multiplying(call: Call, out: Tensor, _: int) -> Axis | None:
    a, b = call.tensors[:2]
    if call.name in ("rmatmul",):
        a, b = b, a
    return product(call.of(a), a.dim(), call.of(b), b.dim(), out.dim())


def _adding_product(call: Call, out: Tensor, _: int) -> Axis | None:
    """addmm, baddbmm"""
    beside, a, b = call.tensors[:3]
    axis, more = product(call.of(a), a.dim(), call.of(b), b.dim(), out.dim()), call.of(beside)
    return agreed((axis, None if more is None else more._replace(dim=out.dim() - beside.dim() + more.dim)))


def _einsum(call: Call, out: Tensor, _: int) -> Axis | None:
    if not call.args or not isinstance(call.args[0], str):
        raise Lost
    return contracted(call.args[0], call.axes, [tensor.dim() for tensor in call.tensors])


def _dotting(call: Call, out: Tensor, _: int) -> Axis | None:
    """tensordot"""
    a, b = call.tensors[:2]
    axis, dims = call.of(a), call.argument(2, "dims", 2)
    if call.of(b) is not None or not isinstance(dims, int) or (axis is not None and axis.dim >= a.dim() - dims):
        raise Lost
    return axis


def _measuring(call: Call, out: Tensor, _: int) -> Axis | None:
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


def _attending(call: Call, out: Tensor, _: int) -> Axis | None:
    axis = agreed([call.of(tensor) for tensor in call.tensors[:3]])
    masks = [(call.of(mask), mask.dim()) for mask in call.tensors[3:]]
    if axis is None and all(other is None for other, _ in masks):
        return None
    if axis is None or axis.dim >= out.dim() - 2:
        raise Lost
    if any(other is not None and other.dim - dims != axis.dim - out.dim() for other, dims in masks):
        raise Lost
    return axis


def _multi_head(call: Call, out: Tensor, k: int) -> Axis | None:
    """Positions first, then examples; of the weights, examples first."""
    axis = agreed([call.of(tensor) for tensor in call.args[:3]])
    if axis is None or axis.dim != 1 or call.args[0].dim() != 3:
        raise Lost
    return axis if k == 0 else axis._replace(dim=0)


def _recurrent(call: Call, out: Tensor, k: int) -> Axis | None:
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


def _cell(call: Call, out: Tensor, k: int) -> Axis | None:
    """One step of a recurrent network: examples are first."""
    axis = agreed(call.axes)
    if axis is None or axis.dim != 0:
        raise Lost
    return axis


def _packing(call: Call, out: Tensor, k: int) -> Axis | None:
    if call.of(call.args[0]) != Axis(0 if call.args[2] else 1) or call.of(call.args[1]) not in (None, Axis(0)):
        raise Lost
    return PACKED if k == 0 else None


def _unpacking(call: Call, out: Tensor, k: int) -> Axis | None:
    if call.of(call.args[0]) != PACKED:
        raise Lost
    return Axis(0 if call.args[2] or k else 1)


def _connecting(call: Call, out: Tensor, _: int) -> Axis | None:
    """ctc_loss: scores have the examples second, targets and lengths first."""
    scores, *rest = call.axes
    if scores not in (None, Axis(1)) or agreed(rest) not in (None, Axis(0)):
        raise Lost
    return Axis(0) if out.dim() else None


def _constant(call: Call, out: Tensor, _: int) -> Axis | None:
    """Made beside data, or of a size that came from them, but not of them."""
    return None


_REDUCED = {  # where the dimension is among the arguments, and which it is by default
    **dict.fromkeys(["norm", "linalg_vector_norm", "vector_norm", "quantile", "nanquantile"], (2, None)),
    "kthvalue": (2, -1),
    "mode": (1, -1),
    "cosine_similarity": (2, 1),
}

_NAMES: dict[Rule, str] = {
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
    reshaping: "view reshape view_as reshape_as flatten unflatten ravel squeeze unsqueeze atleast_1d",
    permuting: "transpose swapaxes swapdims permute movedim moveaxis t T mT mH adjoint",
    expanding: "expand expand_as broadcast_to repeat tile",
    stretching: "repeat_interleave",
    joining: "cat concat concatenate stack hstack",
    parting: "split chunk unsafe_split unsafe_chunk split_with_sizes",
    narrowing: "narrow",
    choosing: "select unbind",
    turning: "flip roll",
    ordering: "sort argsort topk",
    gathering: "gather take_along_dim",
    scattering: "scatter scatter_add scatter_reduce",
    selecting: "index_select",
    indexing: "getitem",
    writing: "setitem",
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
RULES: dict[str, Rule] = {name: rule for rule, names in _NAMES.items() for name in names.split()}
PROPERTIES: dict[Any, str] = {getattr(Tensor, name).__get__: name for name in ("T", "mT", "mH", "data", "real", "imag")}
IN_PLACE = {_pointwise, _copying, _keeping, scattering, writing}
_ON_PACKED = {"lstm", "gru", "rnn_tanh", "rnn_relu", "pad_packed_sequence"}
