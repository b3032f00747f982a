"""E2E: facts about a restaurant to a description (Novikova et al., 2017). Several descriptions for each input."""

from semioffline.tasks.reading.corpus import Corpus
from semioffline.tasks.registry import Task

_CORPUS = Corpus(
    name="tuetschek/e2e_nlg:default@refs/convert/parquet",
    prompt=("meaning_representation", "mr", "input"),
    completion=("human_reference", "ref", "target"),
    forms={"t5": "describe the restaurant: {prompt}", "decoder_only": "Facts: {prompt}\nDescription:"},
    grouped=True,
)

TASK = Task(
    load=_CORPUS,
    has=_CORPUS.has,
    parts=_CORPUS.parts,
    reward="rouge",
    metrics=("rouge1", "rouge2", "rougeL", "corpus_bleu", "chrf"),
    settings={"max_prompt_length": 128, "max_completion_length": 96},
)
