"""The survey's answers, kept: a run that is killed while it asks goes on, and neither pays nor is told twice.

A question goes this way, every step of it on the disk before the next:

    noted     a keyed digest of what is asked, in the private folder
    charged   in the ledger
    answered  with noise, a function of the survey's key and the question's name
    kept      the answer, in the private folder; only now is it used

A kill between any two of them leaves a run that goes on.  A kept answer was released once, and using it again releases
nothing.  A question that was charged and has no answer yet is answered by the same noise on the same sums, so it can
have one answer only, whoever was told it before.  That the sums are the same is what the noted digest is for: noise
that may have been seen on one question is never used on another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hush import Key, noise
from hush.filters import Counts, within
from hush.ledger import Ledger
from hush.runs.folder import read_json, write_json
from hush.tabular.survey import Floats, Question
from hush.tally import counts_of


class Answers:
    """Answers a run's questions, in their order: from what was kept, or charged now, noised and rounded."""

    def __init__(self, path: Path, book: Ledger, run: str, key: Key, questions: Sequence[Question]) -> None:
        self._path, self._book, self._run, self._key, self._questions = path, book, run, key, questions
        self._kept: dict[str, Any] = read_json(path) if path.exists() else {}
        whole = counts_of(part for question in questions for part in question.charges())
        if sum(self._spent().values()) > sum(whole.values()):
            raise ValueError(
                "Steps of this run were drawn and its checkpoint is gone; put its private folder back as it was."
            )

    def ask(self, question: Question, sums: Floats, sensitivity: float) -> Floats:
        """The sums, to which a unit adds at most `sensitivity`, with noise, as whole numbers."""
        query, kept = self._digest(question, sums, sensitivity), self._kept.get(question.name)
        if kept is None:
            if self._charged(question):
                raise ValueError(
                    f"The question about the {question.name} was asked before, and what was noted of it is gone; put "
                    "the run's private folder back as it was, or start another run."
                )
            self._keep(question, query, None)
        elif not isinstance(kept, dict) or kept.get("query") != query:
            raise ValueError(
                f"The question about the {question.name} isn't the one that was asked before: hush or a library that "
                "it computes with has changed since; go on with the former, or start another run."
            )
        elif kept.get("answer") is not None:
            return np.array(kept["answer"], dtype=np.float64)
        self._charge(question)
        std = question.noise_multiplier * sensitivity
        (noisy,) = noise.add(self._key, 0, [torch.from_numpy(sums)], [std], purpose=f"survey: {question.name}")
        answer = np.rint(noisy.numpy().astype(np.float64))
        self._keep(question, query, answer.tolist())
        return answer

    def _charge(self, question: Question) -> None:
        """Unless it is charged already; refused if somebody else goes on with the run meanwhile."""
        place = self._questions.index(question) - len(self._questions)
        mark = self._book.mark(self._run)
        if not self._charged(question):
            self._book.reserve(self._run, place, question.charges(), 1, after=mark)

    def _charged(self, question: Question) -> bool:
        place = self._questions.index(question)
        due = counts_of(part for asked in self._questions[: place + 1] for part in asked.charges())
        return within(due, self._spent())

    def _spent(self) -> Counts:
        mechanism = self._book.mechanism(self._run)
        return {} if mechanism is None else counts_of([(mechanism, 1)])

    def _digest(self, question: Question, sums: Floats, sensitivity: float) -> str:
        told = repr((question, float(sensitivity), sums.shape)).encode() + np.ascontiguousarray(sums).tobytes()
        return hashlib.blake2b(told, key=self._key.derive("survey: what is asked"), digest_size=32).hexdigest()

    def _keep(self, question: Question, query: str, answer: list[float] | None) -> None:
        self._kept[question.name] = {"query": query, "answer": answer}
        write_json(self._path, self._kept, mode=0o600)
