"""SciTLDR: the abstract of a paper to one sentence (Cachola et al., 2020). Several references for some inputs."""

from semioffline.tasks.reading.corpus import Corpus
from semioffline.tasks.registry import Task

_CORPUS = Corpus(
    name="allenai/scitldr:Abstract@refs/convert/parquet",
    prompt=("source", "input"),
    completion=("target",),
    forms={"t5": "summarize: {prompt}", "decoder_only": "Abstract:\n{prompt}\nTL;DR:"},
)

TASK = Task(
    load=_CORPUS,
    has=_CORPUS.has,
    parts=_CORPUS.parts,
    reward="rouge",
    metrics=("rouge1_stem", "rouge2_stem", "rougeL_stem"),
    settings={"max_completion_length": 64, "num_beams": 4, "no_repeat_ngram_size": 3},
)
