"""Compute results of ratings: means with intervals, win rates, and agreement."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from semioffline.errors import UserError
from semioffline.evaluation.statistics import bootstrap_interval
from semioffline.report.rating import Key
from semioffline.storage.files import read_content, write_atomically
from semioffline.storage.records import Record, read_record
from semioffline.storage.untrusted import parse_json

RATINGS = "ratings.json"
_LEVELS = {"overall": (-1, 0, 1), "criteria": (1, 2, 3), "pairwise": (-1, 0, 1)}
"""protocol -> the scores that a rater may give. Pairwise: -1 for the first output, 1 for the second, 0 for neither."""


@dataclass(frozen=True)
class MeanScore(Record):
    """The mean score of a system over inputs. The score of an input is the mean over raters."""

    system: str
    criterion: str
    mean: float
    low: float
    """Lower end of the 95 % interval over inputs."""
    high: float
    inputs: int


@dataclass(frozen=True)
class WinRate(Record):
    """How often a system was preferred to another one. Ties count half."""

    system: str
    other: str
    criterion: str
    wins: int
    ties: int
    losses: int
    rate: float
    low: float
    high: float


@dataclass(frozen=True)
class Agreement(Record):
    """Krippendorff's alpha, as NLTK computes it: 1 is agreement, 0 is chance. None: there is one rater, or nothing
    varies."""

    criterion: str
    alpha: float | None


@dataclass(frozen=True)
class RatingTable(Record):
    """The results of one rating page, as stored in ratings.json."""

    id: str
    protocol: str
    raters: list[str]
    inputs: int
    ratings: int
    scores: list[MeanScore] = field(default_factory=list)
    wins: list[WinRate] = field(default_factory=list)
    agreement: list[Agreement] = field(default_factory=list)

    @property
    def title(self) -> str:
        how = {"overall": "Overall score from −1 to 1", "criteria": "Criteria from 1 to 3", "pairwise": "Preferences"}
        return how.get(self.protocol, self.protocol)

    @property
    def sentence(self) -> str:
        raters = f"{len(self.raters)} rater{'s' * (len(self.raters) != 1)}"
        return f"{raters} gave {self.ratings} ratings for {self.inputs} inputs, without knowing which model wrote what."

    def tables(self) -> list[tuple[list[str], list[list[str]], str]]:
        """Return (header, lines, caption) of each table to show."""
        found = []
        if self.scores:
            lines = [[each.system, each.criterion, f"{each.mean:.2f}", f"{each.low:.2f} to {each.high:.2f}",
                      str(each.inputs)] for each in self.scores]  # fmt: skip
            caption = "Means over inputs with 95 % bootstrap intervals."
            found.append((["model", "criterion", "mean", "95 % interval", "inputs"], lines, caption))
        if self.wins:
            lines = [_win_cells(each) for each in self.wins]
            caption = "How often the first model was preferred to, or scored above, the second; ties count half."
            header = ["models", "criterion", "wins", "ties", "losses", "win rate", "95 % interval"]
            found.append((header, lines, caption))
        if self.agreement:
            lines = [[each.criterion, "–" if each.alpha is None else f"{each.alpha:.2f}"] for each in self.agreement]
            caption = "Krippendorff's alpha over all ratings: 1 is agreement, 0 is chance."
            found.append((["criterion", "agreement"], lines, caption))
        return found


def _win_cells(each: WinRate) -> list[str]:
    counts = [str(number) for number in (each.wins, each.ties, each.losses)]
    interval = f"{each.low:.0%} to {each.high:.0%}"
    return [f"{each.system} against {each.other}", each.criterion, *counts, f"{each.rate:.0%}", interval]


@dataclass(frozen=True)
class _Tables(Record):
    """The content of ratings.json."""

    tables: list[RatingTable] = field(default_factory=list)


@dataclass(frozen=True)
class _Rating:
    rater: str
    item: int
    system: int
    """-1: a preference between the two systems of the item"""
    criterion: str
    score: float


def collect(key: Key, files: Sequence[Path]) -> RatingTable:
    """Return the results of exported files. Skipped items are left out."""
    ratings = [rating for path in files for rating in _read(path, key)]
    if not ratings:
        raise UserError("there are no ratings in these files")
    raters = list(dict.fromkeys(rating.rater for rating in ratings))
    pairwise = key.protocol == "pairwise"
    return RatingTable(
        id=key.id,
        protocol=key.protocol,
        raters=raters,
        inputs=len({key.items[rating.item].prompt for rating in ratings}),
        ratings=len(ratings),
        scores=[] if pairwise else _means(key, ratings),
        wins=_wins(key, ratings),
        agreement=[Agreement(name, _alpha(key, ratings, name, raters)) for name in key.criteria],
    )


def _read(path: Path, key: Key) -> Iterator[_Rating]:
    try:
        found = parse_json(read_content(path).decode("utf-8"))
    except (ValueError, OSError) as error:
        raise UserError(f"{path} is not a file of ratings: {error}") from error
    if not isinstance(found, dict) or not isinstance(found.get("ratings"), list):
        raise UserError(f"{path} is not a file of ratings: the button Export on the rating page writes one")
    if found.get("id") != key.id:
        raise UserError(
            f"{path} was made with another rating page: its id is {found.get('id')!r}, that of the key {key.id!r}"
        )
    rater = str(found.get("rater") or path.stem)
    for entry in found["ratings"]:
        yield _checked(entry, key, rater, path)


def _checked(entry: Any, key: Key, rater: str, path: Path) -> _Rating:
    values = entry if isinstance(entry, dict) else {}
    item, place, score = values.get("item"), values.get("output"), values.get("score")
    number = item if type(item) is int and 0 <= item < len(key.items) else None
    outputs = 0 if number is None else len(key.items[number].systems)
    fits = (type(place) is int and 0 <= place < outputs) or (key.protocol == "pairwise" and place is None)
    is_level = type(score) is int and score in _LEVELS[key.protocol]
    if number is None or not fits or not is_level or values.get("criterion") not in key.criteria:
        raise UserError(f"{path} has an answer that the rating page does not offer: {json.dumps(entry)[:200]}")
    system = -1 if key.protocol == "pairwise" else key.items[number].systems[place]  # type: ignore[index]
    return _Rating(rater, number, system, str(values["criterion"]), float(score))  # type: ignore[arg-type]


def _means(key: Key, ratings: Sequence[_Rating]) -> list[MeanScore]:
    found = []
    for criterion in key.criteria:
        for number, system in enumerate(key.systems):
            by_item: dict[int, list[float]] = {}
            for rating in ratings:
                if rating.criterion == criterion and rating.system == number:
                    by_item.setdefault(rating.item, []).append(rating.score)
            values = [float(np.mean(scores)) for scores in by_item.values()]
            if values:
                low, high = bootstrap_interval(values)
                found.append(MeanScore(system.label, criterion, float(np.mean(values)), low, high, len(values)))
    return found


def _wins(key: Key, ratings: Sequence[_Rating]) -> list[WinRate]:
    found = []
    for criterion in key.criteria:
        for one, other in combinations(range(len(key.systems)), 2):
            by_item = _comparisons(key, [rating for rating in ratings if rating.criterion == criterion], one, other)
            results = [result for item in by_item.values() for result in item]
            if results:
                rates = [float(np.mean([(result + 1) / 2 for result in item])) for item in by_item.values()]
                low, high = bootstrap_interval(rates)
                counts = (results.count(1), results.count(0), results.count(-1))
                labels = key.systems[one].label, key.systems[other].label
                found.append(WinRate(*labels, criterion, *counts, float(np.mean(rates)), low, high))
    return found


def _comparisons(key: Key, ratings: Sequence[_Rating], one: int, other: int) -> Mapping[str, list[int]]:
    """Return prompt -> for each rater, 1 where system `one` was ahead of `other`, -1 where it was behind, 0 for a
    tie."""
    found: dict[str, list[int]] = {}
    scores: dict[tuple[str, int], dict[int, float]] = {}
    for rating in ratings:
        item = key.items[rating.item]
        if rating.system >= 0:
            scores.setdefault((rating.rater, rating.item), {})[rating.system] = rating.score
        elif set(item.systems) == {one, other}:
            sign = 1 if item.systems[1] == one else -1  # a score of 1 prefers the second output
            found.setdefault(item.prompt, []).append(int(rating.score) * sign)
    for (_, number), by_system in scores.items():
        if one in by_system and other in by_system:
            ahead = by_system[one] - by_system[other]
            found.setdefault(key.items[number].prompt, []).append((ahead > 0) - (ahead < 0))
    return found


def _alpha(key: Key, ratings: Sequence[_Rating], criterion: str, raters: Sequence[str]) -> float | None:
    """Return Krippendorff's alpha over (item, output) units: of intervals, or nominal for preferences."""
    from nltk.metrics import binary_distance, interval_distance
    from nltk.metrics.agreement import AnnotationTask

    own = [rating for rating in ratings if rating.criterion == criterion]
    units = Counter((rating.item, rating.system) for rating in own)
    shared = [rating for rating in own if units[rating.item, rating.system] > 1]
    if len(raters) < 2 or len({rating.score for rating in shared}) < 2:
        return None
    distance = binary_distance if key.protocol == "pairwise" else interval_distance
    data = [(rating.rater, (rating.item, rating.system), rating.score) for rating in shared]
    return float(AnnotationTask(data, distance=distance).alpha())


def add_ratings(folder: Path, table: RatingTable) -> None:
    """Write a table to the ratings.json of a folder. It replaces an older one of the same page."""
    others = [each for each in read_ratings(folder) if each.id != table.id]
    write_atomically(folder / RATINGS, json.dumps(_Tables([*others, table]).to_json(), indent=1))


def read_ratings(folder: Path) -> list[RatingTable]:
    path = folder / RATINGS
    if not path.exists():
        return []
    return read_record(_Tables, path).tables
