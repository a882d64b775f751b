"""The papers' tables and figures, regenerated.  `hush reproduce` runs this; `experiments/*.toml` says what there is.

accounts/   what the papers compute: epsilons, trade-off curves
rows        experiments as data; runner: one experiment; results: what was found, as JSON; page: docs/reproduction.md
tasks       data as the models want them; baselines: simple models without privacy
stacked     many small models at once; architectures: which; trainer: their private training; coordinates: by DP-MAC
networks    the papers' networks as modules; alone: trained one by one by `hush.Private`; speed: seconds of an epoch
training    rows of a table: search, train, test; keeper: long rows stop in time and go on; pictures: their figures
"""
