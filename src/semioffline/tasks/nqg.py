"""Question generation from a sentence, without its answer (Du et al., 2017): lower case, tokenised, SQuAD sentences."""

from semioffline.tasks.reading.corpus import Corpus, HeldOut
from semioffline.tasks.registry import Task

_CORPUS = Corpus(
    name=None,  # it is published as text files: bring them as input and target
    prompt=("sentence", "input"),
    completion=("question", "target"),
    forms={"t5": "generate question: {prompt}", "decoder_only": "Sentence: {prompt}\nQuestion:"},
    grouped=True,
    held_out=HeldOut("validation", of="train", share=0.1),
)

TASK = Task(
    load=_CORPUS,
    has=_CORPUS.has,
    parts=_CORPUS.parts,
    reward="bleu_rougeL",
    metrics=("corpus_bleu", "lmqg_rougeL", "rougeL"),
    settings={"max_prompt_length": 128, "max_completion_length": 48, "num_beams": 4},
)
