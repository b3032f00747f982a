"""Tokenise columns and make batches."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Batch, Text
from semioffline.data.conversations import messages_to_text
from semioffline.data.lengths import Truncation
from semioffline.data.spans import keep_inside, load_where
from semioffline.errors import UserError, told_in_one_line, unknown
from semioffline.policy.policy import Policy
from semioffline.policy.tokens import Encoded
from semioffline.printing import track
from semioffline.tasks.reading.messages import is_blank, text_problem
from semioffline.tasks.reading.rows import LISTS, lists_problem

logger = logging.getLogger(__name__)
STATIC_TARGETS = ("ground_truth", "worst", "best", "random")
SORTED_TOGETHER = 50
"""Batches per length-sorted chunk. Larger: less padding, less shuffling."""
_OURS = ("prompt", "completion", "references", "candidates", "candidate_rewards")


@dataclass
class Tokens:
    """One tokenised text, stored compactly."""

    ids: np.ndarray
    words: np.ndarray

    @classmethod
    def of(cls, encoded: Encoded) -> Tokens:
        return cls(np.asarray(encoded.ids, dtype=np.int32), np.asarray(encoded.words, dtype=np.int32))


@dataclass
class Example:
    index: int
    source: Tokens
    target: Tokens
    static: list[Tokens]
    """The static target; several if a step chooses among the candidates."""
    columns: dict[str, object]
    """prompt, completion, references and every other column, unchanged."""
    candidates: list[Tokens] = field(default_factory=list)
    """All candidates, best first, for methods that need them."""
    candidate_rewards: list[float] = field(default_factory=list)


class Examples(torch.utils.data.Dataset):
    """A tokenised dataset. All rows are checked and tokenised at the start, so that a bad row does not stop training
    later."""

    def __init__(
        self,
        dataset: Any,
        policy: Policy,
        max_prompt_length: int,
        max_completion_length: int,
        truncation_side: str | None = None,
        static_target: str = "ground_truth",
        progress: bool = True,
        with_candidates: bool = False,
        mask_where: str | None = None,
    ):
        check_columns(dataset, static_target, with_candidates)
        self._spans = None if mask_where is None else load_where(mask_where)
        if mask_where is not None and not policy.tokens.tokenizer.is_fast:
            raise UserError(
                "mask_where needs a fast tokenizer, which maps tokens to characters: this model's tokenizer does not"
            )
        self.with_candidates = with_candidates
        side = truncation_side or ("right" if policy.is_encoder_decoder else "left")
        self.examples: list[Example] = []
        self.truncation = Truncation(of=len(dataset))
        size, all_rows = 1000, len(dataset)
        for start in track(range(0, all_rows, size), all_rows, "tokenise", progress and all_rows > size):
            rows = dataset[start : start + size]
            self.examples += self._tokenise(
                rows, start, policy, max_prompt_length, max_completion_length, side, static_target
            )
        if self.truncation.prompts or self.truncation.completions or self.truncation.candidates:
            logger.warning("%s", self.truncation)
        if mask_where is not None and not any((t.words >= 0).any() for e in self.examples for t in e.static):
            first = self.examples[0].columns["completion"]
            raise UserError(f"mask_where {mask_where!r} leaves nothing to mask in any row; the first is {first!r}")

    def _tokenise(
        self,
        rows: dict[str, list],
        start: int,
        policy: Policy,
        max_prompt: int,
        max_completion: int,
        side: str,
        static: str,
    ) -> list[Example]:
        rows = messages_to_text(rows, start, policy)
        prompts, completions = rows["prompt"], rows["completion"]
        sources = policy.tokens.encode_sources(prompts, max_prompt, side)
        targets = policy.tokens.encode_targets(completions, prompts, max_completion)
        self.truncation.add(prompts=sources, completions=targets)
        examples = []
        for i, (source, target) in enumerate(zip(sources, targets, strict=True)):
            chosen = _choose(rows, i, start + i, static)
            candidates = policy.tokens.encode_targets(chosen, [prompts[i]] * len(chosen), max_completion)
            self.truncation.add(candidates=candidates)
            _check_ids([source, target, *candidates], start + i, policy)
            columns = {name: values[i] for name, values in rows.items() if name not in _OURS}
            references = rows.get("references", [None] * len(prompts))[i] or completions[i]
            references = [references] if isinstance(references, str) else list(references)
            columns |= {"prompt": prompts[i], "completion": completions[i], "references": references}
            if self._spans is not None:
                candidates = self._restricted(chosen or [completions[i]], prompts[i], policy, max_completion)
            static_tokens = [Tokens.of(e) for e in candidates] or [Tokens.of(target)]
            ranked = _ranked(rows, i, start + i) if self.with_candidates else []
            encoded = policy.tokens.encode_targets(
                [text for _, text in ranked], [prompts[i]] * len(ranked), max_completion
            )
            _check_ids(encoded, start + i, policy)
            examples.append(
                Example(
                    start + i,
                    Tokens.of(source),
                    Tokens.of(target),
                    static_tokens,
                    columns,
                    candidates=[Tokens.of(e) for e in encoded],
                    candidate_rewards=[reward for reward, _ in ranked],
                )
            )
        return examples

    def _restricted(self, texts: list[str], prompt: str, policy: Policy, max_completion: int) -> list[Encoded]:
        """Encode static targets of which only words inside the spans of mask_where are masked."""
        encoded = policy.tokens.encode_targets(texts, [prompt] * len(texts), max_completion, with_offsets=True)
        find = self._spans or (lambda text: [(0, len(text))])
        return [keep_inside(e, text.strip(), find(text.strip())) for e, text in zip(encoded, texts, strict=True)]

    def first(self, number: int) -> Examples:
        """Return at most the first `number` examples."""
        part = Examples.__new__(Examples)
        vars(part).update(vars(self), examples=self.examples[:number])
        return part

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Example:
        return self.examples[index]


def as_dataset(rows: Any) -> Any:
    """Convert rows in any form that a user may pass to a datasets.Dataset."""
    if isinstance(rows, list):
        from datasets import Dataset

        with told_in_one_line(
            ValueError, TypeError, AttributeError, OverflowError, before="the list of rows is no table: "
        ):
            return Dataset.from_list(rows)
    if not hasattr(rows, "column_names") or not hasattr(rows, "__len__"):
        kind = type(rows).__name__
        raise UserError(f"a dataset must be a datasets.Dataset, a list of rows, or a dict of these, not {kind}")
    return rows


def check_columns(dataset: Any, static_target: str = "ground_truth", with_candidates: bool = False) -> None:
    names = dataset.column_names
    for name in ("prompt", "completion"):
        if name not in names:
            raise UserError(
                f"the data has no column '{name}' (it has: {', '.join(names)}): rename one, for instance "
                f"--columns {name}={names[0] if names else 'THEIRS'}"
            )
    for name in names:
        if name in ("prompts", "completions", "completion_ids", "self"):
            raise UserError(f"rename the column '{name}': rewards receive another argument of that name")
    if len(dataset) == 0:
        raise UserError("the dataset is empty: there is nothing to train on or evaluate")
    if static_target not in STATIC_TARGETS:
        raise unknown("static_target", static_target, STATIC_TARGETS)
    for name in ("prompt", "completion"):
        for row, text in enumerate(dataset[name]):
            if problem := text_problem(name, text):
                raise UserError(f"row {row}: {problem}")
            if name == "completion" and is_blank(text):
                raise UserError(f"row {row}: completion is {text!r}, but it must be a text that is not empty")
    lists = [name for name in LISTS if name in names]
    for row, values in enumerate(zip(*(dataset[name] for name in lists), strict=True)) if lists else ():
        one_text = {"references": [values[0]]} if lists[0] == "references" and isinstance(values[0], str) else {}
        if problem := lists_problem(dict(zip(lists, values, strict=True)) | one_text):
            raise UserError(f"row {row}: {problem}")
    both = ["candidates", "candidate_rewards"]
    needed = both if with_candidates else {"ground_truth": [], "random": both[:1]}.get(static_target, both)
    for name in needed:
        if name not in names:
            who = "the method" if with_candidates else f"static_target={static_target}"
            instead = "" if with_candidates else ", or use static_target=ground_truth"
            raise UserError(f"{who} needs the column '{name}': make it with `semioffline candidates`{instead}")


def _check_ids(texts: list[Encoded], row: int, policy: Policy) -> None:
    size, highest = (
        policy.base.get_input_embeddings().weight.shape[0],
        max((max(e.ids, default=0) for e in texts), default=0),
    )
    if highest >= size:
        raise UserError(
            f"row {row}: the tokenizer makes the token id {highest}, but the model knows {size}: use the model's own "
            "tokenizer"
        )


def _choose(rows: dict[str, list], i: int, number: int, static_target: str) -> list[str]:
    """Return the texts that may be the static target of row `number`; none means the ground truth."""
    if static_target == "ground_truth":
        return []
    if not rows["candidates"][i]:
        raise UserError(f"row {number} has no candidates, but static_target={static_target} needs at least one")
    if static_target == "random":
        return list(rows["candidates"][i])
    return [_ranked(rows, i, number)[0 if static_target == "best" else -1][1]]


def _ranked(rows: dict[str, list], i: int, number: int) -> list[tuple[float, str]]:
    """Return the candidates of row `number` with their rewards, best first."""
    candidates, rewards = rows["candidates"][i] or [], rows["candidate_rewards"][i] or []
    if not candidates:
        raise UserError(f"row {number} has no candidates: make some with `semioffline candidates`, or leave it out")
    if len(rewards) != len(candidates) or any(r is None or math.isnan(r) for r in rewards):
        raise UserError(
            f"row {number}: {len(candidates)} candidates need as many candidate_rewards, but they are {rewards}"
        )
    return sorted(zip(rewards, candidates, strict=True), key=lambda pair: -pair[0])


def pad(tokens: Sequence[Tokens], pad_id: int) -> Text:
    """Put texts of different lengths into one tensor, padded on the right."""
    length = max(len(t.ids) for t in tokens)
    ids = np.full((len(tokens), length), pad_id, dtype=np.int64)
    words = np.full((len(tokens), length), -1, dtype=np.int64)
    keep = np.zeros((len(tokens), length), dtype=bool)
    for row, t in enumerate(tokens):
        ids[row, : len(t.ids)] = t.ids
        words[row, : len(t.ids)] = t.words
        keep[row, : len(t.ids)] = True
    return Text(torch.from_numpy(ids), torch.from_numpy(keep), torch.from_numpy(words))


@dataclass
class Collator:
    """Makes a Batch of examples."""

    pad_id: int

    def __call__(self, examples: Sequence[Example]) -> Batch:
        many = max(len(e.static) for e in examples)
        static = [e.static[n % len(e.static)] for e in examples for n in range(many)]
        columns = {name: [e.columns[name] for e in examples] for name in examples[0].columns}
        candidates, rewards = self._candidates(examples)
        return Batch(
            index=torch.tensor([e.index for e in examples]),
            source=pad([e.source for e in examples], self.pad_id),
            target=pad([e.target for e in examples], self.pad_id),
            static=pad(static, self.pad_id),
            columns=columns,
            static_counts=torch.tensor([len(e.static) for e in examples]) if many > 1 else None,
            candidates=candidates,
            candidate_rewards=rewards,
        )

    def _candidates(self, examples: Sequence[Example]) -> tuple[Text, Tensor] | tuple[None, None]:
        """Return all candidates and their rewards, for methods that need them."""
        most = max(len(e.candidates) for e in examples)
        if not most:
            return None, None
        filled = [t for e in examples for t in e.candidates + e.candidates[:1] * (most - len(e.candidates))]
        rewards = [e.candidate_rewards + [math.nan] * (most - len(e.candidates)) for e in examples]
        return pad(filled, self.pad_id), torch.tensor(rewards)


class LikeLengths(Sampler[int]):
    """A sampler that puts rows of similar lengths into a batch, and shuffles the batches.

    Transformers' own sampler orders fifty batches at a time from long to short: the model then forgets how to end a
    long text while it sees short ones, and vice versa.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int):
        self.lengths, self.batch_size, self.seed = np.asarray(lengths), batch_size, seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        """Yield row numbers. The batch with the longest row comes first, so that a lack of memory shows at once;
        incomplete batches come last."""
        random = np.random.default_rng((self.seed, self.epoch))
        order = random.permutation(len(self.lengths))
        rest = order[len(order) // self.batch_size * self.batch_size :]
        parts = range(0, len(order) - len(rest), self.batch_size * SORTED_TOGETHER)
        full = order[: len(order) - len(rest)]
        grouped = [part[np.argsort(self.lengths[part])] for at in parts for part in [full[at : at + parts.step]]]
        batches = np.concatenate([full[:0], *grouped]).reshape(-1, self.batch_size)
        random.shuffle(batches)
        if len(batches):
            longest = self.lengths[batches].max(1).argmax()
            batches[[0, longest]] = batches[[longest, 0]]
        return iter([*batches.reshape(-1).tolist(), *rest.tolist()])


def pick_static(static: Text, counts: Tensor, uniforms: Tensor) -> Text:
    """Pick one static target per row: (B * n, T) -> (B, T). counts: (B,) number of targets of each row. uniforms:
    (B,)."""
    many = len(static.ids) // len(counts)
    chosen = (uniforms.to(counts.device) * counts).long()
    rows = torch.arange(len(counts), device=counts.device) * many + chosen
    return Text(static.ids[rows], static.keep_mask[rows], static.words[rows])


def choose_static(batch: Batch, randomness: Randomness) -> Text:
    """Return the batch's static targets, a random candidate for rows that have several."""
    if batch.static_counts is None:
        return batch.static
    return pick_static(batch.static, batch.static_counts, randomness.uniform("static", batch.index, [1] * len(batch)))
