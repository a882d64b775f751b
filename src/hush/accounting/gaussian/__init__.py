"""Gaussian steps on Poisson samples, and plain ones: the questions asked most, to ten digits in milliseconds.

subsampled  epsilon and delta of steps together (composition), from what fits: closed forms (closed), hits alone
            (hits), or the sharpest curve nearby (sharpest), from
contour     one contour integral, with the transform E[g^r] (transform) and its bounds off the axis (shifted)
jumps       or one with labels, where a few large losses decide: labels sorts losses, certain counts those that decide
            on their own, integrals the others (nearby: what is lost there), landing searches for epsilon
rules       trapezoidal rules for labelled E[g^r]; strips and decay bound their errors; axis has many of them at real r
"""
