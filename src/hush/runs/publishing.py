"""The end of a run: what may be published, and the digests that bind it together."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import time
from typing import TYPE_CHECKING, Any

from hush import __version__
from hush.journal import sync
from hush.runs.card import LOADER, Card
from hush.runs.folder import BOUND, Folder, digest, read_json, write_json, write_text

if TYPE_CHECKING:
    from torch import nn

    from hush.training import Private


def publish(folder: Folder, card: Card, model: nn.Module, private: Private) -> None:
    """Write the model, its loader, and a manifest with the digests of everything and the ledger's head."""
    from safetensors.torch import save_file

    run, head = private.spending.run, private.spending.ledger.head  # once: others may write to a shared one meanwhile
    plan = read_json(folder.plan) | {
        "steps_done": private.steps_done,
        "key": private.key.report(),
        "versions": versions(),
        "finished": time.strftime("%Y-%m-%d", time.gmtime()),  # no time of day: how long it took is private
    }
    write_json(folder.plan, plan)
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    beside = folder.weights.with_name(".model.safetensors")
    save_file(weights, beside, metadata={"run": run, "ledger": head})
    beside.chmod(folder.plan.stat().st_mode)  # like the other files, to be read by whoever gets them
    sync(beside)
    beside.replace(folder.weights)
    write_text(folder.loader, LOADER)
    path = private.spending.path
    if path is not None and path.resolve() != folder.ledger.resolve():
        shutil.copyfile(path, folder.ledger)  # as it stands now; it may belong to other runs as well
    digests = {name: digest(folder.public / name) for name in BOUND}
    write_json(folder.manifest, {"run": run, "ledger_head": head, "files": digests})
    folder.hide_times()


def versions() -> dict[str, str]:
    """What the run was made with."""
    found: dict[str, Any] = {"hush": __version__, "python": platform.python_version()}
    for name in ("torch", "numpy", "scipy", "safetensors"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "unknown"
    return found
