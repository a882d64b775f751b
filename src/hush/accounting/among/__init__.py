"""Groups of records among other groups.

beside      epsilon and delta: rounds until both bounds meet
aims        where the composition's answer is decided; parts, a group's pair that is sharp there
events      one event of each group, where delta is next to 1
outcomes    a pair with very many outcomes as a law with few points
stacked     laws added up on a lattice; stacks, a law on it
"""
