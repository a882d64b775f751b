"""How each operation's per-example gradients come about: one file a family of operations.

A rule is a function `rule(tape, *args, **kwargs)` with the operation's own arguments. It runs the operation with
stand-ins for the parameters, records each use on the tape, and returns the result; or returns NotImplemented, and the
parameter takes a slower path. An operation without a rule of its own gets the general one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hush.gradients.rules import attention, convolution, elementwise, embedding, linear, normalisation, recurrent
from hush.gradients.rules.general import general
from hush.gradients.tape import Tape

Rule = Callable[[Tape, Any, tuple[Any, ...], dict[str, Any]], Any]

_RULES: dict[Any, Callable[..., Any]] = {
    **linear.RULES,
    **convolution.RULES,
    **embedding.RULES,
    **normalisation.RULES,
    **elementwise.RULES,
    **recurrent.RULES,
    **attention.RULES,
}


def rule_for(func: Any) -> Rule:
    """The rule of an operation; where it has none, or declines, the general one."""
    special = _RULES.get(func)
    if special is None:
        return general

    def rule(tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        before = len(tape.uses)
        result = special(tape, *args, **kwargs)
        if result is not NotImplemented:
            return result
        del tape.uses[before:]
        return general(tape, func, args, kwargs)

    return rule
