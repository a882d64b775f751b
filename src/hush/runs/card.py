"""The model as published: what its columns mean, its network, and its weights."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hush.runs.folder import digest, read_json
from hush.runs.networks import Network
from hush.tabular import cells as reading
from hush.tabular.columns import Column, Number, check_range
from hush.tabular.data import Data, Reading, pictured, read_data
from hush.tabular.tables import Table

if TYPE_CHECKING:
    from torch import Tensor, nn

Features = NDArray[np.float32]

LOADER = '''"""The private model beside this file, as predictions of new rows.  Needs hush, PyTorch and safetensors.

    python load.py rows.csv                 # or, from Python:
    model = hush.runs.load("this/folder"); model.predict([{"age": 41, "workclass": "Private"}])
"""

import sys
from pathlib import Path

import hush.runs

model = hush.runs.load(Path(__file__).parent)

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Usage: python load.py rows.csv")
    try:
        for row in model.predict_file(sys.argv[1]):
            print(*(part for part in row if part is not None), sep=",")
    except ValueError as error:
        sys.exit(f"Error: {error}")
'''


@dataclass(frozen=True)
class Card:
    """Everything but the weights; all of it was declared or released with noise.

    classes   of the target, or None for a number
    scaling   of a numerical target
    columns   what the columns of a table mean, or None for arrays
    bounds    of an array's numbers, which become -1 and 1
    pixels    the columns of a table whose rows are images
    """

    target: str | None
    classes: tuple[str, ...] | None
    scaling: Number | None
    columns: Mapping[str, Column] | None
    bounds: tuple[float, float] | None
    network: Network
    user_column: str | None = None
    image_size: int = 32
    grey: bool = False
    pixels: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        network = self.network
        outputs = 1 if self.classes is None else len(self.classes)
        inputs = network.inputs if self.columns is None else sum(column.width for column in self.columns.values())
        pixels = network.inputs if network.image is None else math.prod(network.image)
        if (network.inputs, network.outputs, pixels) != (inputs, outputs, inputs):
            raise ValueError("The model's network doesn't fit its columns and classes; its description is damaged.")
        if (self.classes is None) == (self.scaling is None) or (self.columns is None) == (self.bounds is None):
            raise ValueError("The model's description is damaged: it needs classes or scaling, and columns or bounds.")

    def encode(self, data: Data) -> Features:
        """The features of records."""
        if isinstance(data.inputs, Table):
            if self.columns is None:
                raise ValueError("The model was trained on arrays or images; give it those, not a table.")
            lost = [name for name in self.columns if name not in data.inputs.columns and self.columns[name].width]
            if lost:
                raise ValueError(f"The rows lack the column {lost[0]!r}, which the model was trained on.")
            parts = [c.encode(data.inputs.columns[n], repr(n)) for n, c in self.columns.items() if c.width]
            return np.concatenate(parts, axis=1)
        if self.bounds is None or self.columns is not None:
            raise ValueError("The model was trained on a table; give it a table, not arrays or images.")
        shape = (self.network.inputs,) if self.network.image is None else self.network.image
        inputs = data.inputs
        if self.network.image is None:  # too small for an image's features: its numbers as they are
            inputs = inputs.reshape(len(inputs), math.prod(inputs.shape[1:]))
        if inputs.shape[1:] != shape:
            raise ValueError(f"The model was trained on records of shape {shape}, got {data.inputs.shape[1:]}.")
        low, high = self.bounds
        values = np.nan_to_num(inputs.astype(np.float32), nan=(low + high) / 2)
        scaled = (2 * (np.clip(values, low, high) - low) / (high - low) - 1).astype(np.float32)
        return self.network.prepared(scaled)

    def encode_targets(self, targets: Sequence[str]) -> NDArray[Any]:
        """Class numbers, -1 for a text that is no class; or scaled numbers, NaN where there is none."""
        if self.classes is not None:
            places = {name: place for place, name in enumerate(self.classes)}
            return np.array([places.get(text.strip(), -1) for text in targets], dtype=np.int64)
        assert self.scaling is not None
        values = reading.numbers(list(targets))
        scaled = (np.clip(values, self.scaling.low, self.scaling.high) - self.scaling.centre) / self.scaling.scale
        return scaled.astype(np.float32)

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": 1,
            "target": self.target,
            "classes": None if self.classes is None else list(self.classes),
            "scaling": None if self.scaling is None else self.scaling.to_dict(),
            "columns": None if self.columns is None else {name: c.to_dict() for name, c in self.columns.items()},
            "bounds": None if self.bounds is None else list(self.bounds),
            "network": self.network.to_dict(),
            "user_column": self.user_column,
            "image_size": self.image_size,
            "grey": self.grey,
            "pixels": None if self.pixels is None else list(self.pixels),
        }

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Card:
        try:
            columns, scaling, bounds = data["columns"], data["scaling"], data["bounds"]
            found = Column.from_dict(scaling) if scaling is not None else None
            if found is not None and (not isinstance(found, Number) or found.log):
                raise ValueError("The model's description is damaged: a target is scaled as a plain number.")
            if bounds is not None:
                check_range("number", *bounds)
            return Card(
                data["target"],
                None if data["classes"] is None else tuple(data["classes"]),
                found,
                None if columns is None else {name: Column.from_dict(value) for name, value in columns.items()},
                None if bounds is None else (float(bounds[0]), float(bounds[1])),
                Network.from_dict(data["network"]),
                data["user_column"],
                int(data["image_size"]),
                bool(data["grey"]),
                None if data["pixels"] is None else tuple(data["pixels"]),
            )
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(
                f"The model's description is damaged or from another version of hush: {error!r}."
            ) from error


class Published:
    """A model that answers."""

    def __init__(self, card: Card, model: nn.Module) -> None:
        self.card = card
        self.model = model.eval()

    @staticmethod
    def read(folder: str | os.PathLike[str]) -> Published:
        """From a run's public folder, or from the run's own."""
        place = Path(folder)
        place = place / "public" if (place / "public").is_dir() else place
        card = Card.from_dict(read_json(place / "model.json"))
        weights = place / "model.safetensors"
        if not weights.is_file():
            raise ValueError(f"{weights} is missing: the run isn't finished; go on with it by `hush resume`.")
        _refuse_others(place)
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        model = card.network.build()
        try:
            model.load_state_dict(load_file(weights))
        except (SafetensorError, RuntimeError, OSError) as error:
            raise ValueError(f"{weights} is damaged or belongs to another model.json.") from error
        return Published(card, model)

    def scores(self, data: Data) -> Tensor:
        """The network's outputs."""
        return self.outputs(self.card.encode(data))

    def outputs(self, features: Features) -> Tensor:
        """Of records that are encoded already."""
        import torch

        with torch.no_grad():
            return torch.cat([self.model(part) for part in torch.from_numpy(features).split(8192)])

    def answers(self, data: Data) -> list[tuple[str, float | None]]:
        """The most likely class with its probability, or the number, for every record."""
        return self.told(self.scores(data))

    def told(self, outputs: Tensor) -> list[tuple[str, float | None]]:
        """The network's outputs as answers."""
        if self.card.classes is not None:
            best, places = outputs.softmax(dim=1).max(dim=1)
            return [(self.card.classes[p], b) for p, b in zip(places.tolist(), best.tolist(), strict=True)]
        assert self.card.scaling is not None
        values = outputs[:, 0] * self.card.scaling.scale + self.card.scaling.centre
        return [(f"{value:.6g}", None) for value in values.tolist()]

    def predict(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """The class, or the number as a text, of rows given as dictionaries."""
        names = self.card.columns or self.card.pixels
        if names is None:
            raise ValueError("The model was trained on arrays or images; use predict_file.")
        for row in rows:
            for name in names:
                if name not in row:
                    raise ValueError(f"A row lacks the column {name!r}, which the model was trained on; None is a gap.")
        table = {n: ["" if row.get(n) is None else str(row[n]) for row in rows] for n in names}
        data = Data(Table(table), None)
        return [answer for answer, _ in self.answers(data if self.card.pixels is None else pictured(data, self.how()))]

    def predict_file(self, path: str | os.PathLike[str]) -> Iterator[tuple[str, float | None]]:
        """Class and probability, or number, for every record of a file."""
        yield from self.answers(read_data(Path(path), self.how(), labelled=False))

    def how(self, target: str | None = None, inputs: str | None = None, delimiter: str | None = None) -> Reading:
        """How to read records like those that the model was trained on."""
        card, shape = self.card, None
        if card.pixels is not None:  # learnt as numbers, where the image was too small, their order is all there is
            shape = (1, len(card.pixels)) if card.network.image is None else card.network.image[1:]
        images = (card.image_size, card.grey, shape, card.pixels, False)
        return Reading(target or card.target, None, inputs, delimiter, *images)


def _refuse_others(public: Path) -> None:
    """Refuse a model that isn't the one its manifest was written for."""
    if not (public / "manifest.json").exists():
        return  # the model alone was handed on
    files = read_json(public / "manifest.json").get("files")
    for name in ("model.json", "model.safetensors"):
        if not isinstance(files, dict) or digest(public / name) != files.get(name):
            raise ValueError(f"{public / name} isn't the file that was published; `hush verify` says more.")
