"""A sequence-classification model as a reward."""

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from semioffline.errors import UserError
from semioffline.rewards.model import ModelReward
from semioffline.rewards.registry import load_reward
from semioffline.scoring.reward_set import RewardSet

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


def test_a_model_without_a_head_is_refused(tokenizer, tmp_path):
    """It would be drawn at random, and be trained on."""
    build(["score"]).bert.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"has no classifier.*: it was not trained to classify"):
        load_reward(f"model:{tmp_path}")


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


# ---- options behind a question mark ----


@pytest.fixture(scope="module")
def judge(tokenizer, tmp_path_factory):
    """A factuality classifier on disk."""
    path = tmp_path_factory.mktemp("models") / "judge"
    build(["contradiction", "neutral", "entailment"]).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)


def test_a_factuality_classifier_reads_source_and_output_without_being_told(tokenizer, judge):
    reward = load_reward(f"model:{judge}")[1]
    expected = logits_one_by_one(reward.model, tokenizer, PROMPTS, COMPLETIONS).softmax(1)[:, 2]
    assert reward(prompts=PROMPTS, completions=COMPLETIONS) == pytest.approx(expected.tolist(), abs=1e-5)
    assert reward.signature.startswith("model:judge|p(entailment)|of:prompt+completion|max:16|dtype:float32|v:")


@pytest.mark.parametrize("label", ["contradiction", "Contradiction", "0"])
def test_options_choose_the_label_and_what_is_read(tokenizer, judge, label):
    reward = load_reward(f"model:{judge}?pair=false&label={label}&batch_size=2")[1]
    expected = logits_one_by_one(reward.model, tokenizer, COMPLETIONS).softmax(1)[:, 0]
    assert reward(prompts=PROMPTS, completions=COMPLETIONS) == pytest.approx(expected.tolist(), abs=1e-5)
    assert reward.batch_size == 2
    assert "p(contradiction)|of:completion" in reward.signature


def test_a_click_model_is_the_value_of_its_regression_head(tokenizer, tmp_path):
    build(["clicks"]).save_pretrained(tmp_path / "clicks")
    tokenizer.save_pretrained(tmp_path / "clicks")
    name, reward = load_reward(f"model:{tmp_path}/clicks")
    expected = logits_one_by_one(reward.model, tokenizer, COMPLETIONS)[:, 0]
    assert name == "clicks"
    assert reward(prompts=PROMPTS, completions=COMPLETIONS) == pytest.approx(expected.tolist(), abs=1e-5)
    assert "|value|of:completion|" in reward.signature
    with pytest.raises(UserError, match="one output and no labels"):
        load_reward(f"model:{tmp_path}/clicks?label=1")


def test_the_model_has_its_own_precision_also_under_autocast(judge):
    exact = load_reward(f"model:{judge}")[1]
    half = load_reward(f"model:{judge}?dtype=bfloat16")[1]
    outside = exact(PROMPTS, COMPLETIONS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert exact(PROMPTS, COMPLETIONS) == outside
    assert half.model.dtype == torch.bfloat16
    assert half(PROMPTS, COMPLETIONS) == pytest.approx(outside, abs=0.1)
    assert half(PROMPTS, COMPLETIONS) != outside


def test_the_device_of_the_policy_unless_told(judge):
    assert load_reward(f"model:{judge}?batch_size=7", device="meta")[1].model.device.type == "meta"
    assert load_reward(f"model:{judge}?device=cpu", device="meta")[1].model.device.type == "cpu"


def test_a_tokenizer_without_a_limit_still_cuts_to_the_positions_of_the_model(tokenizer):
    model = build(["score"])
    tokenizer.model_max_length, before = int(1e30), tokenizer.model_max_length
    try:
        reward = ModelReward(model, tokenizer)
        assert reward(["shoe"], ["red " * 100]) == pytest.approx(reward(["shoe"], ["red " * 14]))
    finally:
        tokenizer.model_max_length = before


def test_equal_texts_are_scored_once(tokenizer, monkeypatch):
    model, sizes = build(["score"]), []
    reward = ModelReward(model, tokenizer)
    score = reward._score
    monkeypatch.setattr(reward, "_score", lambda rows: sizes.append(len(rows)) or score(rows))
    values = reward(["x"] * 6, ["red", "blue", "red", "red", "blue", "green"])
    assert sizes == [3]
    assert values[0] == values[2] == values[3]
    assert len(set(values)) == 3


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("?lable=entailment", "unknown option in '.*' 'lable'. Did you mean 'label'"),
        ("?pair=maybe", "pair=maybe in .*: expected true or false"),
        ("?label=entailed", "unknown label of the reward model 'entailed'. Did you mean 'entailment'"),
        ("?batch_size=0", "batch_size=0 in .*: expected a whole number from 1 on"),
        ("?dtype=double", "unknown dtype .* 'double'"),
        ("?device=cuda:77", "device=cuda:77"),
    ],
)
def test_options_that_cannot_be_used_are_named(options, says, judge):
    with pytest.raises(UserError, match=says):
        load_reward(f"model:{judge}{options}")
