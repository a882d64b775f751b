"""What every contour integral shares: one vertical line with its certificate, and roots of certified curves.

line        delta(epsilon) from a transform's values on a line: aliasing, truncation and rounding, bounded
averaged    the same for losses at points, whose transforms don't decay: smoothing averages curves on the safe side,
            turns bounds how large transforms are without all of their points, at heights that are multiples of one
crossing    where a certified curve falls to a value
thinning    a few of many kinds of steps, for searches; blocks of many rows that stay in the cache
"""
