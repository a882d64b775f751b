"""Any composition of pairs, enclosed by two laws on a lattice: what no contour integral answers, and whole curves.

lattice     epsilon and delta; laws discretises and composes, readings says what a law tells
rare        whole curves of rare large losses among small ones (small), on a lattice (framed) in logarithms (logs), and
            beside sums that are listed (listed); bins has one step's law
"""
