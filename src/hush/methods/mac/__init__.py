"""DP-MAC: private training of fully connected networks by auxiliary coordinates (Harder et al. 2018)."""

from hush.methods.expansion import Analytic, Expansion
from hush.methods.mac.activations import Activation, Limits
from hush.methods.mac.coordinates import ZSteps
from hush.methods.mac.method import MAC
from hush.methods.mac.objectives import BinaryCrossEntropy, CrossEntropy, SquaredError
from hush.methods.mac.quadratic import LBFGS, ConjugateGradient
from hush.methods.mac.thresholds import Histogram

__all__ = [
    "LBFGS",
    "MAC",
    "Activation",
    "Analytic",
    "BinaryCrossEntropy",
    "ConjugateGradient",
    "CrossEntropy",
    "Expansion",
    "Histogram",
    "Limits",
    "SquaredError",
    "ZSteps",
]
