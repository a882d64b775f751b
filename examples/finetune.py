"""Public pre-training, private fine-tuning: only what is learnt from private records costs privacy.

Printed digits are public: they are drawn here from the fonts that come with Matplotlib, slanted, stretched and moved
about.  Handwritten ones (scikit-learn's) are private.  A convolutional network learns to read print, its body is frozen
(`requires_grad_(False)`: frozen parameters get no noise and no place in a record's norm), and its last layer goes on
learning, from handwriting, at (epsilon, delta) = (0.5, 1e-4).  Beside it: the same network, all of it learnt from the
private records under the same promise.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw, ImageFont
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import hush

EPSILON, DELTA = 0.5, 1e-4
RECORDS = 1437


def printed(count: int) -> tuple[Tensor, Tensor]:
    """Digits in print; like the handwritten ones, 32 x 32 dots counted in blocks of 4 x 4."""
    rng, folder = np.random.default_rng(0), Path(mpl.get_data_path()) / "fonts" / "ttf"
    files = [path for path in sorted(folder.glob("DejaVuS*.ttf")) if "Display" not in path.name]
    fonts = [ImageFont.truetype(str(path), 30) for path in files]
    images, labels = np.zeros((count, 8, 8), dtype=np.float32), rng.integers(10, size=count)
    for image, label in zip(images, labels.tolist(), strict=True):
        page = Image.new("L", (48, 48))
        ImageDraw.Draw(page).text((24, 24), str(label), fill=255, font=fonts[rng.integers(len(fonts))], anchor="mm")
        wide, high, slant, turn = rng.uniform((0.7, 0.75, -0.35, -0.15), (1.2, 1.1, 0.35, 0.15))
        across, down = rng.uniform(-2, 2, size=2)
        middle = 24 - (wide + slant) * (16 + across), 24 - (turn + high) * (16 + down)
        page = page.transform((32, 32), Image.Transform.AFFINE, (wide, slant, middle[0], turn, high, middle[1]))
        image[:] = (np.asarray(page) > 100).reshape(8, 4, 8, 4).sum(axis=(1, 3))
    return torch.tensor(images)[:, None] / 8 - 1, torch.tensor(labels)


def network() -> nn.Sequential:
    body = [nn.Conv2d(1, 32, 3, padding=1), nn.Tanh(), nn.Conv2d(32, 32, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)]
    return nn.Sequential(nn.Sequential(*body, nn.Flatten(), nn.Linear(512, 64), nn.Tanh()), nn.Linear(64, 10))


def train_plainly(model: nn.Module, x: Tensor, y: Tensor, epochs: int) -> nn.Module:
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        for part in torch.randperm(len(y)).split(128):
            optimiser.zero_grad()
            F.cross_entropy(model(x[part]), y[part]).backward()
            optimiser.step()
    return model


def train_privately(model: nn.Module, x: Tensor, y: Tensor, steps: int, rate: float) -> hush.Private:
    plan = hush.Plan(records=RECORDS, batch=RECORDS, steps=steps, epsilon=EPSILON, delta=DELTA, clip=hush.Normalised())
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=rate)
    private = hush.Private(model, optimiser, plan, average=hush.Average(0.9))

    def losses(images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(images), labels, reduction="none")

    for images, labels in private.batches((x, y)):
        private.step(losses, images, labels)
    return private


def main(quick: bool) -> None:
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 8 - 1, torch.tensor(labels)
    train, test = train_test_split(np.arange(len(labels)), train_size=RECORDS, random_state=0, stratify=labels)
    steps, epochs = (2, 1) if quick else (30, 12)
    torch.manual_seed(0)

    def accuracy(model: nn.Module) -> str:
        with torch.no_grad():
            return f"{(model(x[test]).argmax(1) == y[test]).double().mean().item():.1%}"

    tuned = train_plainly(network(), *printed(300 if quick else 4000), epochs)
    print(f"handwriting read by a network that knows print only:  {accuracy(tuned)}")
    tuned[0].requires_grad_(False)
    private = train_privately(tuned, x[train], y[train], steps, rate=2.0)
    with private.averaged() as model:
        print(f"its last layer then tuned privately on handwriting:   {accuracy(model)}")
    alone = train_privately(network(), x[train], y[train], steps, rate=2.0)
    with alone.averaged() as model:
        print(f"all of it learnt privately, without print:            {accuracy(model)}")
    plain = train_plainly(network(), x[train], y[train], epochs)
    print(f"without privacy:                                      {accuracy(plain)}")
    spent = private.spent().epsilon(DELTA).upper
    print(f"\nEach of the private ones: epsilon {spent:.4f} at delta {DELTA:g}, certified.\n{private.plan}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    main(parser.parse_args().quick)
