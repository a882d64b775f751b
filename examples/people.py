"""Write people.csv: 3,000 made-up people with numbers, categories, dates and gaps, for trying `hush train` on.

python examples/people.py
hush train people.csv --target income --epsilon 3 --delta 1e-6
hush report people-run
"""

from __future__ import annotations

import argparse
import csv
import random
from datetime import date, timedelta
from pathlib import Path

SCHOOLING = {"school": -1.0, "college": 0.5, "doctorate": 1.5}


def person(rng: random.Random) -> dict[str, object]:
    """Who earns more: the older, the longer at school, and those who work long hours; and chance."""
    age, schooling, hours = rng.randint(18, 80), rng.choice(list(SCHOOLING)), round(rng.gauss(38, 9), 1)
    merit = 0.05 * (age - 45) + SCHOOLING[schooling] + 0.04 * (hours - 38) + rng.gauss(0, 0.7)
    return {
        "age": age if rng.random() > 0.05 else "",  # one in twenty doesn't say
        "schooling": schooling if rng.random() > 0.03 else "?",
        "town": rng.choice(["Basel", "Bern", "Chur", "Genf"]),
        "hired": date(2000, 1, 1) + timedelta(days=rng.randrange(9000)),
        "hours": hours,
        "income": ">50K" if merit > 0.3 else "<=50K",
    }


def write(path: Path, people: int = 3000) -> None:
    rng = random.Random(0)
    rows = [person(rng) for _ in range(people)]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("path", nargs="?", default="people.csv", type=Path)
    path = parser.parse_args().path
    write(path)
    print(f"Wrote {path}. Now: hush train {path} --target income --epsilon 3 --delta 1e-6")
