"""ROUGE (Lin, 2004) as a reward: the numbers of the rouge_score package to the last bit, many times faster.

A text becomes a string with one character per word (words of one stem share a character). The longest common
subsequence is then a string operation in C++, and n-grams are set operations. Each distinct reference is read once per
call, each distinct pair is scored once, and each word is stemmed once per process.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache, partial, reduce
from importlib import import_module
from itertools import accumulate, chain, count, pairwise
from operator import add
from typing import Any, Literal, NamedTuple

from rapidfuzz.distance import LCSseq

from semioffline.errors import UserError, unknown
from semioffline.rewards.contract import BaseReward, check_references, package_version

VARIANTS = (*(f"rouge{n}" for n in range(1, 10)), "rougeL", "rougeLsum")
MEAN_VARIANTS = ("rouge1", "rouge2", "rougeL")
"""The three variants whose mean is called "rouge"."""
MANY = 16
"""Minimum number of completions of one reference that are counted together."""
MAX_WORDS = 1 << 17
"""Maximum number of words remembered between calls, far below the 0x110000 characters that can name them."""

# Letters and digits stay, a newline still ends a sentence, everything else separates words.
_SEPARATE = bytes(b if chr(b).isascii() and (chr(b).isalnum() or chr(b) == "\n") else ord(" ") for b in range(256))


class RougeScore(NamedTuple):
    """Precision P = hits / completion, recall R = hits / reference, and F = 2PR / (P + R)."""

    precision: float
    recall: float
    fmeasure: float


@lru_cache(maxsize=1 << 16)
def _score(hits: int, completion_total: int, reference_total: int) -> RougeScore:
    """Compute the three measures from counts, in rouge_score's order of operations. Without hits (also: without words)
    all are 0."""
    if not hits:
        return RougeScore(0.0, 0.0, 0.0)
    precision, recall = hits / completion_total, hits / reference_total
    return RougeScore(precision, recall, 2 * precision * recall / (precision + recall))


# --- words -----------------------------------------------------------------------------------------------------------


class _Vocabulary(dict[bytes, str]):
    """Word -> the character that stands for its stem, made when a word is first looked up.

    `setdefault` and `next` are each one step under the interpreter's lock: two threads never give one character to two
    stems. Porter's rules leave at least one letter of a word of more than three, so no stem is empty.
    """

    def __init__(self, use_stemmer: bool) -> None:
        super().__init__()
        self._stem = _porter() if use_stemmer else None
        self._symbols: dict[str, str] = {}
        self._numbers = count()

    @property
    def has_stems(self) -> bool:
        return self._stem is not None

    def __missing__(self, word: bytes) -> str:
        stem = word.decode()
        if self._stem and len(stem) > 3:
            stem = self._stem(stem)
        self[word] = symbol = self._symbols.setdefault(stem, chr(next(self._numbers)))
        return symbol


@lru_cache(maxsize=1)
def _porter() -> Callable[[str], str]:
    """Return the stemmer of rouge_score, nltk's Porter in its default mode. It is imported here because importing nltk
    is slow."""
    stem: Callable[[str], str] = import_module("nltk.stem.porter").PorterStemmer().stem
    return stem


_vocabularies: dict[bool, _Vocabulary] = {}


def _vocabulary(use_stemmer: bool) -> _Vocabulary:
    """Return the process's vocabulary, or a new one once it is full (calls in other threads keep the one they hold)."""
    vocabulary = _vocabularies.get(use_stemmer)
    if vocabulary is None or len(vocabulary) > MAX_WORDS:
        vocabulary = _vocabularies[use_stemmer] = _Vocabulary(use_stemmer)
    return vocabulary


# --- texts -----------------------------------------------------------------------------------------------------------


class _Text:
    """A tokenised text: one symbol per word, as a list and as a string.

    Words are the runs of [a-z0-9] in the lower-cased text. Lower-casing comes before the restriction to ASCII because
    some letters outside it have their lower case inside (the Kelvin sign becomes k).
    """

    def __init__(self, text: str, vocabulary: _Vocabulary) -> None:
        self._bytes = text.lower().encode("ascii", "replace").translate(_SEPARATE)
        self.symbols = list(map(vocabulary.__getitem__, self._bytes.split()))
        self.line = "".join(self.symbols)

    @cached_property
    def sentences(self) -> list[str]:
        """The lines that contain words. rouge_score keeps lines without words too, but they cannot match."""
        ends = accumulate(len(line.split()) for line in self._bytes.split(b"\n"))
        return [self.line[a:b] for a, b in pairwise([0, *ends]) if a < b]

    @cached_property
    def places(self) -> "_Places":
        return _Places(self.sentences)


_Scorer = Callable[[_Text], RougeScore]
"""Scores completions against one reference, whose part of the work is done."""


# --- n-grams ---------------------------------------------------------------------------------------------------------


def _iterate_grams(symbols: list[str], n: int) -> Iterable[Any]:
    if n == 1:
        return symbols
    if n == 2:  # the same as below, but faster, and much used
        return pairwise(symbols)
    return zip(*[symbols[i:] for i in range(n)], strict=False)


def _find_repeated(grams: list[Any]) -> list[tuple[Any, int]]:
    return [(gram, number) for gram, number in Counter(grams).items() if number > 1]


def _rouge_n(reference: _Text, n: int) -> _Scorer:
    """Make a scorer of ROUGE-N: hits = sum over n-grams g of min(count of g in completion, count of g in reference)."""
    wanted = list(_iterate_grams(reference.symbols, n))
    shared, repeated, total = frozenset(wanted).intersection, _find_repeated(wanted), len(wanted)

    def score(completion: _Text) -> RougeScore:
        hits = len(shared(_iterate_grams(completion.symbols, n)))  # each n-gram once
        if repeated:
            grams = completion.line if n == 1 else list(_iterate_grams(completion.symbols, n))
            for gram, number in repeated:
                found = grams.count(gram)
                if found > 1:
                    hits += min(found, number) - 1
        return _score(hits, len(completion.line) - n + 1, total)

    return score


# --- longest common subsequences -------------------------------------------------------------------------------------


def _rouge_l(reference: _Text) -> _Scorer:
    """Make a scorer of ROUGE-L: hits = length of the longest common subsequence of words."""
    line, similarity = reference.line, LCSseq.similarity
    return lambda completion: _score(similarity(line, completion.line), len(completion.line), len(line))


def _rouge_lsum(reference: _Text) -> _Scorer:
    """Make a scorer of ROUGE-Lsum: hits = words of the union, over completion sentences, of one LCS with each reference
    sentence, where no word counts more often than the completion has it."""
    rouge_l = _rouge_l(reference)
    repeated = [symbol for symbol, _ in _find_repeated(reference.symbols)]

    def score(completion: _Text) -> RougeScore:
        if len(completion.sentences) <= 1 and len(reference.sentences) <= 1:
            # The union is then one LCS: a subsequence of the completion, so it has no word more often than the
            # completion does and none is clipped. hits is its length, whichever LCS was chosen: ROUGE-L.
            return rouge_l(completion)
        places = completion.places
        union = [symbol for sentence in reference.sentences for symbol in _union_lcs(sentence, places)]
        hits = len(union)
        # rouge_score walks the union and counts a word while both texts have it left. The union has a word at most as
        # often as the reference, so it counts min(times in union, times in completion), in any order. The completion
        # has each word of the union at least once, so only words that the reference repeats can be too many.
        for symbol in repeated:
            hits -= max(union.count(symbol) - completion.line.count(symbol), 0)
        return _score(hits, len(completion.line), len(reference.line))

    return score


class _Places:
    """The positions of each word in the completion, as bits of one integer: sentence after sentence, with a 0 bit after
    each."""

    __slots__ = ("everywhere", "fields", "masks")

    def __init__(self, sentences: list[str]) -> None:
        self.masks: dict[str, int] = {}
        self.fields: list[int] = []
        bit = 1
        for sentence in sentences:
            first = bit
            for symbol in sentence:
                self.masks[symbol] = self.masks.get(symbol, 0) | bit
                bit <<= 1
            self.fields.append(bit - first)
            bit <<= 1
        self.everywhere = sum(self.fields)


_Row = tuple[int, int, int]
"""A word of a reference sentence that the completion has: its index, its places there, the gains of the row before."""


def _union_lcs(sentence: str, places: _Places) -> list[str]:
    """Return the words of `sentence` (of the reference) that are in its LCS with any of the completion's sentences.

    Let t[i][j] be the LCS length of the first i words of one sentence and the first j of the other. Row i is kept as
    its gains: bit j is set where t[i][j+1] = t[i][j] + 1, so t[i][j] is the number of gains below bit j. One addition
    makes a row from the row before (Crochemore et al., 2001; `open` is the complement of the gains), for all sentences
    of the completion at once: the 0 bit between them swallows the carry.
    """
    everywhere = places.everywhere
    rows: list[_Row] = []
    open_ = everywhere
    for index, symbol in enumerate(sentence):
        matches = places.masks.get(symbol)
        if matches is not None:  # without a match the row equals the one before
            rows.append((index, matches, everywhere ^ open_))
            hit = open_ & matches
            open_ = ((open_ + hit) | (open_ - hit)) & everywhere
    rows.reverse()
    gains = everywhere ^ open_
    taken: set[int] = set()
    for field in places.fields:
        _trace(rows, field, (gains & field).bit_count(), taken)
    return [sentence[index] for index in taken]


def _trace(rows: list[_Row], window: int, length: int, taken: set[int]) -> None:
    """Add to `taken` the LCS that rouge_score reads from its table of `rows` (last first) and columns (`window`).

    rouge_score goes back from the last cell: on equal words it takes the word and goes up and left; otherwise it goes
    left if t[i][j-1] > t[i-1][j], else up. So one row is one step. Let `window` be the first j columns and `length`
    t[i][j]. If the word matches in column j, it is taken. Suppose that the word does not match in column j. Then
    t[i][j] = max(t[i][j-1], t[i-1][j]). rouge_score goes left only if t[i-1][j] < length. In that case t[i][j-1] =
    length and t[i-1][j-1] < length, so it continues left until the word matches. It takes this match: the last one in
    the window. Otherwise it goes up.
    """
    for index, places, above in rows:
        if not length:
            return
        matches = places & window
        if matches:
            column = matches.bit_length()
            if column == window.bit_length() or (above & window).bit_count() < length:
                taken.add(index)
                window &= (1 << (column - 1)) - 1
                length -= 1


# --- the interface ---------------------------------------------------------------------------------------------------


def _scorer_factory(variant: str) -> Callable[[_Text], _Scorer]:
    if variant not in VARIANTS:
        raise unknown("ROUGE variant", variant, VARIANTS)
    if variant == "rougeL":
        return _rouge_l
    return _rouge_lsum if variant == "rougeLsum" else partial(_rouge_n, n=int(variant[5:]))


def score_pairs(
    completions: Sequence[str],
    references: Sequence[str],
    variants: Sequence[str] = MEAN_VARIANTS,
    use_stemmer: bool = False,
) -> dict[str, list[RougeScore]]:
    """Score completions[i] against references[i], for each variant. Sentences (for rougeLsum) end with a newline."""
    factories = [_scorer_factory(variant) for variant in variants]
    if len(completions) != len(references):
        raise UserError(f"{len(completions)} completions but {len(references)} references: give one for each.")
    vocabulary = _vocabulary(use_stemmer)
    scorers: dict[str, list[_Scorer]] = {}
    scored: dict[tuple[str, str], list[RougeScore]] = {}
    rows = []
    previous = None
    for pair in zip(completions, references, strict=True):
        row = scored.get(pair)
        if row is None:
            completion, reference = pair
            if len(vocabulary) > MAX_WORDS:  # symbols of two vocabularies must not meet
                vocabulary, scorers, previous = _vocabulary(use_stemmer), {}, None
            if reference not in scorers:
                text = _Text(reference, vocabulary)
                scorers[reference] = [make(text) for make in factories]
            if completion != previous:  # a completion with several references is read once
                read, previous = _Text(completion, vocabulary), completion
            row = scored[pair] = [score(read) for score in scorers[reference]]
        rows.append(row)
    return {variant: [row[k] for row in rows] for k, variant in enumerate(variants)}


def covers(variant: str) -> bool:
    """Return whether `rouge_batch` supports a variant: n-grams up to 4, and ROUGE-L."""
    return variant == "rougeL" or variant in ("rouge1", "rouge2", "rouge3", "rouge4")


class Rouge(BaseReward):
    """The mean of the F-measures of `variants`.

    With several references, "best" takes for each variant the reference with the highest F-measure, as rouge_score's
    `score_multi` does (so variants may take different ones); "mean" takes for each variant the mean F-measure over the
    references.
    """

    def __init__(
        self,
        variants: Sequence[str] = MEAN_VARIANTS,
        use_stemmer: bool = False,
        multi_reference: Literal["best", "mean"] = "best",
    ) -> None:
        self.variants = (variants,) if isinstance(variants, str) else tuple(variants)
        if not self.variants or len(set(self.variants)) < len(self.variants):
            raise UserError(f"variants is {self.variants}: give one or more, each once, of {', '.join(VARIANTS)}.")
        for variant in self.variants:
            _scorer_factory(variant)
        if multi_reference not in ("best", "mean"):
            raise unknown("multi_reference", multi_reference, ("best", "mean"))
        self.use_stemmer = use_stemmer
        self.multi_reference = multi_reference

    @property
    def name(self) -> str:
        name = "rouge" if self.variants == MEAN_VARIANTS else "+".join(self.variants)
        return name + "_stem" * self.use_stemmer

    @property
    def signature(self) -> str:
        """A text that identifies the number in results. Variants joined by + are averaged."""
        stem = "yes" if self.use_stemmer else "no"
        refs = f"refs:{self.multi_reference}"
        return f"{'+'.join(self.variants)}|f1|stem:{stem}|{refs}|tok:rouge-score|v:{package_version()}"

    def __call__(self, completions: list[str], references: list[list[str]], **kwargs: Any) -> list[float]:
        check_references(completions, references)
        repeated = [c for c, row in zip(completions, references, strict=True) for _ in row]
        flat = [reference for row in references for reference in row]
        first, *others = (self._merge(values, references) for values in self._measure(repeated, flat))
        for values in others:
            first = list(map(add, first, values))
        return [total / len(self.variants) for total in first]

    def _measure(self, completions: list[str], references: list[str]) -> list[list[float]]:
        """Return for each variant the F-measures of all pairs. References with many completions are counted
        together."""
        places: dict[str, list[int]] = {}
        for at, reference in enumerate(references):
            places.setdefault(reference, []).append(at)
        together = {r: own for r, own in places.items() if len(own) >= MANY and all(map(covers, self.variants))}
        rest = [at for reference, own in places.items() if reference not in together for at in own]
        found: list[list[float]] = [[0.0] * len(references) for _ in self.variants]
        if together:
            from semioffline.rewards.rouge_batch import RougeBatch  # with numpy, which single pairs do not need

            texts = [[completions[at] for at in own] for own in together.values()]
            batch = RougeBatch.of_texts(list(together), texts, _vocabulary(self.use_stemmer))
            order = [*chain(*together.values())]
            for column, variant in zip(found, self.variants, strict=True):
                for at, value in zip(order, batch.f_measures(variant).tolist(), strict=True):
                    column[at] = value
        pairs = [completions[at] for at in rest], [references[at] for at in rest]
        scores = score_pairs(*pairs, self.variants, self.use_stemmer)
        for column, variant in zip(found, self.variants, strict=True):
            for at, score in zip(rest, scores[variant], strict=True):
                column[at] = score.fmeasure
        return found

    def _merge(self, values: list[float], references: list[list[str]]) -> list[float]:
        """Return one value per completion from one value per reference."""
        if len(values) == len(references):
            return values
        left = iter(values)
        groups = ([next(left) for _ in row] for row in references)
        return [max(group) if self.multi_reference == "best" else _mean(group) for group in groups]


def _mean(values: Sequence[float]) -> float:
    """Return the mean, added one by one, because `sum` rounds differently from Python 3.12 on."""
    return reduce(add, values) / len(values)
