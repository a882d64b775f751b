"""Two Gaussian samples and a coin, one record replaced: delta by integrals in many digits."""

from __future__ import annotations

import mpmath


def one_sample(epsilon: mpmath.mpf, rate: float, noise: float) -> mpmath.mpf:
    """delta of one Gaussian release on a sample, one record replaced: p delta(t), e^t = 1 + (e^eps - 1)/p."""
    if epsilon < 0:
        return 1 - mpmath.exp(epsilon) + mpmath.exp(epsilon) * one_sample(-epsilon, rate, noise)
    mu = 1 / mpmath.mpf(noise)
    t = mpmath.log1p(mpmath.expm1(epsilon) / rate)
    return rate * (mpmath.ncdf(mu / 2 - t / mu) - mpmath.exp(t) * mpmath.ncdf(-mu / 2 - t / mu))


def two_samples_beside(epsilon: float, rate: float, noise: float, truth: float) -> mpmath.mpf:
    """delta of two such releases and one randomised response: the mean of one's over what the others lose."""
    mu = 1 / mpmath.mpf(noise)

    def left(rest: mpmath.mpf) -> mpmath.mpf:
        def both(x: mpmath.mpf) -> mpmath.mpf:
            loss = mpmath.log1p(rate * mpmath.expm1(mu * x - mu**2 / 2))
            q = mpmath.npdf(x)
            return q * (mpmath.exp(loss) * one_sample(rest - loss, rate, noise) + one_sample(rest + loss, rate, noise))

        places = [mu / 2 + k * mpmath.mpf(length) for k, length in zip(range(14), [0, *[4] * 13], strict=True)]
        kink = mpmath.log1p(mpmath.expm1(rest) / rate) / mu + mu / 2 if rest > 0 else mu / 2
        spread = mpmath.quad(both, sorted({*places, kink}))
        atom = (1 - rate) * (2 * mpmath.ncdf(mu / 2) - 1)
        return spread + atom * one_sample(rest, rate, noise)

    chance = 1 / (1 + mpmath.exp(-truth))
    at = mpmath.mpf(epsilon)
    return chance * left(at - truth) + (1 - chance) * left(at + truth)
