"""Folders of images: a subfolder for each class."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hush.tabular.tables import unchanged

ENDINGS = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"})


def classes_of(folder: Path) -> tuple[str, ...]:
    """The names of the subfolders: the folder's layout is taken for declared."""
    return tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")))


def read_images(folder: Path, size: int, grey: bool, labelled: bool = True) -> tuple[NDArray[Any], list[str] | None]:
    """All images as uint8 (N, channels, size, size), and the name of each one's subfolder."""
    if not 4 <= size <= 512:
        raise ValueError(f"Images are brought to a size from 4 to 512 pixels, got {size}.")
    files = images_in(folder, labelled)
    if not files:
        where = "in subfolders of" if labelled else "in"
        raise ValueError(f"There are no images {where} {folder}; a subfolder for each class holds its images.")
    pixels = np.stack([_read(file, size, grey) for file, _ in files])
    return pixels, [label for _, label in files] if labelled else None


def images_in(folder: Path, labelled: bool) -> list[tuple[Path, str]]:
    """Every image with the name of its subfolder, in a fixed order."""
    places = [(folder / name, name) for name in classes_of(folder)] if labelled else [(folder, "")]
    return [
        (file, label)
        for place, label in places
        for file in sorted(place.iterdir())
        if file.suffix.lower() in ENDINGS and file.is_file()
    ]


def _read(path: Path, size: int, grey: bool) -> NDArray[Any]:
    try:
        from PIL import Image
    except ImportError:
        raise ValueError("Images take the Pillow package: pip install pillow.") from None
    with unchanged(path), warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            with Image.open(path) as opened:
                image = opened.convert("L" if grey else "RGB")
                if image.size != (size, size):
                    image = image.resize((size, size), Image.Resampling.BILINEAR)
                pixels = np.asarray(image, dtype=np.uint8)
        except MemoryError:
            raise
        except Exception as error:  # decoders raise whatever they like at damaged files
            raise ValueError(f"{path} isn't an image that can be read ({type(error).__name__}).") from error
    return pixels[None] if grey else np.ascontiguousarray(np.moveaxis(pixels, 2, 0))
