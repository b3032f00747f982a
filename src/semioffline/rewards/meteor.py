"""METEOR 1.5 (Denkowski and Lavie, 2014), computed by its own Java program, which comes with the package
pycocoevalcap."""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from semioffline.errors import UserError
from semioffline.rewards.contract import BaseReward, check_references

_LENGTH, _WANTED, _CHUNKS, _MATCHED, _FOUND = 0, 1, 20, 21, 22
"""Positions in METEOR's list of counts: words of completion and reference, chunks, matched words of both."""


def find_jar() -> Path:
    """Return the path of METEOR's jar. If its package or Java is missing, the error says what to install."""
    spec = importlib.util.find_spec("pycocoevalcap")
    places = list(spec.submodule_search_locations or []) if spec else []
    jars = [path for place in places if (path := Path(place) / "meteor" / "meteor-1.5.jar").is_file()]
    if not jars:
        raise UserError("meteor needs the package pycocoevalcap: pip install 'semioffline[meteor]'")
    if shutil.which("java") is None:
        raise UserError("meteor needs Java: install a runtime (Debian, Ubuntu: apt install default-jre-headless)")
    return jars[0]


def is_there() -> bool:
    """Return whether METEOR and Java are installed."""
    try:
        find_jar()
    except UserError:
        return False
    return True


class _Program:
    """One Java process that answers line by line. It is started when it is first needed, because starting takes
    seconds."""

    def __init__(self) -> None:
        self.jar = find_jar()
        self.lock = threading.Lock()
        self.process: subprocess.Popen[str] | None = None
        self.owner = 0
        atexit.register(self.close)

    def ask(self, line: str, answers: int = 1) -> list[str]:
        """Write one line, and read this many answers."""
        process = self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended: reading says so
        lines = [process.stdout.readline().strip() for _ in range(answers)]
        if not all(lines):
            raise RuntimeError("METEOR's Java process ended; try `java -Xmx2G -version`: it needs 2 GB of memory")
        return lines

    def _start(self) -> subprocess.Popen[str]:
        if self.process is None or self.owner != os.getpid():  # a forked process must not read its parent's answers
            # like pycocoevalcap: standard input, English, punctuation and case normalised
            command = [
                "java",
                "-Dfile.encoding=UTF-8",
                "-XX:+UseParallelGC",
                "-Xmx2G",
                "-jar",
                str(self.jar),
                "-",
                "-",
                "-stdio",
            ]
            self.process = subprocess.Popen(
                [*command, "-l", "en", "-norm"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                encoding="utf-8",
            )
            self.owner = os.getpid()
        return self.process

    def close(self) -> None:
        if self.process is not None and self.owner == os.getpid():
            self.process.kill()
            self.process.wait()
        self.process = None


_PROGRAM: list[_Program] = []


def _program() -> _Program:
    if not _PROGRAM:
        _PROGRAM.append(_Program())
    return _PROGRAM[0]


def _clean(text: str) -> str:
    """Put a text into one line, without the program's separator."""
    return " ".join(text.replace("|||", " ").split())


class Meteor(BaseReward):
    """The METEOR score of each completion, in [0, 1]: a weighted harmonic mean of precision and recall over words that
    match exactly, by stem, as synonyms or as paraphrases, times a penalty for matches in another order.

    With several references, the best score counts.
    """

    name = "meteor"
    single_process = True

    def __init__(self) -> None:
        find_jar()  # told now, not in the first step

    @property
    def signature(self) -> str:
        return "meteor|level:sentence|lang:en|norm:yes|modules:exact+stem+synonym+paraphrase|refs:best|v:1.5"

    def __call__(self, completions: list[str], references: list[list[str]], **kwargs: Any) -> list[float]:
        lines = dict.fromkeys(self._lines(completions, references))
        program = _program()
        with program.lock:
            for line in lines:
                [counts] = program.ask(line)
                lines[line] = program.ask(f"EVAL ||| {counts}", answers=2)[0]
        return [float(lines[line]) for line in self._lines(completions, references)]  # type: ignore[arg-type]

    def _lines(self, completions: list[str], references: list[list[str]]) -> list[str]:
        check_references(completions, references)
        rows = zip(completions, references, strict=True)
        return [" ||| ".join(["SCORE", *map(_clean, row), _clean(text)]) for text, row in rows]


class CorpusMeteor(Meteor):
    """METEOR over a whole set, as it is published: the score of the summed counts of all inputs.

    As a reward, for which every sample needs its own value, it is the sentence score.
    """

    name = "corpus_meteor"

    @property
    def signature(self) -> str:
        return super().signature.replace("level:sentence", "level:corpus")

    def statistics(self, completions: list[str], references: list[list[str]], **kwargs: Any) -> list[list[float]]:
        """Return METEOR's 23 counts for each input: lengths, matches of each kind, chunks, matched words of both sides.

        A completion that matches its reference as a whole has no chunk boundary: METEOR counts its one chunk as none.
        """
        program = _program()
        with program.lock:
            answers = [program.ask(line)[0] for line in self._lines(completions, references)]
        rows = [[float(number) for number in answer.split()] for answer in answers]
        for row in rows:
            whole = row[_LENGTH] == row[_WANTED] == row[_MATCHED] == row[_FOUND]
            row[_CHUNKS] = 0.0 if whole and row[_CHUNKS] == 1 else row[_CHUNKS]
        return rows

    def corpus_score(self, statistics: Sequence[float]) -> float:
        """Return the score of summed counts."""
        program = _program()
        with program.lock:
            return float(program.ask("EVAL ||| " + " ".join(map(str, statistics)), answers=2)[-1])
