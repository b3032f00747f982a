"""CNN/DailyMail: a news article to its highlights (Hermann et al., 2015). One of the paper's four tasks."""

from semioffline.tasks.reading.corpus import Corpus
from semioffline.tasks.registry import Task

_CORPUS = Corpus(
    name="abisee/cnn_dailymail:3.0.0",
    prompt=("article", "document", "input"),
    completion=("highlights", "summary", "target"),
    forms={"t5": "summarize: {prompt}", "decoder_only": "Article:\n{prompt}\nSummary:"},
)

TASK = Task(
    load=_CORPUS,
    has=_CORPUS.has,
    parts=_CORPUS.parts,
    reward="rouge",
    metrics=("rouge1_brio", "rouge2_brio", "rougeLsum_brio"),
    # Published: beam 4, 56 to 142 tokens. Transformers counts the start token among them, we do not.
    settings={
        "max_prompt_length": 1024,
        "max_completion_length": 141,
        "min_new_tokens": 55,
        "num_beams": 4,
        "length_penalty": 2.0,
        "no_repeat_ngram_size": 3,
    },
)
