"""The papers' tables and figures, regenerated.  `hush reproduce` runs this; `experiments/*.toml` says what there is.

accounts/   what the papers compute: epsilons, trade-off curves
stacked     many small models at once; trainer: their private training; tasks: their data; training: rows of a table
rows        experiments as data; results: what was found, as JSON; runner: one experiment; page: docs/reproduction.md
"""
