"""Explain how each word of a text changes its reward: the words that the model would write there, and the reward with
them.

One word is hidden at a time, so only that word can cause the change in reward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from semioffline.algorithm.masking import cover
from semioffline.algorithm.sampling import sampling_logits
from semioffline.algorithm.tensors import Row
from semioffline.config import MethodConfig
from semioffline.data.examples import Collator, Example, Examples, as_dataset
from semioffline.data.lengths import text_limits
from semioffline.errors import UserError
from semioffline.evaluation.decode import generate_ids
from semioffline.policy.decoding import Decoding
from semioffline.policy.policy import Policy
from semioffline.scoring.calls import reward_columns
from semioffline.scoring.reward_set import RewardSet

_NONE = "-"
"""A placeholder for a text that the model has yet to write."""


@dataclass(frozen=True)
class Alternative:
    """A word that could replace a word of the text."""

    text: str
    probability: float
    """Probability that the model writes it there, given all other words."""
    completion: str
    """The text with this word."""
    reward: float | None
    """The reward of that text; None if the reward function gave none."""
    change: float | None
    """That reward minus the reward of the original text."""


@dataclass(frozen=True)
class ExplainedWord:
    """One word of the text."""

    text: str
    probability: float
    alternatives: list[Alternative]
    """The most likely alternatives, best change first."""


@dataclass(frozen=True)
class Explanation:
    """A text, its reward, and how other words would change the reward."""

    prompt: str
    completion: str
    reward: float | None
    words: list[ExplainedWord]
    texts: int
    """Number of different texts that were scored."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class _Swap(NamedTuple):
    word: int
    ids: list[int]
    """Token ids of the whole text."""
    shown: str
    probability: float


def explain(
    model: Any,
    prompt: Any,
    completion: Any = None,
    reward: Any = None,
    *,
    references: Sequence[str] = (),
    row: dict[str, Any] | None = None,
    alternatives: int = 5,
    batch_size: int = 32,
    tokenizer: Any = None,
) -> Explanation:
    """Explain how each word of `completion` changes its reward.

    Each word is hidden in turn, the model says which words it would write there, and the text with each of them is
    scored. A model that was fine-tuned with masks (`mft`, or the result of `semioffline run`) gives sensible words.

    Args:
        model: A policy, a Hugging Face model, a name or a folder.
        prompt: A text, or messages where the model has a chat template.
        completion: The text to explain; what the model writes (greedily) when not given.
        reward: A reward function or name, or several.
        references: What the reward compares with; `completion` itself when not given.
        row: Other columns that the reward reads.
        alternatives: How many for each word.

    Example:
        ```python
        found = explain("runs/mine/semi_offline/model", "Acer laptop, 8 GB", "A cheap laptop.", my_reward)
        for word in found.words:
            print(word.text, [(other.text, other.change) for other in word.alternatives])
        ```
    """
    if reward is None:
        raise UserError("which reward? give a function or a name, such as rouge")
    policy, rewards = Policy.of(model, tokenizer), RewardSet(reward)
    limits = text_limits(policy, MethodConfig(output_dir="-", use_cpu=True))
    policy.eval()
    given = {**(row or {}), "prompt": prompt, "completion": _NONE if completion is None else completion}
    given |= {"references": list(references)} if references else {}
    if completion is None:
        made = generate_ids(policy, _read(given, policy, limits), Decoding(max_new_tokens=limits[1]), progress=False)
        [given["completion"]] = policy.tokens.decode(made)
    [example] = _read(given, policy, limits).examples
    own, swaps = _find_swaps(policy, example, alternatives, batch_size)
    ids: list[list[int]] = [example.target.ids.tolist(), *(swap.ids for swap in swaps)]
    texts = policy.tokens.decode(ids)
    values = _score(rewards, example, texts, ids)
    words = [ExplainedWord(shown, probability, []) for shown, probability in own]
    for swap, changed, value in zip(swaps, texts[1:], values[1:], strict=True):
        change = None if value is None or values[0] is None else value - values[0]
        words[swap.word].alternatives.append(Alternative(swap.shown, swap.probability, changed, value, change))
    for word in words:
        word.alternatives.sort(key=lambda one: -math.inf if one.change is None else one.change, reverse=True)
    return Explanation(str(example.columns["prompt"]), texts[0], values[0], words, len(set(texts)))


def _read(row: dict[str, Any], policy: Policy, limits: tuple[int, int]) -> Examples:
    return Examples(as_dataset([row]), policy, *limits, progress=False)


@torch.no_grad()
def _find_swaps(
    policy: Policy, example: Example, most: int, batch_size: int
) -> tuple[list[tuple[str, float]], list[_Swap]]:
    """Return each word with its probability, and the texts with another word. One forward pass over one copy of the
    text for each word, in which that word is hidden."""
    ids, words = example.target.ids.tolist(), example.target.words.tolist()
    numbers = [n for n in dict.fromkeys(words) if n >= 0]
    collate = Collator(policy.tokens.pad_id)
    own: list[tuple[str, float]] = []
    swaps: list[_Swap] = []
    for start in range(0, len(numbers), batch_size):
        chosen = numbers[start : start + batch_size]
        batch = collate([example] * len(chosen))
        text, hidden = batch.target, batch.target.words == torch.tensor(chosen)[:, None]
        shown = cover(text, hidden, policy.tokens.mask_id).ids
        [logits] = policy.predict(batch.source, [Row(shown, text.keep_mask, hidden, purpose="rl")])
        p = sampling_logits(logits, policy.allowed).softmax(1).cpu()
        for number, part in zip(chosen, p.split(hidden.sum(1).tolist()), strict=True):
            places = [at for at, word in enumerate(words) if word == number]
            swaps += _swaps_of_word(policy, len(own), ids, places, part, most)
            known = [ids[place] for place in places]
            own.append((_shown(policy, known), float(part[range(len(known)), known].prod())))
    return own, swaps


def _swaps_of_word(policy: Policy, word: int, ids: list[int], places: list[int], p: Tensor, most: int) -> list[_Swap]:
    """Return the most likely first tokens of a word, each followed by its most likely next tokens."""
    known, (rest, after) = [ids[place] for place in places], p.max(1)
    likely, tokens = p[0].topk(min(most + 1, int((p[0] > 0).sum())))
    found: list[_Swap] = []
    for first, token in zip(likely.tolist(), tokens.tolist(), strict=True):
        made = [token, *after[1:].tolist()]
        if made != known and len(found) < most:
            changed = dict(zip(places, made, strict=True))
            whole = [changed.get(n, token) for n, token in enumerate(ids)]
            found.append(_Swap(word, whole, _shown(policy, made), first * float(rest[1:].prod())))
    return found


def _shown(policy: Policy, ids: list[int]) -> str:
    return policy.tokens.decode([ids])[0]


def _score(rewards: RewardSet, example: Example, texts: list[str], ids: list[list[int]]) -> list[float | None]:
    """Return the reward of each text. Identical texts are scored once."""
    columns = {name: [value] for name, value in example.columns.items()}
    parts = rewards.call(reward_columns(columns, texts, ids, len(texts)), rows=[0] * len(texts))
    return [value if math.isfinite(value) else None for value in rewards.add(parts).tolist()]
