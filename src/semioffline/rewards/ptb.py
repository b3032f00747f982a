"""Words and sentences as in the Penn Treebank: "don't" is "do n't", punctuation stands alone.

The words are those of nltk's word tokenizer. Its sentence splitter needs a model that is downloaded; ours is a rule.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

_ABBREVIATIONS = frozenset(
    """
    mr mrs ms dr prof rev hon st sen rep gov gen col lt sgt capt maj adm jr sr vs etc no inc ltd corp co dept est fig
    jan feb mar apr jun jul aug sep sept oct nov dec mt ave blvd approx al e.g i.e cf
    """.split()
)
_END = re.compile(r"""(?P<mark>[.!?]+)(?P<close>['"”’)\]]*)(?=\s+(?P<next>\S))|\n+""")


@lru_cache(maxsize=1)
def _tokenizer() -> Any:
    from nltk.tokenize.destructive import NLTKWordTokenizer  # slow to import

    return NLTKWordTokenizer()


def split_words(sentence: str, brackets: bool = False) -> list[str]:
    """The words of one sentence; with `brackets` a bracket is -LRB-, -RRB- and so on, as in the treebank's files."""
    return _tokenizer().tokenize(sentence, convert_parentheses=brackets)


def split_sentences(text: str) -> list[str]:
    """Sentences end at a new line, at a mark that stands alone, and at . ! ? before something that can begin one.

    A full stop after an abbreviation, an initial or a letter with stops inside (U.S.) ends none unless it stands alone.
    What can begin one is anything but a lower-case letter; in a text without capital letters, anything.
    """
    any_case = text == text.lower()
    sentences, start = [], 0
    for match in _END.finditer(text):
        if match["mark"] is None or _ends(text, match, any_case):
            sentences.append(text[start : match.end()].strip())
            start = match.end()
    sentences.append(text[start:].strip())
    return [sentence for sentence in sentences if sentence]


def _ends(text: str, match: re.Match[str], any_case: bool) -> bool:
    before = text[: match.start()].rsplit(maxsplit=1)[-1:] if match.start() else []
    if not before or text[match.start() - 1].isspace():
        return True  # the mark stands alone
    if match["next"].islower() and not any_case:
        return False
    word = before[0].lstrip("\"'“‘([").lower()
    if match["mark"] != ".":
        return True
    return not (word in _ABBREVIATIONS or re.fullmatch(r"[a-z](\.[a-z])*", word))
