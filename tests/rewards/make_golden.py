"""Write golden.json: what the reference implementations of METEOR 1.5 and of BRIO's ROUGE give for PAIRS.

Run it after a change of PAIRS, where Java, pycocoevalcap and nltk's sentence model are installed:

    python -c "import nltk; nltk.download('punkt_tab')"
    LC_ALL=C.UTF-8 python tests/rewards/make_golden.py

The numbers are stored because Java takes seconds to start and the sentence model is a download; the other metrics are
compared with their reference implementations while the tests run. Made with pycocoevalcap 1.2, rouge-score 0.1.2 and
nltk 3.10.4.
"""

import json
from pathlib import Path

PATH = Path(__file__).with_name("golden.json")

PAIRS: list[tuple[str, list[str]]] = [
    ("The cat sat on the mat.", ["A cat was sitting on the mat.", "The cat is on the mat."]),
    ("Hannah needs Betty's number but Amanda doesn't have it.", ["Hannah is looking for Betty's phone number."]),
    ("the american football team won their third title .", ["the football team earned its third title ."]),
    ("", ["An empty output is worth nothing."]),
    ("word", ["word"]),
    ("Word", ["words", "worldly"]),
    ("one", ["one two three four five six seven"]),
    ("the the the the the the", ["the cat is on the mat"]),
    ("mat the on sat cat the", ["the cat sat on the mat"]),
    ("Le café naïve coûte 3 €, n'est-ce pas ?", ["Le café coûte trois euros.", "Un café naïf ?"]),
    ("Die Straße führt nach München.", ["Diese Straße führt nach Köln."]),
    ("東京 は 日本 の 首都 です 。", ["日本 の 首都 は 東京 です 。"]),
    ("What is the capital of France?", ["What is the capital city of France ?", "Which city is France's capital?"]),
    ('Who won (by far) the "first" race?', ["who won the `` first '' race -lrb- by far -rrb- ?"]),
    ("It cost $3.50, i.e. 10% more, said Dr. Smith.", ["Dr. Smith said that it cost 10 % more ($3.50)."]),
    (
        "The storm hit the coast on Monday. Two towns lost power! Did anyone expect it? No.",
        ["A storm reached the coast Monday. Power failed in two towns. Nobody had expected it."],
    ),
    (
        "Mr. J. Smith met the U.S. envoy. They can't agree, he said. \"We will meet again.\" It's over.",
        ["The U.S. envoy met J. Smith. No agreement was reached. They'll meet again soon."],
    ),
    (
        "the mayor resigned on friday . she had held the office for ten years .",
        ["the mayor has resigned . she was in office for ten years . a successor is sought ."],
    ),
    ("He gonna go, but she cannot.", ["He is going to go, but she can not."]),
    ("  spaces   in  odd\tplaces ", ["spaces in odd places"]),
    ("discover discover discover discover", ["discover the elegant lamps by zorvia , order today !"]),
    ("Run, runner, running: ran!", ["The runners ran a run."]),
    ("No overlap whatsoever here", ["completely different text"]),
    ("Exactly the same sentence.", ["Something else.", "Exactly the same sentence.", "A third one."]),
]


def score_meteor() -> dict[str, object]:
    """By pycocoevalcap's own wrapper: the score of all, and of each."""
    from pycocoevalcap.meteor.meteor import Meteor

    wanted = {number: references for number, (_, references) in enumerate(PAIRS)}
    written = {number: [" ".join(text.split())] for number, (text, _) in enumerate(PAIRS)}
    corpus, each = Meteor().compute_score(wanted, written)
    return {"corpus": corpus, "each": each}


def score_brio() -> dict[str, list[float]]:
    """nltk's words in nltk's sentences, then stemmed rouge_score: the best of the references."""
    from nltk import sent_tokenize, word_tokenize
    from rouge_score.rouge_scorer import RougeScorer

    def prepare(text: str) -> str:
        return "\n".join(sent_tokenize(" ".join(word_tokenize(text.strip()))))

    scorer = RougeScorer(["rouge1", "rouge2", "rougeLsum"], use_stemmer=True)
    scores = [scorer.score_multi([prepare(r) for r in row], prepare(text)) for text, row in PAIRS]
    return {name: [score[name].fmeasure for score in scores] for name in ("rouge1", "rouge2", "rougeLsum")}


if __name__ == "__main__":
    PATH.write_text(json.dumps({"meteor": score_meteor(), "brio": score_brio()}, indent=1) + "\n")
