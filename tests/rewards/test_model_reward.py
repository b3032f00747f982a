"""A sequence-classification model as a reward."""

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from semioffline.errors import UserError
from semioffline.rewards import load_reward
from semioffline.rewards.model import ModelReward
from semioffline.scoring import RewardSet

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "red", "green", "blue", "shoe", "lamp"]
PROMPTS = ["shoe", "lamp lamp", "red lamp", "blue"]
COMPLETIONS = ["red shoe", "green", "", "blue blue blue lamp"]


@pytest.fixture(scope="module")
def tokenizer():
    ids = {word: number for number, word in enumerate(WORDS)}
    backend = Tokenizer(WordLevel(ids, unk_token="[UNK]"))
    backend.pre_tokenizer = WhitespaceSplit()
    backend.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", model_max_length=16)


def build(labels: list[str]):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        initializer_range=0.5,
        id2label=dict(enumerate(labels)),
        label2id={name: number for number, name in enumerate(labels)},
    )
    return BertForSequenceClassification(config).eval()


def logits_one_by_one(model, tokenizer, *columns):
    """The bare model on each text alone: no padding, no batches."""
    with torch.no_grad():
        rows = [
            model(**tokenizer(*([text] for text in texts), return_tensors="pt")).logits[0]
            for texts in zip(*columns, strict=True)
        ]
    return torch.stack(rows)


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_one_output_is_the_reward_itself(tokenizer, batch_size):
    model = build(["score"])
    reward = ModelReward(model, tokenizer, batch_size=batch_size)
    expected = logits_one_by_one(model, tokenizer, COMPLETIONS)[:, 0]
    assert reward(prompts=PROMPTS, completions=COMPLETIONS) == pytest.approx(expected.tolist(), abs=1e-5)
    assert len({round(x, 3) for x in expected.tolist()}) == 4


def test_three_labels_give_the_probability_of_the_last(tokenizer):
    model = build(["bad", "fair", "good"])
    expected = logits_one_by_one(model, tokenizer, COMPLETIONS).softmax(1)
    assert ModelReward(model, tokenizer)(PROMPTS, COMPLETIONS) == pytest.approx(expected[:, 2].tolist(), abs=1e-5)


def test_a_label_can_be_chosen(tokenizer):
    model = build(["bad", "fair", "good"])
    expected = logits_one_by_one(model, tokenizer, COMPLETIONS).softmax(1)
    chosen = ModelReward(model, tokenizer, label="Bad")
    assert chosen(PROMPTS, COMPLETIONS) == pytest.approx(expected[:, 0].tolist(), abs=1e-5)


def test_an_entailment_model_reads_prompt_and_completion_and_gives_entailment(tokenizer):
    model = build(["ENTAILMENT", "neutral", "contradiction"])
    expected = logits_one_by_one(model, tokenizer, PROMPTS, COMPLETIONS).softmax(1)
    reward = ModelReward(model, tokenizer)
    assert reward(PROMPTS, COMPLETIONS) == pytest.approx(expected[:, 0].tolist(), abs=1e-5)
    assert reward(PROMPTS[::-1], COMPLETIONS) != pytest.approx(expected[:, 0].tolist(), abs=1e-3)


def test_a_model_without_entailment_does_not_see_the_prompt_unless_asked(tokenizer):
    model = build(["score"])
    alone = ModelReward(model, tokenizer)
    assert alone(PROMPTS, COMPLETIONS) == alone(PROMPTS[::-1], COMPLETIONS)
    both = ModelReward(model, tokenizer, pair=True)
    expected = logits_one_by_one(model, tokenizer, PROMPTS, COMPLETIONS)[:, 0]
    assert both(PROMPTS, COMPLETIONS) == pytest.approx(expected.tolist(), abs=1e-5)


def test_long_texts_are_cut_to_what_the_model_takes(tokenizer):
    reward = ModelReward(build(["score"]), tokenizer)
    assert reward(["shoe"], ["red " * 100]) == pytest.approx(reward(["shoe"], ["red " * 14]))


def test_the_reward_model_is_frozen_and_out_of_training_mode(tokenizer):
    model = build(["score"]).train()
    ModelReward(model, tokenizer)
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_no_samples_give_no_rewards(tokenizer):
    assert ModelReward(build(["score"]), tokenizer)([], []) == []


def test_an_unknown_label_is_refused_with_those_there_are(tokenizer):
    with pytest.raises(UserError, match=r"Did you mean 'good'.*bad, fair, good"):
        ModelReward(build(["bad", "fair", "good"]), tokenizer, label="goood")


def test_a_model_without_its_tokenizer_is_refused():
    with pytest.raises(UserError, match="reward_processing_classes"):
        RewardSet(build(["score"]))


def test_models_and_functions_mix_each_with_its_own_tokenizer(tokenizer):
    model = build(["score"])
    sums, parts = RewardSet(["length", model], weights=[1.0, 2.0], processing_classes=[None, tokenizer])(
        {"prompts": PROMPTS, "completions": COMPLETIONS}
    )
    expected = logits_one_by_one(model, tokenizer, COMPLETIONS)[:, 0].tolist()
    assert list(parts) == ["length", "BertForSequenceClassification"]
    assert sums == pytest.approx([n + 2 * e for n, e in zip([2, 1, 0, 4], expected, strict=True)], abs=1e-5)


def test_a_model_is_loaded_from_a_folder(tokenizer, tmp_path):
    model = build(["bad", "fair", "good"])
    model.save_pretrained(tmp_path / "judge")
    tokenizer.save_pretrained(tmp_path / "judge")
    name, reward = load_reward(f"model:{tmp_path}/judge")
    assert name == "judge"
    assert reward(PROMPTS, COMPLETIONS) == pytest.approx(ModelReward(model, tokenizer)(PROMPTS, COMPLETIONS), abs=1e-5)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match=r"cannot load the reward model '.*nowhere'"):
        load_reward(f"model:{tmp_path}/nowhere")
