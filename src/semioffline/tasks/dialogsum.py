"""DialogSum: a spoken dialogue to its summary (Chen et al., 2021). Three summaries for each input of the test split."""

from semioffline.tasks.reading.corpus import Corpus
from semioffline.tasks.registry import Task

_CORPUS = Corpus(
    name="knkarthick/dialogsum",
    prompt=("dialogue", "input"),
    completion=("summary", "summary1", "target"),
    references=("summary2", "summary3"),
    forms={"t5": "summarize: {prompt}", "decoder_only": "Dialogue:\n{prompt}\nSummary:"},
    grouped=True,
)

TASK = Task(
    load=_CORPUS,
    has=_CORPUS.has,
    parts=_CORPUS.parts,
    reward="rouge",
    metrics=("rouge1_stem", "rouge2_stem", "rougeL_stem", "rougeLsum_stem"),
    settings={"max_completion_length": 100, "num_beams": 4, "no_repeat_ngram_size": 3},
)
