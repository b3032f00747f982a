"""Words and sentences as in the Penn Treebank: "don't" is "do n't", punctuation stands alone.

The words are those of nltk's word tokenizer. Its sentence splitter needs a model that is downloaded; ours is a rule.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

_ABBREVIATIONS = frozenset(
    """
    mr mrs ms dr prof rev hon st sen rep gov gen col lt sgt capt maj adm jr sr vs etc inc ltd corp co dept est fig
    jan feb mar apr jun jul aug sep sept oct nov dec mt ave blvd approx
    """.split()
)
_END = re.compile(r"""(?P<mark>[.!?]+)(?P<close>['"”’)\]]*(?:\s+(?:''|-rrb-))?)(?=\s+(?P<next>\S))""")


@lru_cache(maxsize=1)
def _tokenizer() -> Any:
    from nltk.tokenize.destructive import NLTKWordTokenizer  # slow to import

    return NLTKWordTokenizer()


@lru_cache(maxsize=1 << 17)
def _split_chunk(chunk: str, brackets: bool, first: bool, last: bool) -> list[str]:
    """The tokens of a chunk between white space, inside a text. Chunks at the ends of a text are tokenised
    differently."""
    text = ("" if first else "x ") + chunk + ("" if last else " x")
    words = _tokenizer().tokenize(text, convert_parentheses=brackets)
    return words[0 if first else 1 : None if last else -1]


def split_words(sentence: str, brackets: bool = False) -> list[str]:
    """The words of one sentence; with `brackets` a bracket is -LRB-, -RRB- and so on, as in the treebank's files.

    The tokenizer is slow, and its rules do not look beyond the next space: each chunk is read once in a process.
    """
    chunks = sentence.split()
    end = len(chunks) - 1
    return [word for n, chunk in enumerate(chunks) for word in _split_chunk(chunk, brackets, n == 0, n == end)]


def split_sentences(text: str) -> list[str]:
    """Sentences end at a mark that stands alone, and at . ! ? before something that can begin one.

    A full stop after an abbreviation, an initial or a letter with stops inside (U.S.) ends none unless it stands alone.
    What can begin one is anything but a lower-case letter; in a text without capital letters, anything but after dots
    (...). A new line is white space.
    """
    text = " ".join(text.split())
    any_case = text == text.lower()
    sentences, start = [], 0
    for match in _END.finditer(text):
        if _ends(text, match, any_case):
            sentences.append(text[start : match.end()].strip())
            start = match.end()
    return [sentence for sentence in (*sentences, text[start:].strip()) if sentence]


def _ends(text: str, match: re.Match[str], any_case: bool) -> bool:
    mark, follower = match["mark"], match["next"]
    if follower.islower() and (not any_case or mark.startswith("..")):
        return False
    before = text[: match.start()]
    if mark != "." or not before or before[-1].isspace():
        return True
    word = before.split()[-1].lstrip("\"'“‘([").lower()
    if word == "no":  # No. 5
        return not follower.isdigit()
    initials = re.fullmatch(r"[a-z](\.[a-z])*", word) and word not in ("e.g", "i.e")  # as nltk's model has it
    return not (word in _ABBREVIATIONS or initials)
