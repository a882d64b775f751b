"""Choosing among settings without paying for every look: run a secret number of candidates, publish only the best."""

from hush.methods.selection.costs import Gupta, every, profile, renyi
from hush.methods.selection.running import Selected, Trial, run
from hush.methods.selection.runs import Every, Geometric, Logarithmic, NegativeBinomial, Poisson, Runs
from hush.methods.selection.search import Candidate, Noised, Public, Search

__all__ = [
    "Candidate",
    "Every",
    "Geometric",
    "Gupta",
    "Logarithmic",
    "NegativeBinomial",
    "Noised",
    "Poisson",
    "Public",
    "Runs",
    "Search",
    "Selected",
    "Trial",
    "every",
    "profile",
    "renyi",
    "run",
]
