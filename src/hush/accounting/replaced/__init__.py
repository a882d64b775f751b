"""Equal Gaussian releases on samples, one record replaced (the operator C_p).

few         a few of them by quadrature, with the densities of their losses' sums
many        many of them by one contour integral with C_p's own transform
"""
