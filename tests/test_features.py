"""The scattering transform."""

from __future__ import annotations

import math

import pytest
import torch

from hush.features import Scattering, group_normalise, low_pass, morlet


def _images(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("scales", "angles", "paths"), [(2, 8, 81), (1, 4, 5), (3, 4, 61)])
def test_the_shape_is_what_the_formula_says(scales, angles, paths):
    transform = Scattering(scales, angles)
    assert transform.paths == paths
    side = 32
    assert transform(_images(2, 3, side, side)).shape == (2, 3 * paths, side // 2**scales, side // 2**scales)


def test_each_image_is_transformed_by_itself():
    """Features mix neither examples nor channels, so they need no account."""
    images = _images(3, 2, 16, 16)
    whole = Scattering()(images)
    torch.testing.assert_close(whole[1:2], Scattering()(images[1:2]))
    torch.testing.assert_close(whole[:, 81:], Scattering()(images[:, 1:]))


def test_wavelets_ignore_a_constant_image_and_the_low_pass_keeps_it():
    features = Scattering()(torch.full((1, 1, 16, 16), 0.7))
    torch.testing.assert_close(features[:, 0], torch.full((1, 4, 4), 0.7))
    assert features[:, 1:].abs().max() < 1e-5


def test_a_morlet_wavelet_has_mean_zero_and_peaks_at_its_frequency():
    for angle in (0.0, math.pi / 2):
        spectrum = morlet(64, 64, 1, angle)
        assert abs(spectrum[0, 0].item()) < 1e-6
        row, column = divmod(int(spectrum.argmax()), 64)
        expected = round(64 * 0.75 / 2 / 2)
        assert (column if angle == 0 else row) == pytest.approx(expected, abs=1)
        assert (row if angle == 0 else column) == 0


def test_second_order_paths_see_how_a_texture_varies():
    """Fine vertical stripes, with and without coarse bands across: the path (angle 0, then pi/2) sees the bands."""
    x = torch.arange(32.0)
    stripes = torch.cos(0.75 * math.pi * x)[None, :].expand(32, 32)
    bands = stripes * (1 + torch.cos(0.375 * math.pi * x))[:, None]
    plain, banded = (Scattering()(image[None, None])[0, :, 2:6, 2:6].mean((1, 2)) for image in (stripes, bands))
    assert int(plain[1:9].argmax()) == int(banded[1:9].argmax()) == 0
    assert banded[17:].view(8, 8)[0, 4] > 20 * plain[17:].view(8, 8)[0, 4].abs()


def test_features_hardly_move_when_the_image_moves_by_a_pixel():
    images = _images(4, 1, 32, 32)
    images = torch.nn.functional.avg_pool2d(images, 5, 1, 2)
    moved = images.roll(1, 3)
    inside = (slice(None), slice(None), slice(2, 6), slice(2, 6))
    change = (Scattering()(images)[inside] - Scattering()(moved)[inside]).norm() / Scattering()(images)[inside].norm()
    plain = (images - moved).norm() / (images - images.mean()).norm()
    assert change < 0.3 * plain


def test_the_low_pass_rows_are_weights():
    weights = low_pass(40, 2)
    assert weights.shape == (8, 40)
    torch.testing.assert_close(weights.sum(1), torch.ones(8))
    assert (weights >= 0).all()


def test_group_normalisation_looks_at_one_image_only():
    features = _images(3, 6, 4, 4)
    whole = group_normalise(features, 2)
    torch.testing.assert_close(whole[2:], group_normalise(features[2:], 2))
    torch.testing.assert_close(whole.view(3, 2, -1).mean(2), torch.zeros(3, 2), atol=1e-5, rtol=0)


@pytest.mark.parametrize("size", [(30, 32), (4, 4)])
def test_sizes_that_do_not_fit_are_refused(size):
    with pytest.raises(ValueError, match="Images of"):
        Scattering()(torch.zeros(1, 1, *size))
