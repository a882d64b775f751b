"""How private was the MNIST run of Bu et al. 2019? 60,000 records, batches of 256, noise 1.3, 15 epochs, delta 1e-5.

The same three questions as on the command line; `make demo` runs this.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from hush.cli import main

RUN = "--rate 256/60000 --noise 1.3 --epochs 15"
PICTURE = Path("demo/tradeoff.png")


def ask(question: str) -> None:
    print(f"\n$ hush {question}\n", flush=True)
    status = main(shlex.split(question))
    if status != 0:
        sys.exit(status)


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    ask(f"epsilon {RUN} --delta 1e-5")
    ask(f"compare {RUN} --delta 1e-5")
    ask(f"curve {RUN} --output {PICTURE}")
    print(f"\nThe picture is in {PICTURE}.")
