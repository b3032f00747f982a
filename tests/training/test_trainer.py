"""SemiOfflineTrainer: what it logs, how it evaluates, which rewards and methods it takes, and when it stops."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file

from integration.toy import (
    KINDS,
    build_config,
    build_model,
    build_rows,
    build_tokenizer,
    build_trainer,
    build_uneven_rows,
    read_log,
    save_model,
    train,
    weights,
)
from semioffline import Policy, SemiOfflineTrainer
from semioffline.algorithm.tensors import StepOutput, Term
from semioffline.errors import UserError
from semioffline.methods.shared.base import BaseMethod

LOGGED = """reward reward_std frac_reward_zero_std rewards/click_rate/mean rewards/click_rate/std entropy mask_rate
loss/mle loss/rl cost/forward_passes cost/tokens time/reward time/step loss grad_norm learning_rate""".split()


def steps(folder: Path) -> list[dict[str, Any]]:
    return [line for line in read_log(folder) if "loss" in line]


# ---- what is logged ----


def test_metrics_have_their_names(tmp_path: Path) -> None:
    train(tmp_path, max_steps=2)
    log = steps(tmp_path)
    assert [line["step"] for line in log] == [1, 2]
    for line in log:
        assert not set(LOGGED) - line.keys()
        assert line["cost/forward_passes"] == 1
        assert line["grad/mle"] > 0
        assert line["grad/rl"] > 0
        assert line["loss"] == pytest.approx(line["loss/mle"] + line["loss/rl"], rel=1e-5)


def test_gradients_are_watched_at_logged_steps_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, watch = [], Policy.watch

    def note(policy: Policy, squares: dict[str, torch.Tensor] | None) -> Any:
        given.append(squares)
        return watch(policy, squares)

    monkeypatch.setattr(Policy, "watch", note)
    train(tmp_path, max_steps=3, logging_steps=2)
    assert [line.get("grad/rl") is not None for line in steps(tmp_path)] == [True]
    assert [squares if squares is None else set(squares) for squares in given] == [None, {"mle", "rl"}, None]


def test_the_sampler_of_like_lengths_is_told_its_epoch(tmp_path: Path) -> None:
    """By the trainer itself: through the wrappers that several processes need, a resumed run would not tell it."""
    trainer = train(tmp_path, max_steps=4, train_sampling_strategy="group_by_length")  # three steps an epoch
    sampler = trainer._epochs.sampler
    assert sampler.epoch == 1
    trainer.state.epoch = 2.5
    trainer._epochs.on_epoch_begin(trainer.args, trainer.state, trainer.control)
    assert sampler.epoch == 2


def test_sampled_completions_are_written(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """At every log, one row for each sample of a micro-batch."""
    train(tmp_path, max_steps=4, logging_steps=2, num_completions_to_print=3)
    assert sorted(path.name for path in (tmp_path / "completions").iterdir()) == ["step-2.parquet", "step-4.parquet"]
    rows = pyarrow.parquet.read_table(tmp_path / "completions/step-2.parquet").to_pylist()
    assert len(rows) == 8 * 4
    assert {"prompt", "masked_target", "sample", "reward", "advantage"} <= rows[0].keys()
    for start in range(0, len(rows), 4):
        same = rows[start : start + 4]
        mean = sum(row["reward"] for row in same) / 4
        assert len({(row["prompt"], row["masked_target"]) for row in same}) == 1
        assert [row["advantage"] for row in same] == pytest.approx([row["reward"] - mean for row in same], abs=1e-6)
    assert any("<mask>" in row["masked_target"] for row in rows)
    assert not any("<mask>" in row["sample"] or "</s>" in row["sample"] for row in rows)
    printed = capsys.readouterr().out.splitlines()
    at = [n for n, line in enumerate(printed) if line.startswith("step 2  ")]
    assert len({printed[n] for n in at}) == len(at) == 3  # different inputs
    best: dict[int, dict] = {}
    for row in rows:
        best[row["example"]] = max(row, best.get(row["example"], row), key=lambda each: each["reward"])
    shown = [(row["prompt"], row["masked_target"], row["sample"]) for row in list(best.values())[:3]]
    assert [(printed[n][8:], printed[n + 1][10:], printed[n + 2][9:]) for n in at] == shown


def test_sampled_completions_can_be_left_out(tmp_path: Path) -> None:
    train(tmp_path, max_steps=1, log_completions=False)
    assert not (tmp_path / "completions").exists()


def test_completions_follow_logging_steps_given_as_a_share(tmp_path: Path) -> None:
    """logging_steps below 1 is a share of all steps, in Transformers and so here."""
    train(tmp_path, max_steps=4, logging_steps=0.5)
    assert [line["step"] for line in steps(tmp_path)] == [2, 4]
    assert sorted(path.name for path in (tmp_path / "completions").iterdir()) == ["step-2.parquet", "step-4.parquet"]


def nll_by_hand(kind: str, rows: Dataset, smoothing: float = 0.0) -> float:
    """-log p of all target tokens, row by row without padding, over their number, from the plain model."""
    model, tokenizer = build_model(kind).eval(), build_tokenizer(kind)
    total, count = 0.0, 0
    for row in rows:
        prompt = tokenizer(row["prompt"])["input_ids"]
        if kind == "bart":
            target = tokenizer(row["completion"])["input_ids"]
            shown = torch.tensor([[2, *target[:-1]]])
            logits = model(input_ids=torch.tensor([prompt]), decoder_input_ids=shown).logits[0]
        else:
            target = [*tokenizer(row["completion"], add_special_tokens=False)["input_ids"], 2]
            logits = model(input_ids=torch.tensor([prompt + target[:-1]])).logits[0, len(prompt) - 1 :]
        log_p = logits.log_softmax(1)
        nll = -log_p[torch.arange(len(target)), target].sum().item()
        total += (1 - smoothing) * nll - smoothing * log_p.mean(1).sum().item()
        count += len(target)
    return total / count


@pytest.mark.parametrize("smoothing", [0.0, 0.15])
@pytest.mark.parametrize("kind", KINDS)
def test_mle_is_the_mean_over_the_tokens_of_the_step(kind: str, smoothing: float, tmp_path: Path) -> None:
    """The value by hand, for one micro-batch of 8 rows and for four of 2."""
    rows = build_uneven_rows(8)
    expected = nll_by_hand(kind, rows, smoothing)
    settings = {"kind": kind, "rows": rows, "max_steps": 1, "label_smoothing_factor": smoothing}
    for name, cut in (("whole", (8, 1)), ("cut", (2, 4))):
        size = {"per_device_train_batch_size": cut[0], "gradient_accumulation_steps": cut[1]}
        train(tmp_path / f"ft-{name}", method="ft", **settings, **size)
        train(tmp_path / f"rl-{name}", mle_mask_share=0.0, **settings, **size)
        assert steps(tmp_path / f"ft-{name}")[0]["loss/mle"] == pytest.approx(expected, rel=1e-5)
        assert steps(tmp_path / f"ft-{name}")[0]["loss"] == pytest.approx(expected, rel=1e-5)
        assert steps(tmp_path / f"rl-{name}")[0]["loss/mle"] == pytest.approx(expected, rel=1e-5)
    whole, cut = steps(tmp_path / "rl-whole")[0], steps(tmp_path / "rl-cut")[0]
    for name in ("loss", "loss/rl", "grad_norm", "reward", "reward_std", "rewards/click_rate/mean"):
        assert cut[name] == pytest.approx(whole[name], rel=1e-4, abs=1e-6), name


# ---- rewards ----


def count_words(completions: list[str], **kwargs: Any) -> list[float]:
    return [float(len(text.split())) for text in completions]


def test_a_function_as_reward_sees_every_column(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    def look(**columns: Any) -> list[float]:
        seen.update(columns)
        return [float(n % 2) for n in range(len(columns["completions"]))]

    train(tmp_path, reward=look, max_steps=1)
    given = {"prompts", "completions", "completion_ids", "references", "name", "category", "price", "feature", "city"}
    assert given <= seen.keys()
    assert {len(values) for values in seen.values()} == {8 * 4}
    assert all(prompt.startswith("name :") for prompt in seen["prompts"])
    assert all(isinstance(texts, list) for texts in seen["references"])
    [line] = steps(tmp_path)
    assert line["rewards/look/mean"] == pytest.approx(0.5)


def test_an_async_reward(tmp_path: Path) -> None:
    async def later(completions: list[str], **kwargs: Any) -> list[float]:
        return count_words(completions)

    train(tmp_path, reward=later, max_steps=1)
    assert steps(tmp_path)[0]["rewards/later/mean"] > 1


def test_several_rewards_are_weighted(tmp_path: Path) -> None:
    train(tmp_path, reward=["click_rate", count_words], reward_weights=[2.0, 0.5], max_steps=1)
    [line] = steps(tmp_path)
    parts = 2.0 * line["rewards/click_rate/mean"] + 0.5 * line["rewards/count_words/mean"]
    assert line["reward"] == pytest.approx(parts, rel=1e-5)
    with pytest.raises(UserError, match="2 rewards but 1 reward_weights"):
        build_trainer(tmp_path, reward=["click_rate", count_words], reward_weights=[1.0])


def test_a_missing_reward_is_told_in_front(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="semi_offline needs a reward"):
        build_trainer(tmp_path, reward=None)
    build_trainer(tmp_path, reward=None, method="ft")


def test_a_reward_may_leave_samples_out(tmp_path: Path) -> None:
    """None for one sample of each row, and for all four samples of one row."""

    def sometimes(completions: list[str], **kwargs: Any) -> list[float | None]:
        return [None if n < 4 or n % 4 == 0 else 0.5 + n % 2 for n in range(len(completions))]

    train(tmp_path, reward=sometimes, max_steps=1)
    [line] = steps(tmp_path)
    assert line["frac_reward_none"] == pytest.approx((4 + 7) / 32)
    assert line["rows_without_reward"] == 1
    assert line["reward"] == pytest.approx((1.5 + 0.5 + 1.5) / 3)
    rows = pyarrow.parquet.read_table(tmp_path / "completions/step-1.parquet").to_pylist()
    assert all(row["advantage"] == 0 for n, row in enumerate(rows) if n < 4 or n % 4 == 0)
    assert sum(row["advantage"] for row in rows[4:8]) == pytest.approx(0, abs=1e-6)


def strict(line: str) -> dict[str, Any]:
    """JSON as every other reader takes it: NaN is none."""

    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} in the log: {line}")

    return json.loads(line, parse_constant=refuse)


def test_without_any_reward_only_the_mle_term_trains(tmp_path: Path) -> None:
    def never(completions: list[str], **kwargs: Any) -> list[None]:
        return [None] * len(completions)

    silent = train(tmp_path / "none", reward=never)
    mle = train(tmp_path / "mle", rl_weight=0.0)
    pairs = zip(weights(silent).values(), weights(mle).values(), strict=True)
    assert all(torch.allclose(a, b, rtol=1e-6, atol=1e-8) for a, b in pairs)
    lines = [strict(line) for line in (tmp_path / "none" / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["rows_without_reward"] == 8
    assert lines[0]["frac_reward_none"] == 1


def test_a_micro_batch_without_rewards_does_not_hide_the_others(tmp_path: Path) -> None:
    """The logged reward is the mean over what was scored, also when one of two micro-batches has no score at all."""
    calls: list[int] = []

    def every_other_call(completions: list[str], **kwargs: Any) -> list[float | None]:
        calls.append(len(completions))
        return [None if len(calls) % 2 else 0.25] * len(completions)

    size = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    train(tmp_path, reward=every_other_call, max_steps=1, **size)
    [line] = steps(tmp_path)
    assert line["reward"] == pytest.approx(0.25)
    assert line["rewards/every_other_call/mean"] == pytest.approx(0.25)
    assert line["frac_reward_none"] == pytest.approx(0.5)


def test_a_wrong_reward_stops_training(tmp_path: Path) -> None:
    def too_few(completions: list[str], **kwargs: Any) -> list[float]:
        return [0.0]

    def not_a_number(completions: list[str], **kwargs: Any) -> list[Any]:
        return [0.0, "high"] + [0.0] * (len(completions) - 2)

    def broken(completions: list[str], **kwargs: Any) -> list[float]:
        raise KeyError("nothing")

    for reward, message in [
        (too_few, "'too_few' returned 1 values for 32 samples"),
        (not_a_number, "'not_a_number' returned 'high' for sample 1"),
        (broken, "'broken' raised KeyError"),
    ]:
        with pytest.raises(UserError, match=message):
            train(tmp_path, reward=reward, max_steps=1)


# ---- methods ----


class LikelyFirstToken(BaseMethod):
    """A method of the user's own: it wants nothing but the first token of the target to be likely."""

    needs_reward = False

    def __init__(self, factor: float = 1.0):
        self.factor = factor

    def step(self, policy, batch, score, randomness) -> StepOutput:
        from semioffline.algorithm.tensors import Row

        first = torch.zeros_like(batch.target.keep_mask)
        first[:, 0] = True
        [logits] = policy.predict(batch.source, [Row(batch.target.ids, batch.target.keep_mask, wanted=first)])
        nll = torch.nn.functional.cross_entropy(logits, batch.target.ids[:, 0], reduction="sum")
        return StepOutput([Term("first", self.factor * nll, per="row")], metrics={"mine": 7.0})


@pytest.mark.parametrize("kind", KINDS)
def test_a_method_of_the_users_own(kind: str, tmp_path: Path) -> None:
    train(tmp_path, kind=kind, reward=None, method_object=LikelyFirstToken(), max_steps=8, learning_rate=0.5)
    log = steps(tmp_path)
    assert log[-1]["loss/first"] < log[0]["loss/first"]
    assert log[0]["loss/first"] == pytest.approx(log[0]["loss"])
    assert log[0]["mine"] == 7


def test_a_loss_that_is_not_finite_stops_training(tmp_path: Path) -> None:
    """With the step and the rows; nothing is written over good weights."""

    class Breaks(LikelyFirstToken):
        def step(self, policy, batch, score, randomness) -> StepOutput:
            self.factor = float("nan") if randomness.step == 2 else 1.0
            self.rows = batch.index.tolist()
            return super().step(policy, batch, score, randomness)

    method = Breaks()
    trainer = build_trainer(tmp_path, reward=None, method_object=method, per_device_train_batch_size=3)
    with pytest.raises(UserError, match="loss is nan at step 2") as raised:
        trainer.train()
    assert f"rows {', '.join(map(str, method.rows))}" in str(raised.value)
    assert all(value.isfinite().all() for value in weights(trainer).values())


# ---- evaluation while training ----


def with_part(rows: Dataset, part: str) -> Dataset:
    return rows.add_column("part", [part] * len(rows))


class Planned:
    """A reward that says at each evaluation what it was told to."""

    name = "planned"

    def __init__(self, values: list[float]):
        self.values = list(values)

    def __call__(self, completions: list[str], part: list[str], **kwargs: Any) -> list[float]:
        if part[0] == "train":
            return [float(n % 3) for n in range(len(completions))]
        return [self.values.pop(0)] * len(completions)


def train_with_evaluation(folder: Path, values: list[float], **settings: Any) -> SemiOfflineTrainer:
    rows, dev = with_part(build_rows(24), "train"), with_part(build_rows(5, seed=1), "dev")
    defaults: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    defaults |= {"metric_for_best_model": "reward", "load_best_model_at_end": True, "max_steps": len(values)}
    reward = Planned(values)
    return train(folder, rows=rows, dev=dev, reward=reward, eval_metrics=["rouge1"], **(defaults | settings))


def assert_weights_of(trainer: SemiOfflineTrainer, checkpoint: Path) -> None:
    stored, now = load_file(checkpoint / "model.safetensors"), weights(trainer)
    assert all(torch.equal(now[name], value) for name, value in stored.items())


def test_the_best_checkpoint_is_loaded_at_the_end(tmp_path: Path) -> None:
    trainer = train_with_evaluation(tmp_path, [0.2, 0.9, 0.3, 0.1])
    log = [line for line in read_log(tmp_path) if "eval_reward" in line]
    assert [(line["step"], line["eval_reward"]) for line in log] == [(1, 0.2), (2, 0.9), (3, 0.3), (4, 0.1)]
    assert {"eval_planned", "eval_rouge1", "eval_length", "eval_repetition", "eval_distinct"} <= log[0].keys()
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-2")
    assert_weights_of(trainer, tmp_path / "checkpoint-2")


def test_the_best_checkpoint_survives_rotation(tmp_path: Path) -> None:
    trainer = train_with_evaluation(tmp_path, [0.2, 0.9, 0.3, 0.1], save_total_limit=2)
    assert sorted(path.name for path in tmp_path.glob("*checkpoint*")) == ["checkpoint-2", "checkpoint-4"]
    assert_weights_of(trainer, tmp_path / "checkpoint-2")


def test_early_stopping(tmp_path: Path) -> None:
    trainer = train_with_evaluation(tmp_path, [0.2, 0.9, 0.3, 0.1, 1.0, 1.0], early_stopping_patience=2)
    assert trainer.state.global_step == 4
    assert_weights_of(trainer, tmp_path / "checkpoint-2")


def test_evaluation_gives_the_same_text_whenever_it_is_asked(tmp_path: Path) -> None:
    """Evaluating does not disturb training: neither its random numbers nor its cost."""
    dev = build_rows(5, seed=1)
    settings = {"dev": dev, "eval_steps": 1, "eval_metrics": ["facts_right"]}
    model = {"model": build_model(dropout=0.2)}
    with_eval = train(tmp_path / "a", eval_strategy="steps", **settings, **model)
    without = train(tmp_path / "b", eval_strategy="no", **settings, model=build_model(dropout=0.2))
    assert all(torch.equal(a, b) for a, b in zip(weights(with_eval).values(), weights(without).values(), strict=True))
    assert steps(tmp_path / "a")[-1]["cost/tokens"] == steps(tmp_path / "b")[-1]["cost/tokens"]
    metrics = [trainer.evaluate() for trainer in (with_eval, with_eval, without)]
    for each in metrics:
        each.pop("eval_runtime")
    assert metrics[0] == metrics[1] == metrics[2]
    assert {"eval_facts_right", "eval_click_rate", "eval_reward"} <= metrics[0].keys()


def test_several_evaluation_sets(tmp_path: Path) -> None:
    parts = {"near": build_rows(3, seed=1), "far": build_rows(4, seed=2)}
    metrics = build_trainer(tmp_path, dev=parts).evaluate()  # type: ignore[arg-type]
    assert {"eval_near_reward", "eval_far_reward"} <= metrics.keys()


@pytest.mark.parametrize(
    "settings",
    [{"eval_metrics": ["rougr1"]}, {"metric_for_best_model": "rewrd", "eval_strategy": "steps", "eval_steps": 1}],
    ids=["eval_metrics", "metric_for_best_model"],
)
def test_a_metric_that_does_not_exist_is_told_before_training(settings: dict, tmp_path: Path) -> None:
    """Not after the last step, when there is something to lose."""
    with pytest.raises(UserError, match=r"rouge1|reward"):
        build_trainer(tmp_path, dev=build_rows(4), **settings)


# ---- models ----


def test_a_model_by_its_folder(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model")
    trainer = SemiOfflineTrainer(str(folder), "click_rate", build_config(tmp_path / "run", max_steps=1), build_rows())
    trainer.train()
    ours = train(tmp_path / "other", max_steps=1)
    assert all(torch.equal(a, b) for a, b in zip(weights(trainer).values(), weights(ours).values(), strict=True))
    with pytest.raises(UserError, match="cannot load the model"):
        SemiOfflineTrainer(str(tmp_path / "nowhere"), "click_rate", build_config(tmp_path / "run"), build_rows())


@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_trains_and_resumes(kind: str, tmp_path: Path) -> None:
    """LoRA: the base stays, the adapter and the mask token's row move; a resume gives the same, bit for bit; the
    checkpoint loads with plain PEFT."""
    from peft import LoraConfig, PeftModel
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    auto = AutoModelForSeq2SeqLM if kind == "bart" else AutoModelForCausalLM
    base = save_model(tmp_path / "base", kind)

    def run(folder: Path) -> SemiOfflineTrainer:
        adapter = LoraConfig(r=2, target_modules="all-linear", lora_dropout=0.1)
        torch.manual_seed(0)
        settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4, "optim": "adamw_torch"}
        model = auto.from_pretrained(base)
        return train(folder, resume=True, kind=kind, model=model, peft_config=adapter, **settings)

    whole = run(tmp_path / "whole")
    trained = weights(whole)
    moved = {name for name, value in trained.items() if "lora_B" in name and value.abs().max() > 0}
    assert moved
    before = build_model(kind).state_dict()
    plain = {name: name.removeprefix("base_model.model.").replace("base_layer.", "") for name in trained}
    after = {plain[name]: value for name, value in trained.items()}
    frozen = [name for name in before if name in after]
    assert len(frozen) > len(before) // 2
    assert all(torch.equal(before[name], after[name]) for name in frozen)

    shutil.copytree(tmp_path / "whole", tmp_path / "part")
    shutil.rmtree(tmp_path / "part" / "checkpoint-4")
    resumed = weights(run(tmp_path / "part"))
    assert all(torch.equal(resumed[name], value) for name, value in trained.items())

    loaded = PeftModel.from_pretrained(auto.from_pretrained(base), tmp_path / "whole" / "checkpoint-4")
    stored = {name: loaded.state_dict()[name] for name in trained if "lora" in name or "trainable_tokens" in name}
    assert stored
    assert all(torch.equal(trained[name], value) for name, value in stored.items())
