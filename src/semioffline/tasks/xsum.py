"""XSum: a BBC article to one sentence (Narayan et al., 2018). One of the paper's four tasks."""

from semioffline.tasks.reading.corpus import Corpus
from semioffline.tasks.registry import Task

_CORPUS = Corpus(
    name="EdinburghNLP/xsum:default@refs/convert/parquet",
    prompt=("document", "article", "input"),
    completion=("summary", "target"),
    forms={"t5": "summarize: {prompt}", "decoder_only": "Article:\n{prompt}\nSummary:"},
)

TASK = Task(
    load=_CORPUS,
    has=_CORPUS.has,
    parts=_CORPUS.parts,
    reward="rouge",
    metrics=("rouge1_brio", "rouge2_brio", "rougeLsum_brio"),
    # Published: beam 8, 12 to 64 tokens. Transformers counts the start token among them, we do not.
    settings={"max_completion_length": 63, "min_new_tokens": 11, "num_beams": 8, "length_penalty": 0.6},
)
