"""Fixed features: what needs no training data costs no privacy.

The scattering transform of an image (Bruna and Mallat 2013) is what a two-layer convolutional network computes when its
filters are wavelets and its non-linearity the modulus, written down in advance instead of learnt:

    S0 = x * phi,    S1 = |x * psi_a| * phi,    S2 = ||x * psi_a| * psi_b| * phi,

psi_a a Morlet wavelet of one of `scales` octaves and `angles` orientations, psi_b one of a coarser octave, phi a
Gaussian of width 2^scales, everything sampled every 2^scales pixels.  With J scales and L angles a channel becomes
1 + L J + L^2 J (J - 1)/2 channels (81 for J = 2, L = 8) of 1/2^J the height and width.

A linear model or a small network on top reaches with few noisy steps what a network that learns its own first layers
can't under the same budget (Tramer and Boneh 2021: MNIST 98.7%, Fashion-MNIST 89.7%, CIFAR-10 69.3% at epsilon 3).

Features must not depend on the private records.  `group_normalise` scales by the statistics of the image at hand only;
statistics over the data set (a mean, a variance by channel) would have to be released with noise and paid for.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hush.accounting.checks import check_whole


class Scattering(nn.Module):
    """Images (n, channels, height, width) to features (n, channels * self.paths, height/2^scales, width/2^scales).

    Filters are made for the size of the first images that come, and have no parameters.
    """

    def __init__(self, scales: int = 2, angles: int = 8) -> None:
        super().__init__()
        check_whole("The number of scales", scales)
        check_whole("The number of angles", angles)
        self.scales, self.angles = scales, angles
        self._bank: tuple[Tensor, Tensor, Tensor] | None = None

    @property
    def paths(self) -> int:
        """Output channels for one input channel."""
        scales, angles = self.scales, self.angles
        return 1 + angles * scales + angles**2 * scales * (scales - 1) // 2

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        step = 2**self.scales
        count, channels, height, width = images.shape
        if height % step or width % step:
            raise ValueError(f"Images of {height} by {width} can't be sampled every {step} pixels; pad them first.")
        if min(height, width) <= step:
            raise ValueError(f"Images of {height} by {width} are too small for {self.scales} scales.")
        padded = F.pad(images.float(), (step, step, step, step), mode="reflect")
        wavelets, rows, columns = self._filters(padded)
        spectrum = torch.fft.fft2(padded)[:, :, None]
        smooth = [padded[:, :, None]]
        finer: list[Tensor] = []
        first = [torch.fft.ifft2(spectrum * wavelets[j]).abs() for j in range(self.scales)]
        for j in range(1, self.scales):
            finer.append(torch.fft.fft2(first[j - 1]))
            for transformed in finer:
                second = torch.fft.ifft2(transformed[:, :, :, None] * wavelets[j]).abs()
                smooth.append(second.flatten(2, 3))
        smooth[1:1] = first
        # the low-pass filter is separable: two small matrix products that also sample
        out = torch.cat([rows @ path @ columns for path in smooth], dim=2)
        return out.reshape(count, channels * self.paths, height // step, width // step)

    def _filters(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape = images.shape[-2:]
        bank = self._bank
        if bank is None or bank[0].shape[-2:] != shape or bank[0].device != images.device:
            height, width = shape
            wavelets = torch.stack(
                [
                    torch.stack([morlet(height, width, j, math.pi * a / self.angles) for a in range(self.angles)])
                    for j in range(self.scales)
                ]
            )
            rows, columns = low_pass(height, self.scales), low_pass(width, self.scales).T
            bank = self._bank = (wavelets.to(images.device), rows.to(images.device), columns.to(images.device))
        return bank


def morlet(height: int, width: int, scale: int, angle: float) -> Tensor:
    """The Fourier transform, real, of psi(u) = exp(-|u|'^2/(2 s^2)) (exp(i xi u_1) - b) on a periodic grid.

    u_1 is along the angle, |u|'^2 = u_1^2 + (u_2/2)^2, s = 0.8 * 2^scale, xi = 3 pi/4 / 2^scale, and b makes the mean
    zero (the constants of Bruna and Mallat 2013).
    """
    spread, frequency, elongation = 0.8 * 2**scale, 0.75 * math.pi / 2**scale, 2.0
    down = 2 * math.pi * torch.fft.fftfreq(height, dtype=torch.float64)[:, None]
    across = 2 * math.pi * torch.fft.fftfreq(width, dtype=torch.float64)[None, :]

    def gaussian(centre: float) -> Tensor:
        # frequencies are periodic: the transform on a grid is the sum over the aliases
        total = torch.zeros(height, width, dtype=torch.float64)
        for k in (-2, -1, 0, 1, 2):
            for m in (-2, -1, 0, 1, 2):
                w1 = (across + 2 * math.pi * k) * math.cos(angle) + (down + 2 * math.pi * m) * math.sin(angle)
                w2 = (down + 2 * math.pi * m) * math.cos(angle) - (across + 2 * math.pi * k) * math.sin(angle)
                total += torch.exp(-0.5 * spread**2 * ((w1 - centre) ** 2 + (elongation * w2) ** 2))
        return total

    wave, envelope = gaussian(frequency), gaussian(0.0)
    return (wave - envelope * wave[0, 0] / envelope[0, 0]).float()


def low_pass(size: int, scales: int) -> Tensor:
    """The matrix (size/2^scales - 2, size) that smooths by a Gaussian of width 0.8 * 2^(scales-1), and samples.

    The first and the last sample, which lie in the padding, are left out.
    """
    step, spread = 2**scales, 0.8 * 2 ** (scales - 1)
    centres = torch.arange(step, size - step, step, dtype=torch.float64)
    positions = torch.arange(size, dtype=torch.float64)
    weights = torch.exp(-0.5 * ((positions[None, :] - centres[:, None] - 0.5 * (step - 1)) / spread) ** 2)
    return (weights / weights.sum(1, keepdim=True)).float()


def group_normalise(features: Tensor, groups: int) -> Tensor:
    """Each image's groups of channels scaled to mean 0 and variance 1, by that image alone (Wu and He 2018)."""
    return F.group_norm(features, groups)
