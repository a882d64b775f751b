"""Any other operation on data and parameters: its own derivative, taken example by example in one vectorised call.

For `y_i = f(x_i, p)` the per-example gradient is the vector-Jacobian product of `f(x_i, .)` with `dy_i`; only this
one operation is differentiated again. Whether the operation does treat examples separately is checked numerically
before it is relied on.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as tree

from hush.gradients.factors import Formed
from hush.gradients.layout import Layout, Order
from hush.gradients.rules.common import Unfit, hold, without_speed_warnings
from hush.gradients.tape import Tape, writes_in_place


def general(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = getattr(func, "__name__", str(func))
    if writes_in_place(func, kwargs):
        return NotImplemented
    leaves, structure = tree.tree_flatten((args, kwargs))
    sources = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and tape.is_source(leaf)]
    data = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and tape.is_data(leaf)]
    if not data or any(leaves[k].dim() == 0 or leaves[k].shape[0] != tape.examples for k in data):
        return NotImplemented
    stand_ins = {k: tape.stand_in(leaves[k]) for k in sources}
    call_args, call_kwargs = tree.tree_unflatten([stand_ins.get(k, leaf) for k, leaf in enumerate(leaves)], structure)
    output = func(*call_args, **call_kwargs)
    if not isinstance(output, Tensor) or output.dim() == 0 or output.shape[0] != tape.examples:
        return NotImplemented
    if not output.requires_grad or output.grad_fn is None:
        return NotImplemented
    held = {k: hold(leaves[k]) for k in data}
    fixed = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]

    def factor_of(source: int) -> Any:
        def factor(layout: Layout, grad: Tensor) -> Formed:
            if layout.order is not Order.FIRST:
                raise Unfit("its examples aren't in the first dimension")

            def one(dy: Tensor, *xs: Tensor) -> Tensor:
                def f(p: Tensor) -> Tensor:
                    filled = list(fixed)
                    filled[source] = p
                    for k, x in zip(data, xs, strict=True):
                        filled[k] = x.unsqueeze(0)
                    f_args, f_kwargs = tree.tree_unflatten(filled, structure)
                    result: Tensor = func(*f_args, **f_kwargs)
                    return result

                pull_back = torch.func.vjp(f, fixed[source])[1]
                pulled: Tensor = pull_back(dy.unsqueeze(0))[0]
                return pulled

            try:
                with without_speed_warnings():
                    return Formed(torch.func.vmap(one)(grad, *(held[k]() for k in data)))
            except (RuntimeError, ValueError, TypeError) as error:
                raise Unfit(f"{name} can't be vectorised over examples") from error

        return factor

    for k in sources:
        tape.record(name, leaves[k], stand_ins[k], output, factor_of(k))
    return output
