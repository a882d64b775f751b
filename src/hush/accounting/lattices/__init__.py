"""Any composition of pairs, enclosed by two laws on a lattice: what no contour integral answers, and whole curves.

lattice     epsilon and delta; laws discretises and composes, readings says what a law tells
scales      whole curves of a few large losses among many small ones, on two lattices at once: sums adds up laws on
            them, placing puts outcomes on points
rare        whole curves of rare large losses among small ones (small), on a lattice (framed) in logarithms (logs), and
            beside sums that are listed (listed); bins has one step's law
"""
