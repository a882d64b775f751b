"""Nested state as a flat dictionary of tensors and a JSON text, and back, exactly; without pickle.

    >>> tensors, values = flatten({"step": 3, "rates": (0.1, float("inf")), 7: None})
    >>> values
    {'$dict': [['step', 3], ['rates', {'$tuple': [0.1, {'$float': 'inf'}]}], [7, None]]}
    >>> unflatten(tensors, values)
    {'step': 3, 'rates': (0.1, inf), 7: None}

This is what the state of PyTorch's optimisers and schedulers is made of.  JSON has it as it is where JSON can say it;
for the rest an object with one key that begins with a dollar says what it stands for.  Functions and objects of classes
are refused: a checkpoint that can hold those can run code when it is read.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


def flatten(state: Any) -> tuple[dict[str, Tensor], Any]:
    """The tensors of nested state by the path that leads to each, and the rest as JSON."""
    tensors: dict[str, Tensor] = {}
    return tensors, _flat(state, (), tensors)


def unflatten(tensors: Mapping[str, Tensor], values: Any) -> Any:
    """The state that `flatten` took apart."""
    if isinstance(values, list):
        return [unflatten(tensors, item) for item in values]
    if not isinstance(values, dict):
        return values
    tag = next(iter(values), "")
    if not (len(values) == 1 and tag.startswith("$")):
        return {key: unflatten(tensors, value) for key, value in values.items()}
    content = values[tag]
    if tag in _PAIRS:
        return _PAIRS[tag]((unflatten(tensors, key), unflatten(tensors, value)) for key, value in content)
    if tag == "$tuple":
        return tuple(unflatten(tensors, item) for item in content)
    if tag in ("$tensor", "$array"):
        if content not in tensors:
            raise ValueError(f"The checkpoint names a tensor {content} that it doesn't have.")
        return tensors[content] if tag == "$tensor" else tensors[content].numpy()
    if tag in _TEXTS:
        return _TEXTS[tag](content)
    raise ValueError(f"The checkpoint has a value of the kind {tag}; a newer hush wrote it.")


def _torch_name(text: str) -> Any:
    """torch.float32 from its name, and nothing that isn't a dtype."""
    import torch

    found = getattr(torch, text.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"The checkpoint names a type {text} that PyTorch doesn't have.")
    return found


def _device(text: str) -> Any:
    import torch

    return torch.device(text)


_PAIRS: dict[str, Callable[[Any], Any]] = {
    "$dict": dict,
    "$ordered": OrderedDict,
    "$counter": lambda pairs: Counter(dict(pairs)),
}
_TEXTS: dict[str, Callable[[Any], Any]] = {
    "$float": float,
    "$complex": lambda parts: complex(*map(float, parts)),
    "$bytes": bytes.fromhex,
    "$dtype": _torch_name,
    "$device": _device,
}


def _flat(value: Any, path: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, float | np.floating):
        number = float(value)
        return number if math.isfinite(number) else {"$float": str(number)}
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, np.integer):
        return int(value)
    if type(value) is complex:
        return {"$complex": [repr(value.real), repr(value.imag)]}
    if type(value) is bytes:
        return {"$bytes": value.hex()}
    if type(value) is list:
        return [_flat(item, (*path, str(i)), tensors) for i, item in enumerate(value)]
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return {"$tuple": [_flat(item, (*path, str(i)), tensors) for i, item in enumerate(value)]}
    if type(value) in (dict, OrderedDict, Counter):
        return _flat_dict(value, path, tensors)
    return _flat_array(value, path, tensors)


def _flat_dict(value: dict[Any, Any], path: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    flat = [(key, _flat(item, (*path, str(key)), tensors)) for key, item in value.items()]
    if type(value) is dict and all(type(key) is str and not key.startswith("$") for key in value):
        return dict(flat)
    tag = {dict: "$dict", OrderedDict: "$ordered", Counter: "$counter"}[type(value)]
    return {tag: [[_flat(key, (*path, "key"), {}), item] for key, item in flat]}


def _flat_array(value: Any, path: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    import torch

    if isinstance(value, torch.dtype):
        return {"$dtype": str(value)}
    if isinstance(value, torch.device):
        return {"$device": str(value)}
    name = "/".join(path) or "value"
    while name in tensors:
        name += "'"
    if isinstance(value, torch.Tensor):
        tensors[name] = value.detach()
        return {"$tensor": name}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        tensors[name] = torch.from_numpy(np.array(value))
        return {"$array": name}
    place = ".".join(path) or "The state"
    raise ValueError(
        f"{place} is a {type(value).__name__}, which a checkpoint can't hold; it holds tensors, arrays, numbers, "
        "texts, and lists, tuples and dictionaries of them."
    )
