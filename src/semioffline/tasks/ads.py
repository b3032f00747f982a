"""Advertisements: a SYNTHETIC task, written by the grammar in this file. There are no real products, texts or clicks.

A product record (name, category, price, feature, city) becomes one advertisement sentence. The facts must be copied.
The wording (an opener, an adjective, a closer) is free; the data draw it uniformly at random. A hidden click model
prefers different wording for each category. So supervised training learns to copy the facts and to choose words at
random, and the reward teaches which words the readers of each category click on.

Everything is lower case and separated by spaces, so that a word-level tokenizer and a model of half a million
parameters suffice: no download, and training takes seconds on a laptop.
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from semioffline.errors import UserError, unknown
from semioffline.tasks.files import load_split, split_parts
from semioffline.tasks.registry import Source, Task

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import BartForConditionalGeneration, PreTrainedTokenizerFast

SPLIT_SIZES: Mapping[str, int] = MappingProxyType({"train": 4000, "validation": 200, "test": 500})

_NAMES = """
zorvia lumora kestrin velmar quandil brixo talvene mirelo ostara fenwick jolvo norbexa pelliro savanto trivanu
ulmeka vextor wimbera xandoro yelvani zephira arkano belloni corvath dalmire elvano farrin gostari hexona imberly
jasmeno kolvani lartesa mondrix nevaro orlinde praxila questor rivanta solmari tandoro umbrelo vandria westrix
xelophi yandari zimbrel ambrisa bravado cindrel dovanti embrosa florent gravano halvora incanta jendris krystan
lumbraz morvane
"""
_FEATURES = """
waterproof foldable handmade recycled lightweight durable washable repairable vegan fair-trade non-slip two-tone
gift-boxed hand-painted award-winning made-to-order limited-edition heat-resistant fade-proof scratch-proof
shock-proof stain-proof dust-proof glow-in-the-dark
"""
_CITIES = """
oslo paris tokyo lima cairo delhi rome quito dakar seoul porto hanoi perth turin vienna athens dublin nairobi
bogota havana lisbon prague helsinki montreal
"""

FACTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "name": tuple(_NAMES.split()),
        "category": ("lamps", "shoes", "jackets", "bags", "chairs", "headphones", "mugs", "watches"),
        "price": tuple(f"${amount}" for amount in (*range(9, 100, 5), *range(109, 220, 10))[:30]),
        "feature": tuple(_FEATURES.split()),
        "city": tuple(_CITIES.split()),
    }
)
"""The values of every field. No value occurs in two fields, nor in the wording and the templates."""

WORDING: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "opener": ("discover", "meet", "grab", "try", "love", "choose", "welcome", "unwrap"),
        "adjective": ("elegant", "charming", "stylish", "brilliant", "cosy", "bold", "timeless", "playful"),
        "closer": ("order", "call", "visit", "reserve", "click", "subscribe", "hurry", "enquire"),
    }
)

TEMPLATES = (
    "{opener} {name} , the {adjective} and {feature} {category} from {city} for {price} , {closer} today !",
    "from {city} for {price} : {opener} the {adjective} {category} by {name} , {feature} , {closer} today !",
    "{opener} the {adjective} {feature} {category} by {name} , only {price} in {city} , {closer} today !",
)

BIAS = 0.10
PREFERENCES = (0.23, 0.13, 0.06, 0.03, 0.0, -0.01, -0.02, -0.02)
"""What one word adds to the click rate, from the most to the least liked. The mean is 0.05."""
SHIFTS: Mapping[str, int] = MappingProxyType({"opener": 1, "adjective": 3, "closer": 5})
"""How far a slot's preferences are shifted from one category to the next. The numbers are odd, so that in 8 categories
every word takes every rank once (a Latin square). The click rate is a sum, so any fixed wording has the same mean."""

SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


def preference(slot: str, word: str, category: str) -> float:
    """Return what `word` in `slot` adds to the click rate of an advertisement for `category`."""
    words, categories = WORDING[slot], FACTS["category"]
    if category not in categories:
        raise unknown("category", category, categories)
    rank = (words.index(word) - SHIFTS[slot] * categories.index(category)) % len(words)
    return PREFERENCES[rank]


def best_wording(category: str) -> dict[str, str]:
    """Return the opener, adjective and closer with the highest click rate for one category (what a perfect model
    writes)."""
    return {slot: max(words, key=lambda word: preference(slot, word, category)) for slot, words in WORDING.items()}


def write_prompt(record: Mapping[str, str]) -> str:
    """Write a record as the model reads it: `name : zorvia | category : lamps | price : $49 | ...`."""
    return " | ".join(f"{field} : {record[field]}" for field in FACTS)


def write_ad(record: Mapping[str, str], wording: Mapping[str, str], template: str = TEMPLATES[0]) -> str:
    """Write one advertisement sentence."""
    return template.format(**record, **wording)


def build(split_sizes: Mapping[str, int] = SPLIT_SIZES, seed: int = 0) -> "dict[str, Dataset]":
    """Write the data: columns `prompt`, `completion` and one for every fact.

    No record occurs twice, within a split or in two of them. Each split has its own random stream and `train` is
    written last, so that another training size leaves the rows of the other splits as they are.
    """
    from datasets import Dataset

    possible = prod(len(values) for values in FACTS.values())
    if min(split_sizes.values(), default=0) < 0 or sum(split_sizes.values()) > possible // 2:
        raise UserError(f"split sizes {dict(split_sizes)} must be 0 or more, and at most {possible // 2} in total.")
    taken: set[str] = set()
    splits = {}
    for split in sorted(split_sizes, key=lambda name: (name == "train", name)):
        rows = _rows(random.Random(f"ads/{seed}/{split}"), taken)
        written = [next(rows) for _ in range(split_sizes[split])]
        splits[split] = Dataset.from_dict({name: [row[name] for row in written] for name in _COLUMNS})
    return {split: splits[split] for split in split_sizes}


_COLUMNS = ("prompt", "completion", *FACTS)


def _rows(rng: random.Random, taken: set[str]) -> Iterator[dict[str, str]]:
    """Yield random rows without end, whose prompts are not in `taken`, and add the prompts to it."""
    while True:
        record = {field: rng.choice(values) for field, values in FACTS.items()}
        wording = {slot: rng.choice(words) for slot, words in WORDING.items()}
        template = rng.choice(TEMPLATES)
        prompt = write_prompt(record)
        if prompt not in taken:
            taken.add(prompt)
            yield {"prompt": prompt, "completion": write_ad(record, wording, template), **record}


def click_rate(completions: Sequence[str], category: Sequence[str], **kwargs: Any) -> list[float]:
    """Return the click rate of each completion, a reward in [0, 1]: a bias plus, for each slot, the mean preference for
    its words.

    rate = BIAS + sum over slots of the mean of preference(w, category) over the slot's words w that are present

    It sees a bag of words: neither facts nor fluency. So it can be hacked by a text that is no advertisement, only the
    liked words: watch `facts_right`, too. An advertisement with random wording gets 0.25 on average, as does any one
    wording used for all categories; the best wording per category gets 0.79.
    """
    return [_click_rate(text, kind) for text, kind in zip(completions, category, strict=True)]


def _click_rate(text: str, category: str) -> float:
    known = _preferences(category)
    rate, total, number, last = BIAS, 0.0, 0, -1
    for slot, _, value in sorted([known[word] for word in set(text.split()) if word in known]):
        if slot != last and number:
            rate, total, number = rate + total / number, 0.0, 0
        total, number, last = total + value, number + 1, slot
    return rate + total / number if number else rate


@cache
def _preferences(category: str) -> dict[str, tuple[int, int, float]]:
    """Return word -> its slot, its index there, and the preference for it. No word is in two slots."""
    return {
        word: (slot, place, preference(name, word, category))
        for slot, (name, words) in enumerate(WORDING.items())
        for place, word in enumerate(words)
    }


def best_single_wording(categories: Sequence[str]) -> float:
    """Return the highest mean click rate of a single wording used for all these records: what a model can reach without
    reading the category."""
    counts = Counter(categories)
    return max(
        sum(number * _click_rate(" ".join(words), category) for category, number in counts.items()) / len(categories)
        for words in product(*WORDING.values())
    )


def facts_right(
    completions: Sequence[str],
    name: Sequence[str],
    category: Sequence[str],
    price: Sequence[str],
    feature: Sequence[str],
    city: Sequence[str],
    **kwargs: Any,
) -> list[float]:
    """Return the share of the five facts that each completion states right.

    A fact is right when its value occurs exactly once, and no other value of the same field occurs.
    """
    records = zip(name, category, price, feature, city, strict=True)
    return [_facts_right(text, record) for text, record in zip(completions, records, strict=True)]


def _facts_right(text: str, record: tuple[str, ...]) -> float:
    words = text.split()
    right = [
        [word for word in words if word in values] == [value] for values, value in zip(_VALUES, record, strict=True)
    ]
    return sum(right) / len(right)


_VALUES = tuple(frozenset(values) for values in FACTS.values())


def vocabulary() -> list[str]:
    """Return every token that a prompt or a completion can contain, sorted, without special tokens."""
    words = {word for values in (*FACTS.values(), *WORDING.values()) for word in values}
    slots = dict.fromkeys((*FACTS, *WORDING), "")
    words.update(*(template.format(**slots).split() for template in TEMPLATES))
    words.update(write_prompt(slots).split())
    return sorted(words)


def build_tokenizer() -> "PreTrainedTokenizerFast":
    """Build a word-level tokenizer that encodes like BART's: `<s> text </s>`, special tokens at 0 to 4, mask
    included."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    ids = {token: index for index, token in enumerate((*SPECIAL_TOKENS, *vocabulary()))}
    tokenizer = Tokenizer(WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    ends = [("<s>", ids["<s>"]), ("</s>", ids["</s>"])]
    tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=ends
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        cls_token="<s>",
        pad_token="<pad>",
        eos_token="</s>",
        sep_token="</s>",
        unk_token="<unk>",
        mask_token="<mask>",
        model_input_names=["input_ids", "attention_mask"],
        model_max_length=64,
        clean_up_tokenization_spaces=False,
    )


def build_model(seed: int = 0) -> "BartForConditionalGeneration":
    """Build a BART with random weights, two layers on each side and about half a million parameters, for
    `build_tokenizer`.

    The weights depend on `seed` only; the global random state is left as it was.
    """
    import torch
    from transformers import BartConfig, BartForConditionalGeneration

    token_id = {token: index for index, token in enumerate(SPECIAL_TOKENS)}
    config = BartConfig(
        vocab_size=len(SPECIAL_TOKENS) + len(vocabulary()),
        d_model=96,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=256,
        decoder_ffn_dim=256,
        max_position_embeddings=64,
        dropout=0.0,
        init_std=0.1,  # about d_model ** -0.5; BART's own 0.02 does not learn to copy within 300 steps
        bos_token_id=token_id["<s>"],
        pad_token_id=token_id["<pad>"],
        eos_token_id=token_id["</s>"],
        decoder_start_token_id=token_id["</s>"],
        forced_eos_token_id=token_id["</s>"],
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = BartForConditionalGeneration(config)
    # As in BART. BartConfig has no such field any more, so it stands here only.
    model.generation_config.forced_bos_token_id = token_id["<s>"]
    return model


def _load(source: Source, split: str) -> "Dataset":
    if split not in SPLIT_SIZES:
        raise unknown("split", split, SPLIT_SIZES)
    if source.where(split) is not None:  # rows that were written before, with candidates for instance
        return load_split(source, split)
    rows = build(seed=source.seed)[split]
    return rows if source.limit is None else rows.select(range(min(source.limit, len(rows))))


TASK = Task(
    load=_load,
    parts=lambda source, split: None if source.where(split) is None else split_parts(source, split),
    has=lambda source, split: split in SPLIT_SIZES,
    reward="click_rate",
    metrics=("click_rate", "facts_right", "rouge"),
    settings={"max_prompt_length": 32, "max_completion_length": 32},
)
