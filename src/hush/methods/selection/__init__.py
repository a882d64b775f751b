"""Choosing among settings without paying for every look: run a secret number of candidates, publish only the best."""

from hush.methods.selection.costs import Gupta, every, profile, renyi
from hush.methods.selection.running import run
from hush.methods.selection.runs import Every, Geometric, Logarithmic, NegativeBinomial, Poisson, Runs
from hush.methods.selection.search import Candidate, Noised, Public, Search
from hush.methods.selection.secrecy import TrialFailedError
from hush.methods.selection.state import Selected
from hush.methods.selection.trials import Trial

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
    "TrialFailedError",
    "every",
    "profile",
    "renyi",
    "run",
]
