"""Split text into words and sentences as in the Penn Treebank: "don't" becomes "do n't", punctuation is separate.

The words are those of nltk's word tokenizer. nltk's sentence splitter needs a model that must be downloaded; we use a
rule.
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
    """Return the tokens of a chunk between white space, inside a text. Chunks at the ends of a text are tokenised
    differently."""
    text = ("" if first else "x ") + chunk + ("" if last else " x")
    words = _tokenizer().tokenize(text, convert_parentheses=brackets)
    return words[0 if first else 1 : None if last else -1]


def split_words(sentence: str, brackets: bool = False) -> list[str]:
    """Return the words of one sentence. brackets: a bracket becomes -LRB-, -RRB- and so on, as in the treebank's files.

    The tokenizer is slow, and its rules do not look beyond the next space: each chunk is tokenised once in a process.
    """
    chunks = sentence.split()
    end = len(chunks) - 1
    return [word for n, chunk in enumerate(chunks) for word in _split_chunk(chunk, brackets, n == 0, n == end)]


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences. A sentence ends at a separate mark, and at . ! ? before something that can begin a
    sentence.

    A full stop after an abbreviation, an initial or a letter with stops inside (U.S.) ends no sentence unless it is
    separate. Anything but a lower-case letter can begin a sentence; in a text without capital letters, anything can,
    except after dots (...). A new line is white space.
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
