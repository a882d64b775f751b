"""One step's privacy loss as a pair of distributions, and what a look at the pairs alone tells of their composition.

losses      the pairs: Gaussian, Laplace, finitely many outcomes, on samples, reversed, or enclosed by two others
projection  norms from random projections; glances looks at them roughly, for searches
doubts      how far computed masses may be off, and pairs that reveal more or less for sure
points      losses at points, and their transform; joined has fewer pairs with the same composition
single      one release, by the tails of its loss
bounded     close to a largest loss; hopeless, beyond every epsilon that is told
survey      a rough picture of many steps' losses, which says where to look; standing has a few of many kinds for it
"""
