"""The sentences for a reader: drawn alike every time, from all three sources."""

from benchmarks.sentences import Sentence, _split, draw, of_messages


def test_the_same_seed_draws_the_same_sentences():
    drawn = draw(60, 27)
    assert drawn == draw(60, 27) != draw(60, 28)
    assert len(set(drawn)) == 60
    assert [sum(place(sentence) == kind for sentence in drawn) for kind in ("page", "code")] == [20, 40]


def place(sentence: Sentence) -> str:
    return "page" if sentence.place.endswith(".md") else "code"


def test_a_block_becomes_sentences():
    found = [text for text, _ in _split("- One is enough for all. Two are\nmore than one, as a rule. Short.", "here")]
    assert found == ["One is enough for all.", "Two are more than one, as a rule."]


def test_messages_show_where_a_value_stands():
    assert any("{...}" in text for text, _ in of_messages())
