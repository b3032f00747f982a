"""Reward functions: how they are called, what they may return, and what is said when they return something else."""

import asyncio
import contextlib
import io
import logging
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from semioffline.algorithm.tensors import Samples
from semioffline.data.examples import Examples
from semioffline.errors import UserError
from semioffline.evaluation.metrics import measure
from semioffline.policy.decoding import Decoding
from semioffline.scoring.calls import RewardError
from semioffline.scoring.pool import Part, WorkerProcesses, cut, spare_workers, start_pool
from semioffline.scoring.reward_set import RewardSet
from semioffline.scoring.scorer import Scorer, describe, distinct_samples
from semioffline.scoring.worker import Group, encode_message, read_message

NAN = float("nan")
COLUMNS = {"prompts": ["p", "q", "r"], "completions": ["a", "b b", "c c c"], "completion_ids": [[1], [2], [3]]}


def words(completions, **kwargs):
    return [float(len(text.split())) for text in completions]


async def later(completions, **kwargs):
    await asyncio.sleep(0.01)
    return [10.0 * len(text.split()) for text in completions]


class Minus:
    """A callable object with a name of its own."""

    name = "minus"

    def __call__(self, completions, **kwargs):
        return [-float(len(text.split())) for text in completions]


class LaterObject:
    async def __call__(self, completions, **kwargs):
        return [0.5] * len(completions)


def returning(value):
    def odd(**kwargs):
        return value

    return odd


@pytest.mark.parametrize(
    ("reward", "name", "values"),
    [
        (words, "words", [1, 2, 3]),
        (later, "later", [10, 20, 30]),
        (Minus(), "minus", [-1, -2, -3]),
        (LaterObject(), "LaterObject", [0.5, 0.5, 0.5]),
        ("length", "length", [1, 2, 3]),
    ],
)
def test_a_reward_may_be_a_function_a_coroutine_an_object_or_a_name(reward, name, values):
    sums, parts = RewardSet(reward)(COLUMNS)
    assert sums == values
    assert parts == {name: values}


def test_a_reward_may_be_a_function_in_a_file(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def twice(completions, **kwargs):\n    return [2 * len(c) for c in completions]\n"
    )
    sums, parts = RewardSet(f"{tmp_path}/mine.py:twice")(COLUMNS)
    assert sums == [2, 6, 10]
    assert list(parts) == ["twice"]


def test_rewards_are_summed_with_their_weights_in_the_order_given():
    sums, parts = RewardSet([later, words, Minus()], weights=[0.1, 2, 1])(COLUMNS)
    assert sums == pytest.approx([1 + 2 - 1, 2 + 4 - 2, 3 + 6 - 3])
    assert list(parts) == ["later", "words", "minus"]


def test_weights_are_one_when_not_given():
    assert RewardSet([words, words])(COLUMNS)[0] == [2, 4, 6]


def test_two_functions_of_one_name_are_both_counted_and_both_shown():
    sums, parts = RewardSet([returning([1, 1, 1]), returning([5, 5, 5])])(COLUMNS)
    assert sums == [6, 6, 6]
    assert len(parts) == 2


def test_async_rewards_run_at_the_same_time():
    together = asyncio.Barrier(2)

    async def meet(completions, **kwargs):
        await asyncio.wait_for(together.wait(), timeout=5)
        return [1.0] * len(completions)

    assert RewardSet([meet, meet])(COLUMNS)[0] == [2, 2, 2]


def test_async_rewards_work_inside_a_running_event_loop():
    async def notebook():
        return RewardSet(later)(COLUMNS)[0]

    assert asyncio.run(notebook()) == [10, 20, 30]


def test_a_function_is_called_with_every_column_by_keyword():
    seen = {}

    def look(prompts, completions, completion_ids, brand, **kwargs):
        seen.update(prompts=prompts, ids=completion_ids, brand=brand, rest=kwargs)
        return [0.0] * 3

    RewardSet(look)(COLUMNS | {"brand": ["x", "y", "z"], "references": [["a"], ["b"], ["c"]]})
    assert seen["prompts"] == ["p", "q", "r"]
    assert seen["ids"] == [[1], [2], [3]]
    assert seen["brand"] == ["x", "y", "z"]
    assert seen["rest"] == {"references": [["a"], ["b"], ["c"]]}


@pytest.mark.parametrize(
    "out",
    [
        torch.tensor([1.0, 2.0, 3.0]),
        torch.tensor([1, 2, 3]),
        np.array([1, 2, 3]),
        (1, 2, 3),
        [np.float32(1), torch.tensor(2.0), 3],
    ],
)
def test_tensors_arrays_and_tuples_of_numbers_are_accepted(out):
    assert RewardSet(returning(out))(COLUMNS)[0] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("missing", [None, NAN, torch.tensor(NAN)])
def test_none_and_nan_leave_a_sample_out(missing):
    sums, parts = RewardSet([returning([1.0, missing, 3.0]), words])(COLUMNS)
    assert [sums[0], sums[2]] == [2, 6]
    assert math.isnan(sums[1])
    assert math.isnan(parts["odd"][1])
    assert parts["words"] == [1, 2, 3]


@pytest.mark.parametrize(
    ("out", "says"),
    [
        ([1.0, 2.0], "returned 2 values for 3 samples"),
        ([], "returned 0 values for 3 samples"),
        (1.0, "returned float, but must return a list of 3 numbers"),
        (None, "returned NoneType"),
        (torch.tensor(1.0), "returned float"),
        ([1.0, float("inf"), 2.0], "returned inf for sample 1, '"),
        (torch.tensor([1.0, 2.0, -math.inf]), "returned -inf for sample 2"),
        ([1.0, 2.0, "good"], "returned 'good' for sample 2"),
        (torch.zeros(3, 1), "for sample 0"),
        ({"a": 1.0, "b": 2.0, "c": 3.0}, "returned dict"),
    ],
)
def test_what_cannot_be_a_reward_is_refused_by_name(out, says):
    with pytest.raises(RewardError, match=f"'odd' {says}" if says.startswith("returned") else says) as caught:
        RewardSet([words, returning(out)])(COLUMNS)
    assert "'odd'" in str(caught.value)


def test_an_exception_is_reported_with_the_name_of_the_function():
    def broken(**kwargs):
        raise KeyError("category")

    with pytest.raises(RewardError, match="'broken' raised KeyError: 'category'") as caught:
        RewardSet([words, broken])(COLUMNS)
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_exception_in_a_coroutine_is_reported_with_the_name_of_the_function():
    async def unreachable(**kwargs):
        raise TimeoutError("no answer")

    with pytest.raises(RewardError, match="'unreachable' raised TimeoutError: no answer"):
        RewardSet([later, unreachable])(COLUMNS)


def spoil(completions, references, messages, prompts, completion_ids, **kwargs):
    """Changes everything that it is given, down to the last list."""
    references[0].append("more")
    references[1][:] = []
    messages[0][0]["content"] = "other"
    completion_ids[0].clear()
    prompts.sort(reverse=True)
    completions[:] = ["gone"] * len(completions)
    kwargs.clear()
    return [0.0] * len(completions)


def test_a_reward_that_changes_its_columns_changes_them_for_itself_alone():
    seen = []

    async def see(**columns):
        seen.append(columns)
        return [1.0] * len(columns["completions"])

    def given():
        return COLUMNS | {
            "references": [["a"], ["b", "c"], []],
            "messages": [[{"role": "user", "content": "hi"}]] * 3,
            "score": [None, 1.5, "x"],
        }

    columns = given()
    RewardSet([spoil, see, "length", spoil, see])(columns)
    assert columns == given()
    assert seen == [given(), given()]


def test_a_metric_that_changes_the_references_does_not_change_the_others(policy, tiny_data):
    examples = Examples(tiny_data, policy, 40, 40, progress=False)
    texts = [example.columns["completion"] for example in examples.examples]
    measured = [
        measure(texts, examples, metrics, Decoding(), [[1]] * len(texts)).values["rouge1"]
        for metrics in (["rouge1"], [forget, "rouge1"], ["rouge1"])
    ]
    assert measured[0] == measured[1] == measured[2]


def forget(completions, references, **kwargs):
    for texts in references:
        texts[:] = ["nothing"]
    return [0.0] * len(completions)


@pytest.mark.parametrize("name", ["../x", "a/b", "a\nb", "", ".", "x" * 101])
def test_a_reward_s_name_can_be_the_name_of_a_file(name):
    reward = Minus()
    reward.name = name or " "
    with pytest.raises(UserError, match=r"the reward .*choose another name"):
        RewardSet(reward)


@pytest.mark.parametrize("weights", [[1.0], [1.0, 2.0, 3.0], []])
def test_there_must_be_one_weight_for_each_reward(weights):
    with pytest.raises(UserError, match=f"2 rewards but {len(weights)} reward_weights"):
        RewardSet([words, later], weights)


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(UserError, match=r"unknown reward 'lenght'\. Did you mean 'length'"):
        RewardSet("lenght")


def test_what_is_no_reward_at_all_is_refused():
    with pytest.raises(UserError, match="not int"):
        RewardSet(3)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=re.escape(f"{tmp_path}/none.py")):
        RewardSet(f"{tmp_path}/none.py:score")


@pytest.fixture
def policy(tiny_policy):
    return tiny_policy("bart")


def samples_of(batch, many):
    """K copies of the target, the first ordinary token of the k-th replaced by the token 20 + k."""
    hidden = torch.zeros_like(batch.target.keep_mask)
    hidden[:, 1] = True
    return Samples(batch.target, hidden, (torch.arange(many) + 20).expand(len(batch), many))


def test_scorer_hands_over_texts_and_repeats_the_columns(policy, tiny_batch):
    batch, seen = tiny_batch(policy, 3), {}

    def look(**kwargs):
        seen.update(kwargs)
        return list(range(6))

    scores = Scorer(policy, RewardSet(look))(samples_of(batch, 2), batch)
    assert scores.rewards.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert seen["prompts"] == [p for p in batch.columns["prompt"] for _ in range(2)]
    assert seen["category"] == [c for c in batch.columns["category"] for _ in range(2)]
    assert seen["references"] == [r for r in batch.columns["references"] for _ in range(2)]
    assert "prompt" not in seen
    assert "completion" not in seen
    words_of = policy.tokens.tokenizer.convert_ids_to_tokens
    for number, text in enumerate(seen["completions"]):
        rest = batch.columns["completion"][number // 2].split()[1:]
        assert text == " ".join([words_of(20 + number % 2), *rest])
    assert scores.texts == [seen["completions"][n : n + 2] for n in (0, 2, 4)]


def test_scorer_gives_no_padding_to_the_reward(policy, tiny_batch):
    batch, seen = tiny_batch(policy, 3), {}

    def look(completion_ids, **kwargs):
        seen["lengths"] = [len(ids) for ids in completion_ids]
        return [0.0] * len(completion_ids)

    Scorer(policy, RewardSet(look))(samples_of(batch, 2), batch)
    lengths = batch.target.lengths
    assert len(set(lengths)) > 1
    assert seen["lengths"] == [n for n in lengths for _ in range(2)]


def test_scorer_reports_means_that_leave_out_what_has_no_reward(policy, tiny_batch):
    batch = tiny_batch(policy, 2)

    def some(**kwargs):
        return [1.0, 3.0, None, None]

    scores = Scorer(policy, RewardSet(some, weights=[2.0]))(samples_of(batch, 2), batch)
    assert scores.rewards[0].tolist() == [2, 6]
    assert scores.rewards[1].isnan().all()
    assert scores.metrics["reward"] == 4
    assert scores.metrics["rewards/some/mean"] == 2
    assert scores.metrics["rewards/some/std"] == pytest.approx(math.sqrt(2))
    assert scores.metrics["frac_reward_none"] == 0.5
    assert scores.metrics["rows_without_reward"] == 1


def test_describe_by_hand():
    rewards = torch.tensor([[1.0, 3.0, NAN], [2.0, 2.0, 2.0]])
    described = describe(rewards)
    assert described["reward"] == pytest.approx(2.0)
    assert described["reward_std"] == pytest.approx(math.sqrt(2) / 2)
    assert described["frac_reward_zero_std"] == 0.5
    assert described["frac_reward_none"] == pytest.approx(1 / 6)
    assert described["rows_without_reward"] == 0


@pytest.mark.parametrize("reward", [0.1, 1 / 3, 33.3])
@pytest.mark.parametrize("many", [7, 64])
def test_rows_of_equal_rewards_are_counted_as_such_whatever_the_rounding(reward, many):
    assert describe(torch.full((4, many), reward))["frac_reward_zero_std"] == 1


def test_nan_is_told_once_and_none_never(caplog, monkeypatch):
    monkeypatch.setattr("semioffline.scoring.calls._WARNED", set())
    with caplog.at_level(logging.WARNING):
        RewardSet(returning([1.0, None, 2.0]))(COLUMNS)
        assert not caplog.text
        for _ in range(2):
            RewardSet(returning([NAN, None, torch.tensor(NAN)]))(COLUMNS)
    assert caplog.text.count("the reward function 'odd' returned NaN for 2 of 3 samples, which are left out") == 1


# ---- identical samples ----


class Counting:
    """A built-in reward that remembers how many texts it was given."""

    def __init__(self):
        self.seen = []

    def __call__(self, completions, category, **kwargs):
        self.seen.append(len(completions))
        return [len(text) + len(kind) / 100 for text, kind in zip(completions, category, strict=True)]


@pytest.fixture
def counting(monkeypatch):
    reward = Counting()
    monkeypatch.setitem(sys.modules["semioffline.rewards.registry"].REWARDS, "counting", lambda: reward)
    return reward


def test_reward_calls_are_the_samples_that_differ():
    """Two groups of one row and mask count together; without masked tokens all samples are the same."""
    static, places = np.arange(5, 9, dtype=np.int32), np.array([1, 2])
    groups = [Group(row, static, places, 4) for row in (0, 0, 1)] + [Group(1, static, places[:0], 4)]
    draws = [[[1, 1, 2, 2], [3, 3, 3, 4]], [[1, 9, 9, 9], [3, 3, 3, 3]], [[1, 1, 1, 1], [3, 3, 3, 3]]]
    assert distinct_samples(groups, np.array(draws, np.int32).reshape(-1)) == 4 + 1 + 1


def test_identical_samples_of_a_row_are_scored_once(policy, tiny_batch, counting):
    """Of six samples of each of three rows, three are distinct; rows keep their own, for their columns differ."""
    batch = tiny_batch(policy, 3)
    samples = samples_of(batch, 6)
    samples.draws = torch.tensor([20, 21, 20, 22, 21, 20]).expand(3, 6)
    scores = Scorer(policy, RewardSet("counting"))(samples, batch)
    assert counting.seen == [9]
    direct = RewardSet(counting)  # the same as a callable
    assert torch.equal(Scorer(policy, direct)(samples, batch).rewards, scores.rewards)
    assert counting.seen == [9, 9]
    counting.deterministic = False
    direct = RewardSet(counting)
    assert torch.equal(Scorer(policy, direct)(samples, batch).rewards, scores.rewards)
    assert counting.seen == [9, 9, 18]


# ---- scoring beside the model ----


def test_scoring_beside_the_model_does_not_wait_until_the_scores_are_read(policy, tiny_batch):
    batch, may_go = tiny_batch(policy, 3), threading.Event()

    def slow(completions, **kwargs):
        assert may_go.wait(20)
        return words(completions)

    scores = Scorer(policy, RewardSet(slow), overlap=True)(samples_of(batch, 4), batch)
    assert not scores.ready
    may_go.set()
    plain = Scorer(policy, RewardSet(words))(samples_of(batch, 4), batch)
    assert torch.equal(scores.rewards, plain.rewards)
    assert scores.ready
    assert scores.texts == plain.texts
    assert scores.metrics["reward"] == plain.metrics["reward"]
    assert scores.metrics["time/reward_wait"] > 0


def test_an_error_beside_the_model_is_raised_where_the_scores_are_read(policy, tiny_batch):
    def broken(**kwargs):
        raise KeyError("category")

    batch = tiny_batch(policy, 3)
    scores = Scorer(policy, RewardSet(broken), overlap=True)(samples_of(batch, 4), batch)
    with pytest.raises(RewardError, match="'broken' raised KeyError: 'category'"):
        _ = scores.rewards


def test_reward_functions_are_called_one_at_a_time(policy, tiny_batch):
    """Two steps that overlap must not meet in a function that was written for one caller."""
    batch, inside, most = tiny_batch(policy, 3), [], []

    def careful(completions, **kwargs):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.05)
        inside.pop()
        return words(completions)

    scorer = Scorer(policy, RewardSet(careful), overlap=True)
    for scores in [scorer(samples_of(batch, 2), batch) for _ in range(3)]:
        _ = scores.rewards
    assert most == [1, 1, 1]


# ---- worker processes ----

NAMES = ["rouge", "rougeLsum_stem", "bleu", "length_penalty:3-9", "click_rate", "facts_right", "distinct"]


def two_masks(batch, many):
    """Samples under two masks for each row: the first ordinary token under one, the second under the other."""
    hidden = torch.zeros(2, *batch.target.ids.shape, dtype=torch.bool)
    hidden[0, :, 1], hidden[1, :, 2] = True, True
    draws = torch.arange(2 * len(batch) * many).view(2 * len(batch), many) % 100 + 20
    return Samples(batch.target, hidden.flatten(0, 1), draws)


@pytest.mark.parametrize("make", [samples_of, two_masks])
def test_workers_give_the_values_of_this_process_bit_for_bit(policy, tiny_batch, make):
    """For built-in rewards, with a function of the user's own beside them, which stays here."""
    batch = tiny_batch(policy, 4)
    rewards = RewardSet([*NAMES, words], weights=[0.1 * n + 0.3 for n in range(len(NAMES) + 1)])
    here = Scorer(policy, rewards)(make(batch, 15), batch)
    there = Scorer(policy, rewards, workers=2)(make(batch, 15), batch)
    assert torch.equal(here.rewards, there.rewards)
    assert {name: list(values) for name, values in there.parts.items()} == here.parts
    assert here.texts == there.texts
    assert here.rewards.std() > 0


def test_workers_score_texts_of_any_length(policy, tiny_batch):
    batch = tiny_batch(policy, 3)
    ids = [[20 + n] * (n % 5) for n in range(12)]  # some are empty
    scorers = [Scorer(policy, RewardSet(["length", "rouge"]), workers=n) for n in (0, 2)]
    here, there = (scorer.score_ids(ids, batch, 4) for scorer in scorers)
    assert torch.equal(here.rewards, there.rewards)
    assert here.parts["length"] == [len(row) for row in ids]


def test_an_error_in_a_worker_has_the_message_it_has_here(policy, tiny_batch):
    batch = tiny_batch(policy, 4)
    batch.columns["references"][2] = []
    said = []
    for workers in (0, 2):
        with pytest.raises(RewardError) as caught:
            Scorer(policy, RewardSet("rouge"), workers=workers)(samples_of(batch, 15), batch)
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert "references[30]" in said[0]


def two_workers_of(dealer):
    deadline = time.monotonic() + 20
    while len(found := _children(dealer)) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(found) == 2
    return found


def _children(pid):
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(folder.name))
    return sorted(found)


@pytest.mark.parametrize("who", ["worker", "dealer"])
def test_a_worker_that_dies_stops_nothing(policy, tiny_batch, caplog, who):
    batch = tiny_batch(policy, 4)
    scorer = Scorer(policy, RewardSet("rouge"), workers=2)
    expected = scorer(samples_of(batch, 15), batch).rewards
    pool = start_pool(2)
    dealer = pool.front.processes[0].pid
    workers = two_workers_of(dealer)
    os.kill(workers[1] if who == "worker" else dealer, signal.SIGKILL)
    with caplog.at_level(logging.WARNING):
        assert torch.equal(scorer(samples_of(batch, 15), batch).rewards, expected)
        assert torch.equal(scorer(samples_of(batch, 15), batch).rewards, expected)
    assert start_pool(2) is not pool
    assert start_pool(2).alive
    wait_for_the_end_of([dealer, *workers])


@pytest.mark.parametrize("who", ["worker", "dealer", "everyone"])
def test_a_worker_that_is_stopped_is_ended_after_the_time_limit(policy, tiny_batch, caplog, who):
    """SIGSTOP: it keeps no time limit itself. The samples are then scored in this process."""
    batch = tiny_batch(policy, 4)
    scorer = Scorer(policy, RewardSet("rouge", timeout=1), workers=2)
    expected = scorer(samples_of(batch, 15), batch).rewards
    dealer = start_pool(2).front.processes[0].pid
    everyone = [dealer, *two_workers_of(dealer)]
    for pid in {"worker": everyone[1:2], "dealer": [dealer], "everyone": everyone}[who]:
        os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    with caplog.at_level(logging.WARNING):
        assert torch.equal(scorer(samples_of(batch, 15), batch).rewards, expected)
    assert time.monotonic() - began < 10
    assert "rewards are computed in the training process" in caplog.text
    wait_for_the_end_of(everyone)
    assert torch.equal(scorer(samples_of(batch, 15), batch).rewards, expected)


def wait_for_the_end_of(processes):
    deadline = time.monotonic() + 20
    while any(_runs(pid) for pid in processes) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_runs(pid) for pid in processes)


@pytest.mark.parametrize("where", ["read", "write"])
def test_an_interrupt_leaves_no_answer_for_the_next_question(policy, tiny_batch, monkeypatch, where):
    """Ctrl-C while a request is on its way, as in a notebook, where training goes on afterwards."""
    batch = tiny_batch(policy, 4)
    scorer = Scorer(policy, RewardSet("length"), workers=2)
    ids = [[20] * n for n in range(12)]
    scorer.score_ids(ids, batch, 3)
    with monkeypatch.context() as patched:
        patched.setattr(WorkerProcesses, where, lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            scorer.score_ids(ids, batch, 3)
    there = scorer.score_ids(ids[::-1], batch, 3)
    assert list(there.parts["length"]) == [float(n) for n in range(11, -1, -1)]


def test_a_message_that_ends_in_the_middle_is_none():
    message = encode_message({"a": 1}, b"12345678")
    assert read_message(io.BytesIO(message)) == ({"a": 1}, b"12345678")
    for end in range(len(message)):
        assert read_message(io.BytesIO(message[:end])) is None


def test_workers_end_when_their_parent_is_killed(tmp_path):
    """A script without a main guard: the workers do not run it again."""
    script = tmp_path / "script.py"
    script.write_text(
        "from semioffline.scoring.pool import start_pool\nimport time\n"
        "print(start_pool(2).front.processes[0].pid, flush=True)\ntime.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    dealer = int(parent.stdout.readline())
    workers = two_workers_of(dealer)
    parent.kill()
    parent.wait()
    wait_for_the_end_of([dealer, *workers])


def _runs(pid):
    """Whether there is such a process, other than one that has ended and was not asked how."""
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_chunks_are_even_and_hold_every_sample_once():
    sizes = [50, 1, 0, 7, 64]
    chunks = cut(sizes, 5)
    counts = [sum(part.high - part.low for part in parts) for parts in chunks]
    assert max(counts) - min(counts) <= 1
    found = [(part.at, k) for parts in chunks for part in parts for k in range(part.low, part.high)]
    assert found == [(at, k) for at, size in enumerate(sizes) for k in range(size)]


def test_few_samples_are_not_spread_over_many_workers():
    assert cut([10], 14) == [[Part(0, 0, 10)]]


def test_an_error_of_ones_own_function_leaves_workers_that_answer(policy, tiny_batch):
    """What they were asked and nobody reads is not the answer to the next question."""
    batch = tiny_batch(policy, 4)

    def broken(completions, **kwargs):
        raise KeyError("nothing")

    with pytest.raises(RewardError, match="broken"):
        Scorer(policy, RewardSet(["rouge", broken]), workers=2)(samples_of(batch, 15), batch)
    here, there = (Scorer(policy, RewardSet("rouge"), workers=n)(samples_of(batch, 9), batch) for n in (0, 2))
    assert torch.equal(here.rewards, there.rewards)


def test_cores_to_spare(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    assert [spare_workers(n) for n in (1, 2, 4, 8)] == [14, 6, 2, 0]
