"""Checkpoints: nested state as tensors (safetensors) and JSON, written so that a crash leaves the old one or the new.

    folder/checkpoint.json               values, the names of the tensors, which file has them and its digest
    folder/tensors-<random>.safetensors  the tensors

The JSON file is the checkpoint: it is replaced in one atomic rename, after the tensors it names are on the disk; the
tensors of the one before go last.  Nothing is pickled, so reading a checkpoint runs no code.

A checkpoint of a private run holds its noise key: whoever reads it can take the noise off.  It is written for its
owner's eyes (modes 0700 and 0600) and belongs apart from what is published.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hush.journal import sync
from hush.nesting import flatten, unflatten

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["check_same", "differences", "files", "flatten", "load", "read", "save", "unflatten", "write"]

_INDEX = "checkpoint.json"
_FORMAT = 1


def save(folder: str | os.PathLike[str], state: Any) -> None:
    """Write nested state: dictionaries, lists and tuples of tensors, arrays, numbers and texts (see `flatten`)."""
    write(folder, *flatten(state))


def load(folder: str | os.PathLike[str]) -> Any:
    """The state that `save` wrote, its tensors on the CPU."""
    return unflatten(*read(folder))


def write(folder: str | os.PathLike[str], tensors: Mapping[str, Tensor], values: Any) -> None:
    """Put tensors and JSON into a folder, in place of the checkpoint that is there if there is one.

    When this returns the new checkpoint is on the disk.  One process at a time may write to a folder.
    """
    try:
        from safetensors.torch import save_file
    except ImportError as error:
        raise ImportError("Checkpoints need the safetensors package: pip install safetensors.") from error
    place = Path(folder)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    place.chmod(0o700)
    stored, complexes = _storable(tensors)
    file = place / f"tensors-{secrets.token_hex(8)}.safetensors"
    index = {"format": _FORMAT, "tensors": file.name, "complex": complexes, "values": values}
    try:
        json.dumps(index, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"The values of a checkpoint are plain JSON ({error}); flatten them first.") from error
    # All that is unfinished lies in one folder, whatever temporary files safetensors makes, and goes with it.
    partial = place / ".hush-partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=0o700)
    try:
        save_file(stored, partial / file.name)
        index["digest"] = _digest(partial / file.name)
        (partial / _INDEX).write_text(json.dumps(index, indent=1, allow_nan=False), encoding="utf-8")
        for name in (file.name, _INDEX):
            (partial / name).chmod(0o600)
            sync(partial / name)
        os.replace(partial / file.name, file)
        sync(place)
        os.replace(partial / _INDEX, place / _INDEX)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    sync(place)
    sync(place.parent)
    for old in place.glob("tensors-*.safetensors"):
        if old != file:
            old.unlink(missing_ok=True)


def read(folder: str | os.PathLike[str]) -> tuple[dict[str, Tensor], Any]:
    """The tensors, on the CPU, and the JSON values of a checkpoint."""
    try:
        import torch
        from safetensors.torch import load_file
    except ImportError as error:
        raise ImportError("Checkpoints need the torch and safetensors packages: pip install 'hush[train]'.") from error
    index = _index(Path(folder))
    file = Path(folder) / str(index["tensors"])
    with contextlib.suppress(FileNotFoundError):
        if _digest(file) != index["digest"]:
            raise ValueError(f"The tensors in {file} aren't those that were saved; the checkpoint is damaged.")
    if not file.exists():
        raise ValueError(f"The checkpoint in {folder} has lost its tensors, {file.name}.")
    # Cloned: tensors of the run's own, not pages of a file that the next save takes away.
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    for name in index["complex"]:
        tensors[name] = torch.view_as_complex(tensors[name])
    return tensors, index["values"]


def files(folder: str | os.PathLike[str]) -> frozenset[str]:
    """The names of the files that the checkpoint in a folder is made of."""
    return frozenset({_INDEX, str(_index(Path(folder))["tensors"])})


def differences(saved: Any, given: Any, name: str = "") -> tuple[str, ...]:
    """Where two JSON values differ, in words: 'batch is 256 there and 512 here'."""
    if isinstance(saved, dict) and isinstance(given, dict):
        keys = [*saved, *(key for key in given if key not in saved)]
        found: list[str] = []
        for key in keys:
            inner = f"{name}.{key}" if name else str(key)
            found += differences(saved.get(key), given.get(key), inner)
        return tuple(found)
    return () if saved == given else (f"{name or 'the value'} is {saved} there and {given} here",)


def check_same(saved: Any, given: Any, what: str = "plan") -> None:
    """Refuse a checkpoint made under another plan, and say which numbers differ."""
    found = differences(saved, given)
    if found:
        raise ValueError(f"The checkpoint was made under another {what}: {'; '.join(found)}.")


def _index(folder: Path) -> dict[str, Any]:
    path = folder / _INDEX
    if not path.exists():
        raise ValueError(f"There is no checkpoint in {folder}; it would have a file {_INDEX}.")
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
        known = index["format"] == _FORMAT and {"tensors", "digest", "complex", "values"} <= set(index)
    except (ValueError, KeyError, TypeError):
        known = False
    if not known:
        raise ValueError(f"{path} is no checkpoint that this version of hush can read.")
    return dict(index)


def _storable(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors as safetensors takes them: dense, on the CPU, no two in the same memory; complex ones as pairs."""
    import torch

    stored: dict[str, Tensor] = {}
    complexes: list[str] = []
    seen: set[int] = set()
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise ValueError(f"A checkpoint holds dense tensors; {name} is {tensor.layout}, so save tensor.to_dense().")
        plain = tensor.detach()
        if plain.is_complex():
            complexes.append(name)
            plain = torch.view_as_real(plain.resolve_conj())
        plain = plain.resolve_neg().cpu().contiguous()
        memory = plain.untyped_storage().data_ptr()
        stored[name] = plain.clone() if memory in seen else plain
        seen.add(memory)
    return stored, complexes


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, lambda: hashlib.blake2b(digest_size=32)).hexdigest()
