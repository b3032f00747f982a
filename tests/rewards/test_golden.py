"""Every metric against the reference implementation's own output on one fixed set of pairs, to 1e-9.

Among the pairs: an empty output, single words, texts that are not ASCII, and several references.
"""

import json
import shutil
from importlib.util import find_spec

import pytest
import sacrebleu
from rouge_score.rouge_scorer import RougeScorer

from rewards.make_golden import PAIRS, PATH
from semioffline.errors import UserError
from semioffline.evaluation.statistics import corpus_value
from semioffline.rewards import meteor
from semioffline.rewards.lmqg import LmqgRougeL
from semioffline.rewards.registry import load_reward

COMPLETIONS = [text for text, _ in PAIRS]
REFERENCES = [references for _, references in PAIRS]
STORED = json.loads(PATH.read_text())
needs_meteor = pytest.mark.skipif(
    shutil.which("java") is None or find_spec("pycocoevalcap") is None, reason="METEOR needs Java and pycocoevalcap"
)
needs_coco = pytest.mark.skipif(find_spec("pycocoevalcap") is None, reason="the package pycocoevalcap is not installed")


def score(name: str) -> list[float]:
    return load_reward(name)[1](completions=COMPLETIONS, references=REFERENCES, prompts=COMPLETIONS)


def close(values: list[float]) -> object:
    return pytest.approx(values, abs=1e-9, rel=0)


@pytest.mark.parametrize("stem", [False, True])
@pytest.mark.parametrize("variant", ["rouge1", "rouge2", "rougeL", "rougeLsum"])
def test_rouge(variant, stem):
    scorer = RougeScorer([variant], use_stemmer=stem)
    expected = [scorer.score_multi(row, text)[variant].fmeasure for text, row in PAIRS]
    assert score(variant + "_stem" * stem) == close(expected)


@pytest.mark.parametrize("variant", ["rouge1", "rouge2", "rougeLsum"])
def test_rouge_by_the_protocol_of_brio(variant):
    assert score(f"{variant}_brio") == close(STORED["brio"][variant])


def test_the_reward_of_brio_is_the_mean_of_the_three():
    rows = zip(*STORED["brio"].values(), strict=True)
    assert score("rouge_brio") == close([sum(row) / 3 for row in rows])


def test_sentence_bleu():
    assert score("bleu") == close([sacrebleu.sentence_bleu(text, row).score / 100 for text, row in PAIRS])


def test_corpus_bleu():
    metric = load_reward("corpus_bleu")[1]
    most = max(map(len, REFERENCES))
    streams = [[row[n] if n < len(row) else None for row in REFERENCES] for n in range(most)]
    expected = sacrebleu.corpus_bleu(COMPLETIONS, streams)
    assert corpus_value(metric.statistics(COMPLETIONS, REFERENCES), metric.corpus_score) == close(expected.score / 100)
    assert score("corpus_bleu") == score("bleu")  # as a reward: the sentence form
    kind = f"bleu|nrefs:var|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
    assert metric.signature == f"{kind}|level:corpus|refs:all"


def test_chrf():
    assert score("chrf") == close([sacrebleu.sentence_chrf(text, row).score / 100 for text, row in PAIRS])


@needs_coco
def test_rouge_l_of_coco_and_lmqg():
    """On texts whose words stand between single spaces: there the reference implementation's words are ours."""
    from pycocoevalcap.rouge.rouge import Rouge

    texts = [" ".join(text.lower().split()) for text in COMPLETIONS]
    rows = [[" ".join(reference.lower().split()) for reference in row] for row in REFERENCES]
    expected = [Rouge().calc_score([text], row) for text, row in zip(texts, rows, strict=True)]
    assert LmqgRougeL(tokenise=False)(completions=texts, references=rows) == close(expected)


@needs_coco
def test_rouge_l_of_lmqg_reads_plain_and_tokenised_text_alike():
    from pycocoevalcap.rouge.rouge import Rouge

    plain = 'Who won (by far) the "first" race, Anna\'s?'
    tokenised = "who won -lrb- by far -rrb- the `` first '' race , anna 's ?"
    reward = load_reward("lmqg_rougeL")[1]
    assert reward(completions=[plain, tokenised], references=[[tokenised]] * 2) == [1.0, 1.0]
    reference = "who won the `` first '' race ?"
    expected = Rouge().calc_score([tokenised], [reference])
    assert reward(completions=[plain], references=[[reference]]) == close([expected])


@needs_meteor
def test_meteor_of_sentences_and_of_the_whole_set():
    """One Java process for both; completions that equal their reference are a case of their own in the program."""
    assert score("meteor") == close(STORED["meteor"]["each"])
    metric = load_reward("corpus_meteor")[1]
    assert corpus_value(metric.statistics(COMPLETIONS, REFERENCES), metric.corpus_score) == close(
        STORED["meteor"]["corpus"]
    )
    odd = metric(completions=["a ||| b\nc", "a b c"], references=[["a b\tc"], ["a |||| b c"]])
    assert odd[0] == 1.0
    assert all(0 <= value <= 1 for value in odd)


def test_meteor_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(meteor.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'semioffline\[meteor\]'"):
        load_reward("meteor")


@needs_coco
def test_meteor_says_that_java_is_missing(monkeypatch):
    monkeypatch.setattr(meteor.shutil, "which", lambda name: None)
    with pytest.raises(UserError, match="meteor needs Java: install"):
        load_reward("corpus_meteor")


def test_every_metric_signs_with_its_variant_and_version():
    for name in ("rougeL_stem", "rougeLsum_brio", "lmqg_rougeL", "bleu", "corpus_bleu", "chrf", "exact_match"):
        signature = load_reward(name)[1].signature
        assert len(signature.split("|")) >= 5, signature
        assert "|v:" in signature or "|version:" in signature, signature
