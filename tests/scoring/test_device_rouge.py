"""ROUGE counted from token ids is ROUGE of the texts, to the last bit. On the CPU here; marked tests on a GPU."""

import random
from typing import Any

import pytest
import torch
from test_fast_decode import CORPUS, train
from tests.cuda.test_trunk import record_function

from semioffline.algorithm.tensors import Samples, Text
from semioffline.cuda.functions import Replayed
from semioffline.rewards.rouge import Rouge
from semioffline.scoring import device_rouge
from semioffline.scoring.device_rouge import DeviceRouge, on_device
from semioffline.scoring.fast_decode import FastDecoder
from semioffline.scoring.reward_set import RewardSet
from semioffline.scoring.scorer import Scorer

KINDS = ["byte-level", "metaspace", "word-level"]
VARIANTS = ("rouge1", "rouge2", "rougeL")


def make_samples(tokenizer: Any, rng: random.Random, rows: int = 3, many: int = 6) -> Samples:
    """Corpus texts with random tokens at hidden places, words of the corpus mostly: some samples hit, some repeat."""
    texts = [tokenizer.encode(rng.choice(CORPUS)).ids[: rng.randint(1, 30)] for _ in range(rows)]
    length = max(map(len, texts))
    ids, keep = torch.zeros(rows, length, dtype=torch.long), torch.zeros(rows, length, dtype=torch.bool)
    for b, text in enumerate(texts):
        ids[b, : len(text)], keep[b, : len(text)] = torch.tensor(text), True
    hidden = (torch.rand(rows, length, generator=torch.Generator().manual_seed(rng.randrange(99))) < 0.5) & (keep)
    common, size = [i for text in CORPUS[:3] for i in tokenizer.encode(text).ids], tokenizer.get_vocab_size()
    draws = [
        [rng.choice(common) if rng.random() < 0.8 else rng.randrange(size) for _ in range(many)]
        for _ in range(int(hidden.sum()))
    ]
    return Samples(Text(ids, keep, ids), hidden, torch.tensor(draws, dtype=torch.long).view(-1, many))


def expected(tokenizer: Any, samples: Samples, references: list[list[str]], variants: Any = VARIANTS) -> torch.Tensor:
    many = samples.ids.shape[1]
    texts = FastDecoder(tokenizer).decode(samples.token_lists())
    rows = [own for own in references for _ in range(many)]
    values = Rouge(variants)(completions=texts, references=rows)
    return torch.tensor(values, dtype=torch.float64).view(len(references), -1)


def ended(tokenizer: Any, samples: Samples) -> Samples:
    """The same, where some of them end early."""
    end = tokenizer.token_to_id("<s>")
    some = torch.rand(samples.draws.shape, generator=torch.Generator().manual_seed(len(samples.draws))) < 0.1
    return Samples(samples.text, samples.hidden, samples.draws.masked_fill(some, end), end)


def build(tokenizer: Any, variants: Any = VARIANTS, device: str = "cpu", replay: Any = None) -> DeviceRouge:
    found = on_device(Rouge(variants), FastDecoder(tokenizer), torch.device(device), replay)
    assert found is not None
    return found


@pytest.mark.parametrize("replay", [None, lambda function: Replayed(function, record_function)], ids=["", "replayed"])
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_values_are_those_of_the_texts(kind: str, seed: int, ends: bool, replay: Any) -> None:
    """Several references of different lengths; halves of characters, added and special tokens among the draws."""
    tokenizer, rng = train(kind), random.Random(seed)
    rouge = build(tokenizer, replay=replay)
    seen = set()
    for _ in range(25):
        samples = make_samples(tokenizer, rng)
        samples = ended(tokenizer, samples) if ends else samples
        references = [
            [" ".join(rng.choice(CORPUS).split()[: rng.randint(0, 14)]) for _ in range(rng.randint(1, 3))]
            for _ in range(3)
        ]
        values = rouge(samples, references)
        assert values is not None
        assert torch.equal(values, expected(tokenizer, samples, references))
        seen |= set(values.flatten().tolist())
    assert len(seen) > 30


@pytest.mark.parametrize("variants", [("rouge1",), ("rouge3", "rougeL"), ("rougeL", "rouge4", "rouge2")])
def test_any_variants_in_any_order(variants: tuple[str, ...]) -> None:
    tokenizer, rng = train("byte-level"), random.Random(5)
    samples, references = make_samples(tokenizer, rng), [[CORPUS[0]], [CORPUS[2]], [CORPUS[0], CORPUS[2]]]
    values = build(tokenizer, variants)(samples, references)
    assert values is not None
    assert torch.equal(values, expected(tokenizer, samples, references, variants))


@pytest.mark.parametrize("bits", [3, 7, 62])
@pytest.mark.parametrize("words", [1, 61, 62, 63, 125])
def test_long_references_and_parts_of_a_batch(words: int, bits: int, monkeypatch: Any) -> None:
    """More words than a number has bits; and so many counts that they are compared in several goes."""
    monkeypatch.setattr(device_rouge, "BITS", bits)
    monkeypatch.setattr(device_rouge, "MOST_AT_ONCE", 1_000)
    tokenizer, rng = train("word-level"), random.Random(6)
    samples = make_samples(tokenizer, rng, many=9)
    references = [[" ".join(rng.choice(CORPUS[0].split()) for _ in range(words - b % words))] for b in range(3)]
    values = build(tokenizer)(samples, references)
    assert values is not None
    assert torch.equal(values, expected(tokenizer, samples, references))


def test_many_references() -> None:
    """As many as E2E has for one input: words and pairs of words are shared by some of them and repeated in others."""
    tokenizer, rng = train("word-level"), random.Random(10)
    samples, words = make_samples(tokenizer, rng, many=20), " ".join(CORPUS[:3]).split()
    references = [[" ".join(rng.choices(words, k=rng.randint(0, 30))) for _ in range(number)] for number in (1, 17, 43)]
    for replay in (None, lambda function: Replayed(function, record_function)):
        values = build(tokenizer, replay=replay)(samples, references)
        assert values is not None
        assert torch.equal(values, expected(tokenizer, samples, references))


def test_few_shapes_are_met_where_graphs_are_replayed() -> None:
    """Inputs with 5 to 40 references of 8 to 40 words: each shape is recorded, which takes longer than a step."""
    rng, tokenizer, shapes = random.Random(0), train("word-level"), set()

    def keep_shapes(function: Any) -> Any:
        return lambda *tensors: shapes.add(tuple(tensor.shape for tensor in tensors)) or torch.zeros(3, 6)

    rouge, words = build(tokenizer, replay=keep_shapes), " ".join(CORPUS).split()
    for _ in range(100):
        references = [
            [" ".join(rng.choices(words, k=rng.randint(8, 40))) for _ in range(rng.randint(5, 40))] for _ in range(3)
        ]
        rouge(make_samples(tokenizer, rng), references)
    assert len(shapes) < 16


def test_what_only_the_host_can_tell() -> None:
    """A word without end, or no reference."""
    tokenizer, rng = train("word-level"), random.Random(7)
    samples, rouge = make_samples(tokenizer, rng), build(tokenizer)
    assert rouge(samples, [["a"], ["b" * (device_rouge.LONGEST + 1)], ["c"]]) is None
    assert rouge(samples, [["a"], [], ["b"]]) is None
    assert rouge(samples, [["a"], ["b" * device_rouge.LONGEST], ["c"]]) is not None


def test_letters_whose_lower_case_is_in_another_alphabet() -> None:
    """The Kelvin sign is a k, the dotted capital I an i and something that ends the word."""
    tokenizer = train("word-level")
    odd = ["20\N{KELVIN SIGN}", "\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}stanbul"]
    tokenizer.add_tokens([*odd, "i", "stanbul", "20k"])
    ids = torch.tensor([[tokenizer.token_to_id(token) for token in odd]])
    whole = torch.ones(1, 2, dtype=torch.bool)
    samples = Samples(Text(ids, whole, ids), whole, ids.T.repeat(1, 2))
    for references in ([["20k i stanbul"]], [["20 k istanbul", " ".join(odd)]]):
        values = build(tokenizer)(samples, references)
        assert values is not None
        assert torch.equal(values, expected(tokenizer, samples, references))
        assert values[0, 0] == 1


def test_ids_without_a_token_are_no_text() -> None:
    """A model may have more ids than its tokenizer; logits that are not finite draw the last."""
    tokenizer, rng = train("byte-level"), random.Random(9)
    samples = make_samples(tokenizer, rng)
    beyond = Samples(samples.text, samples.hidden, torch.full_like(samples.draws, tokenizer.get_vocab_size() + 50))
    special = Samples(samples.text, samples.hidden, torch.full_like(samples.draws, tokenizer.token_to_id("<s>")))
    one, two = (build(tokenizer)(drawn, [[CORPUS[0]]] * 3) for drawn in (beyond, special))
    assert one is not None
    assert torch.equal(one, two)  # type: ignore[arg-type]


class Mine(Rouge):
    pass


@pytest.mark.parametrize(
    "reward", [Mine(), Rouge(use_stemmer=True), Rouge("rougeLsum"), Rouge(multi_reference="mean"), lambda **kwargs: []]
)
def test_rewards_that_stay_on_the_host(reward: Any) -> None:
    assert on_device(reward, FastDecoder(train("byte-level")), torch.device("cpu")) is None
    assert on_device(Rouge(), FastDecoder(train("word-piece")), torch.device("cpu")) is None


@pytest.mark.parametrize("ends", [False, True])
def test_a_scorer_gives_the_same_either_way(tiny_policy: Any, tiny_batch: Any, ends: bool) -> None:
    policy = tiny_policy("bart")
    batch = tiny_batch(policy, 4)
    hidden = batch.target.ordinary & (batch.target.words % 2 == 1)
    draws = torch.arange(int(hidden.sum()) * 5).view(-1, 5) % 90 + 20
    end = policy.tokens.eos_id if ends else None
    draws = draws if end is None else draws.masked_fill(draws % 7 == 0, end)
    samples = Samples(batch.target, hidden, draws, end)
    rewards = RewardSet(["rouge", "rougeL"], weights=[0.3, 1.7])
    here, there = (Scorer(policy, rewards, on_device=on)(samples, batch) for on in (False, True))
    assert isinstance(there.parts["rouge"], torch.Tensor)
    assert torch.equal(here.rewards, there.rewards)
    assert here.rewards.std() > 0
    assert here.texts == there.texts
    numbers = {name: float(value) for name, value in there.metrics.items() if name != "time/reward"}
    assert numbers == {name: value for name, value in here.metrics.items() if name != "time/reward"}
    mixed = Scorer(policy, RewardSet(["rouge", "click_rate"]), on_device=True)(samples, batch)
    assert not isinstance(mixed.parts["rouge"], torch.Tensor)


@pytest.mark.gpu
@pytest.mark.parametrize("replay", [None, Replayed])
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_on_a_gpu_without_waiting(kind: str, ends: bool, replay: Any) -> None:
    tokenizer, rng = train(kind), random.Random(8)
    rouge = build(tokenizer, device="cuda", replay=replay)
    for _ in range(2):
        samples = make_samples(tokenizer, rng)
        samples = ended(tokenizer, samples) if ends else samples
        references = [[CORPUS[0], CORPUS[2]], [CORPUS[2]], ["the cat"]]
        drawn = Samples(samples.text, samples.hidden, samples.draws.cuda(), samples.end_id)
        rouge(drawn, references)
        torch.cuda.set_sync_debug_mode("error")
        try:
            values = rouge(drawn, references)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert values is not None
        assert torch.equal(values.cpu(), expected(tokenizer, samples, references))
