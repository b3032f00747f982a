"""Question generation on SQuAD: a passage with its answer marked, to the question (Ushio et al., 2022).

One of the paper's four tasks. The answer stands between two `<hl>` in its paragraph, as in LMQG. Rows are LMQG's own
(paragraph_answer, question), SQuAD's on the Hub (context, question, answers), or SQuAD's original nested JSON. The mark
is text to a tokenizer that does not know it as one token; LMQG adds it to the vocabulary before training.
"""

from collections.abc import Iterator
from typing import Any

from semioffline.tasks.reading.corpus import Corpus
from semioffline.tasks.reading.formats import DataRow
from semioffline.tasks.registry import Task

MARK = "<hl>"


def highlight(context: str, answer: str, start: int) -> str:
    """Put a mark before and after the answer, which begins at character `start` of the passage."""
    before, after = context[:start].strip(), context[start + len(answer) :].strip()
    return " ".join(part for part in (before, MARK, answer.strip(), MARK, after) if part)


def unpack(row: DataRow) -> Iterator[DataRow]:
    """Yield rows with paragraph_answer and question. paragraph_answer is None if a question has no answer (SQuAD
    2.0)."""
    if "paragraph_answer" in row or not {"data", "context"} & row.keys():
        yield row
    elif "data" not in row:
        yield row | {"paragraph_answer": _mark_first(row["context"], row.get("answers"))}
    else:
        for paragraph in (paragraph for article in row["data"] for paragraph in article["paragraphs"]):
            for asked in paragraph["qas"]:
                passage = _mark_first(paragraph["context"], asked["answers"])
                yield {"id": asked["id"], "paragraph_answer": passage, "question": asked["question"]}


def _mark_first(context: str, answers: Any) -> str | None:
    """Mark the first answer in its passage. answers: [{"text", "answer_start"}, ...], or on the Hub {"text": [...],
    "answer_start": [...]}."""
    if isinstance(answers, dict):
        answers = [dict(zip(answers, values)) for values in zip(*answers.values())]
    return highlight(context, answers[0]["text"], answers[0]["answer_start"]) if answers else None


_CORPUS = Corpus(
    name="lmqg/qg_squad:qg_squad@refs/convert/parquet",
    prompt=("paragraph_answer",),
    completion=("question",),
    forms={"t5": "generate question: {prompt}", "decoder_only": "Passage: {prompt}\nQuestion:"},
    unpack=unpack,
    unpacks="context with answers",
)

TASK = Task(
    load=_CORPUS,
    has=_CORPUS.has,
    reward="bleu_rougeL",
    metrics=("lmqg_bleu4", "lmqg_rougeL", "corpus_bleu", "rougeL"),
    java_metrics=("corpus_meteor",),
    # Published: beam 4, up to 64 tokens. Transformers counts the start token among them, we do not.
    settings={"max_completion_length": 63, "num_beams": 4},
)
