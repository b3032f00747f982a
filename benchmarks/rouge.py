"""ROUGE as a reward, against the rouge_score package: one process, 16 references x 64 samples of 45 words.

A sample is its reference with 40% of the words replaced by others of a 5,000-word vocabulary, in which, as in text, few
words are frequent and most are rare and inflected. Ours is the median of several calls after the first; the first, in
which each distinct word is stemmed, is shown beside it. Seconds are of CPU time, which other work on the machine
disturbs least; both run on one core. Exits with 1 if any reward differs.

With --jobs N, two more rows: the same samples as training has them, token ids, scored by N worker processes that decode
them first. Seconds are then of the clock, for both.

    python benchmarks/rouge.py --jobs 16 --output rouge.json
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from functools import partial, reduce
from itertools import accumulate
from operator import add
from pathlib import Path
from statistics import median

import numpy as np
from rouge_score.rouge_scorer import RougeScorer

from semioffline.experiments.provenance import commit
from semioffline.rewards.rouge import Rouge
from semioffline.scoring.pool import RewardPool
from semioffline.scoring.worker import Group
from semioffline.training.run_folder import versions

CASES = [
    (("rouge1", "rouge2", "rougeL"), True, 1),
    (("rouge1", "rouge2", "rougeL"), False, 1),
    (("rougeLsum",), True, 3),
    (("rougeLsum",), False, 3),
]
"""Variants, stemmer, sentences."""
ENDINGS = ["", "", "", "s", "ed", "ing", "er", "ly", "ation", "ness", "ies", "ement"]


def make_vocabulary(rng: random.Random, size: int = 5000) -> tuple[list[str], list[float]]:
    """Pronounceable words with English endings, and cumulative weights 1 / (rank + 10): Zipf's law, flat at the top."""
    words: set[str] = set()
    while len(words) < size:
        stem = "".join(rng.choice("bcdfghklmnprstvw") + rng.choice("aeiou") for _ in range(rng.randint(1, 3)))
        words.add(stem + rng.choice("lmnrst") + rng.choice(ENDINGS))
    return sorted(words, key=lambda word: (len(word), word)), list(accumulate(1 / (rank + 10) for rank in range(size)))


def make_pairs(args: argparse.Namespace, sentences: int) -> tuple[list[str], list[str]]:
    """Completions and their references, `args.samples` for each of `args.references`."""
    rng = random.Random(args.seed)
    words, weights = make_vocabulary(rng)
    ends = {args.words * (k + 1) // sentences - 1 for k in range(sentences - 1)}

    def join(tokens: list[str]) -> str:
        return "".join(token + (".\n" if i in ends else " ") for i, token in enumerate(tokens)).strip() + "."

    completions, references = [], []
    for _ in range(args.references):
        reference = rng.choices(words, cum_weights=weights, k=args.words)
        for _ in range(args.samples):
            other = rng.choices(words, cum_weights=weights, k=args.words)
            replaced = set(rng.sample(range(args.words), round(0.4 * args.words)))
            completions.append(join([other[i] if i in replaced else word for i, word in enumerate(reference)]))
            references.append(join(reference))
    return completions, references


def timed(
    function: Callable[[], list[float]], clock: Callable[[], float] = time.process_time
) -> tuple[float, list[float]]:
    start = clock()
    values = function()
    return clock() - start, values


def compare(variants: tuple[str, ...], stem: bool, sentences: int, args: argparse.Namespace) -> dict[str, object]:
    """Time one setting with both, and compare the reward of every pair."""
    completions, references = make_pairs(args, sentences)
    scorer = RougeScorer(list(variants), use_stemmer=stem)

    def theirs() -> list[float]:
        scores = [scorer.score(r, c) for c, r in zip(completions, references, strict=True)]
        return [reduce(add, (score[v].fmeasure for v in variants)) / len(variants) for score in scores]

    reward, rows = Rouge(variants, use_stemmer=stem), [[reference] for reference in references]
    reward(completions=["warm"], references=[["up"]])  # imports nltk, as building the other scorer did
    first, values = timed(lambda: reward(completions=completions, references=rows))
    ours, baseline = [], []
    for _ in range(args.baseline_repeats):  # in turns, so that a busy machine is busy for both
        baseline.append(timed(theirs))
        ours += [timed(lambda: reward(completions=completions, references=rows))[0] for _ in range(args.repeats)]
    difference = max(abs(a - b) for a, b in zip(values, baseline[0][1], strict=True))
    seconds, reference_seconds = median(ours), median(time for time, _ in baseline)
    return {
        "reward": reward.name,
        "sentences": sentences,
        "rouge_score_s": reference_seconds,
        "first_call_s": first,
        "ours_s": seconds,
        "ratio": reference_seconds / seconds,
        "first_call_ratio": reference_seconds / first,
        "max_abs_difference": difference,
    }


def compare_jobs(stem: bool, args: argparse.Namespace) -> dict[str, object]:
    """rouge_score in this process against token ids that are decoded and scored by worker processes."""
    completions, references = make_pairs(args, 1)
    tokens = [text.replace(".", " .").split() for text in completions]
    ids = {word: number for number, word in enumerate(sorted({word for line in tokens for word in line}))}
    tokenizer = word_tokenizer(ids)
    groups, draws = [], []
    for row in range(args.references):  # as training hands them over: a text, and what was drawn at its places
        own = np.array([[ids[w] for w in line] for line in tokens[row * args.samples :][: args.samples]], np.int32)
        groups.append(Group(row, own[0], np.arange(own.shape[1]), len(own)))
        draws.append(own.T.reshape(-1))
    columns = {"references": [[references[row * args.samples]] for row in range(args.references)]}
    pool, name = RewardPool(args.jobs), "rouge_stem" if stem else "rouge"

    def score() -> list[float]:
        asked = pool.ask(tokenizer, [name], groups, columns)
        asked.send(np.concatenate(draws))
        return asked.values()[0].tolist()

    first, values = timed(score, time.perf_counter)
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=stem)

    def theirs() -> list[float]:
        scores = [scorer.score(r, c) for c, r in zip(completions, references, strict=True)]
        return [reduce(add, (score[v].fmeasure for v in score)) / 3 for score in scores]

    baseline = [timed(theirs, time.perf_counter) for _ in range(args.baseline_repeats)]
    seconds = median(timed(score, time.perf_counter)[0] for _ in range(args.repeats))
    pool.close()
    reference_seconds = median(time for time, _ in baseline)
    return {
        "reward": f"{name} x{args.jobs}",
        "sentences": 1,
        "jobs": args.jobs,
        "rouge_score_s": reference_seconds,
        "first_call_s": first,
        "ours_s": seconds,
        "ratio": reference_seconds / seconds,
        "first_call_ratio": reference_seconds / first,
        "max_abs_difference": max(abs(a - b) for a, b in zip(values, baseline[0][1], strict=True)),
    }


def word_tokenizer(ids: dict[str, int]) -> str:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    return Tokenizer(WordLevel(ids, unk_token=".")).to_str()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--references", type=int, default=16)
    parser.add_argument("--samples", type=int, default=64, help="samples per reference")
    parser.add_argument("--words", type=int, default=45, help="words per text")
    parser.add_argument("--repeats", type=int, default=15, help="timed calls of ours after each run of rouge_score")
    parser.add_argument("--baseline-repeats", type=int, default=3, help="timed runs of rouge_score; the median counts")
    parser.add_argument("--jobs", type=int, default=0, help="worker processes of two more rows; 0 leaves them out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="write the results here as JSON")
    args = parser.parse_args()

    print(f"{args.references} references x {args.samples} samples of {args.words} words")
    head = "{:<15}{:>10}{:>13}{:>12}{:>10}{:>8}{:>10}"
    print(head.format("reward", "sentences", "rouge_score", "first call", "ours", "ratio", "max diff"))
    results = []
    cases = [partial(compare, variants, stem, sentences, args) for variants, stem, sentences in CASES]
    cases += [partial(compare_jobs, stem, args) for stem in (True, False) if args.jobs]
    for case in cases:
        result = case()
        results.append(result)
        line = "{reward:<15}{sentences:>10}{rouge_score_s:>11.3f} s{first_call_s:>10.4f} s{ours_s:>8.4f} s"
        print((line + "{ratio:>7.0f}x{max_abs_difference:>10}").format(**result), flush=True)
    if args.output:
        settings = {key: value for key, value in vars(args).items() if key != "output"}
        about = {
            "command": f"python benchmarks/rouge.py --jobs {args.jobs}",
            "commit": commit(),
            "versions": versions(system=False),
        }
        result = {"kind": "rouge", "about": about, "settings": settings, "results": results}
        args.output.write_text(json.dumps(result, indent=2) + "\n")
    return int(any(result["max_abs_difference"] != 0.0 for result in results))


if __name__ == "__main__":
    sys.exit(main())
