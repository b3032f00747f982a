"""SAMSum: a chat dialogue to its summary (Gliwa et al., 2019). One of the paper's four tasks."""

from semioffline.tasks.reading.corpus import Corpus
from semioffline.tasks.registry import Task

_CORPUS = Corpus(
    name="knkarthick/samsum",
    prompt=("dialogue", "input"),
    completion=("summary", "target"),
    forms={"t5": "summarize: {prompt}", "decoder_only": "Dialogue:\n{prompt}\nSummary:"},
)

TASK = Task(
    load=_CORPUS,
    has=_CORPUS.has,
    parts=_CORPUS.parts,
    reward="rouge",
    metrics=("rouge1_stem", "rouge2_stem", "rougeL_stem", "rougeLsum_stem"),
    # Published: beam 6, 11 to 62 tokens. Transformers counts the start token among them, we do not.
    settings={"max_completion_length": 61, "min_new_tokens": 10, "num_beams": 6, "no_repeat_ngram_size": 3},
)
