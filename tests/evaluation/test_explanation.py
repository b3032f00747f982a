"""What each word of a text does for its reward, against loops that change one word at a time."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integration.toy import WITH_T5, build_model, build_rows, build_tokenizer, save_model

import semioffline
from semioffline.algorithm.tensors import Row, Text
from semioffline.cli import main
from semioffline.data.examples import Collator, Examples
from semioffline.errors import UserError
from semioffline.policy.policy import Policy


def count_letters(completions: list[str], **columns: Any) -> list[float]:
    return [float(len(text)) for text in completions]


@pytest.fixture(params=WITH_T5)
def policy(request: pytest.FixtureRequest) -> Policy:
    return Policy(build_model(request.param).eval(), build_tokenizer(request.param))


def first_row() -> dict[str, Any]:
    return dict(build_rows(1)[0])


def test_each_word_is_predicted_from_all_others(policy: Policy) -> None:
    row = first_row()
    found = semioffline.explain(policy, row["prompt"], row["completion"], count_letters, alternatives=10**4)
    batch = Collator(policy.tokens.pad_id)(Examples(build_rows(1), policy, 64, 32, progress=False).examples)
    text, places = batch.target, batch.target.ordinary[0].nonzero().flatten().tolist()
    assert len(found.words) == len(places) > 3
    for place, word in zip(places, found.words, strict=True):
        masked, wanted = text.ids.clone(), torch.zeros_like(text.keep_mask)
        masked[0, place], wanted[0, place] = policy.tokens.mask_id, True
        with torch.no_grad():
            [logits] = policy.predict(batch.source, [Row(masked, text.keep_mask, wanted)])
        p = logits[0].masked_fill(~policy.allowed, -torch.inf).softmax(0)
        own = text.ids[0, place]
        assert word.probability == pytest.approx(float(p[own]), rel=1e-4)
        assert word.text == policy.tokens.decode([[int(own)]])[0]
        assert len(word.alternatives) == int(policy.allowed.sum()) - 1
        assert word.probability + sum(other.probability for other in word.alternatives) == pytest.approx(1, abs=1e-4)


def test_a_change_is_the_difference_of_two_rewards(policy: Policy) -> None:
    row = first_row()
    found = semioffline.explain(policy, row["prompt"], row["completion"], count_letters, alternatives=3, batch_size=2)
    assert found.reward == len(found.completion)
    words = found.completion.split()
    assert [word.text for word in found.words] == words
    for n, word in enumerate(found.words):
        changes = [other.change for other in word.alternatives]
        assert changes == sorted(changes, key=float, reverse=True)
        for other in word.alternatives:
            assert other.completion.split() == [*words[:n], *other.text.split(), *words[n + 1 :]]
            assert other.reward == len(other.completion) == found.reward + other.change
    assert found.texts == len({other.completion for word in found.words for other in word.alternatives}) + 1


def test_the_model_writes_what_is_not_given(policy: Policy) -> None:
    row = first_row()
    found = semioffline.explain(policy, row["prompt"], reward=count_letters, row=row)
    source = Collator(policy.tokens.pad_id)(Examples(build_rows(1), policy, 64, 32, progress=False).examples).source
    assert isinstance(source, Text)
    again = semioffline.explain(policy, row["prompt"], found.completion, count_letters)
    assert again.completion == found.completion
    assert found.words


def test_a_text_without_reward_has_no_changes(policy: Policy) -> None:
    def judge(completions: list[str], **columns: Any) -> list[float | None]:
        return [None if n % 2 else 1.0 for n in range(len(completions))]

    row = first_row()
    found = semioffline.explain(policy, row["prompt"], row["completion"], judge, alternatives=2)
    changes = {other.change for word in found.words for other in word.alternatives}
    assert changes == {None, 0.0}
    with pytest.raises(UserError, match="which reward"):
        semioffline.explain(policy, row["prompt"], row["completion"])


def test_the_command_prints_one_line_for_each_word(tmp_path: Path, capsys: Any) -> None:
    model, row = str(save_model(tmp_path / "bart")), first_row()
    flags = ["explain", "--model", model, "--reward", "rouge1", "--device", "cpu", "--alternatives", "2"]
    assert main([*flags, "--prompt", row["prompt"], "--completion", row["completion"]]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == row["completion"]
    assert told[1].startswith("reward 1;")
    assert len(told) == 4 + len(row["completion"].split())
    assert all(1 <= line.count("(0.") <= 2 for line in told[4:])
    build_rows(3).to_json(tmp_path / "test.jsonl")
    assert main([*flags, "--test_file", str(tmp_path / "test.jsonl"), "--row", "2", "--completion", "save"]) == 0
    capsys.readouterr()
    for wrong, part in (
        (
            ["--test_file", str(tmp_path / "test.jsonl"), "--row", "3"],
            "--row 3 does not exist: the test split has 3 rows, numbered from 0 to 2",
        ),
        ([], "give --prompt TEXT, or --row NUMBER"),
        (["--prompt", "a", "--completion", ""], "--completion '' must not be empty"),
    ):
        assert main([*flags, *wrong]) == 2
        assert part in capsys.readouterr().err
