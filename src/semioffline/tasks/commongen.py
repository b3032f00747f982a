"""CommonGen: a few concepts to a sentence that has them all (Lin et al., 2020). Several sentences for each input."""

from semioffline.tasks.reading.corpus import Corpus, HeldOut
from semioffline.tasks.registry import Task

_CORPUS = Corpus(
    name="allenai/common_gen",
    prompt=("concepts", "input"),
    completion=("target",),
    forms={"t5": "generate a sentence with: {prompt}", "decoder_only": "Concepts: {prompt}\nSentence:"},
    grouped=True,
    held_out=HeldOut("test", of="validation", share=0.5),  # the published test split has no sentences
)

TASK = Task(
    load=_CORPUS,
    has=_CORPUS.has,
    parts=_CORPUS.parts,
    reward="rouge",
    metrics=("rouge1", "rouge2", "rougeL", "corpus_bleu", "chrf"),
    settings={"max_prompt_length": 32, "max_completion_length": 48},
)
