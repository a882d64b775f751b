"""Steps of any kinds, mixed.

scattered   two laws that enclose a composition (tilted), each a contour integral of an averaged curve
binned      where continuous losses are cut into bins
decaying    no bins: samples of Gaussian and Laplace noise (unbinned, by the sums of stretches) decay by themselves
"""
