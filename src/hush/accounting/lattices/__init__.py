"""Any composition of pairs, enclosed by two laws on a lattice: what no contour integral answers, and whole curves.

lattice     epsilon and delta; laws discretises and composes, readings says what a law tells
deep        near an epsilon, however small delta is: tilted laws in logarithms
scales      whole curves of a few large losses among many small ones, on two lattices at once: sums adds up laws on
            them, bins has one step's law, placing puts outcomes on points
rare        whole curves of rare large losses among small ones and beside sums that are listed (listed), in logarithms
            (logs)
"""
