"""Words and sentences as in the treebank."""

import pytest

from rewards.make_golden import PAIRS
from semioffline.rewards.brio import prepare
from semioffline.rewards.ptb import split_sentences, split_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("I don't, really.", "I do n't , really ."),
        ('He said: "Anna\'s (old) car"', "He said : `` Anna 's ( old ) car ''"),
        ("It cost $3.50 & 10%", "It cost $ 3.50 & 10 %"),
        ("I cannot.", "I can not ."),
        ("", ""),
    ],
)
def test_words(text, words):
    assert split_words(text) == words.split()


@pytest.mark.parametrize("brackets", [False, True])
def test_words_are_those_of_nltk(brackets):
    """It is asked for every piece between white space once, and for the whole text here."""
    from nltk.tokenize.destructive import NLTKWordTokenizer

    texts = [text for pair in PAIRS for text in (pair[0], *pair[1])]
    texts += [
        "'Tis what I'm gonna do, d'ye see? \"Well, 'no' and 1,000:30 ...\" 'twas (so) [2] -- {x} end.\"",
        "a . b . c.",
    ]
    texts += ["''quoted'' ``text'' he's 'bout more'n whatcha gimme 5.", "e.g. this, i.e. that; U.S. and co.", " ' \" "]
    for text in texts:
        assert split_words(text, brackets) == NLTKWordTokenizer().tokenize(text, convert_parentheses=brackets), text


def test_brackets_as_the_treebank_writes_them():
    assert split_words("a (b) [c]", brackets=True) == ["a", "-LRB-", "b", "-RRB-", "-LSB-", "c", "-RSB-"]


@pytest.mark.parametrize(
    "sentences",
    [
        ["One.", "Two!", "Three?", "Four"],
        ["Mr. J. Smith met the U.S. envoy on Jan. 3 at St. Paul.", "It rained."],
        ['He said: "No."', "She left."],
        ["It was (almost) over...", "Then it began."],
        ["It was 3.5 percent of 10.", "Then 5."],
        ["the mayor resigned .", "she had held the office ."],
        ["all of this is lower case.", "really?", "yes."],
        ["he waited ... and waited ."],
        ["it was `` a classic . ''", "and so on ."],
        ["Visit example.com today, e.g. on foot."],
        ["one"],
    ],
)
def test_sentences(sentences):
    assert split_sentences(" ".join(sentences)) == sentences
    assert split_sentences("\n".join(sentences)) == sentences


def test_nothing_has_no_sentences():
    assert split_sentences("") == split_sentences(" \n ") == []


def test_prepared_texts_have_one_sentence_a_line():
    assert prepare(" It's Over. We Won! ") == "it 's over .\nwe won !"
