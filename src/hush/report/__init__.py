"""The report of a run."""
from pathlib import Path

def write_report(run: Path, local: bool = False, png: bool = False) -> list[Path]:
    return []
