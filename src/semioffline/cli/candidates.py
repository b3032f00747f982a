"""semioffline candidates: generate static targets for training."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import get_args

from semioffline.cli.options import parse
from semioffline.cli.recipes import Recipe
from semioffline.config import MethodConfig, TruncationSide
from semioffline.data.candidates import write_candidates
from semioffline.data.examples import Examples
from semioffline.data.lengths import text_limits
from semioffline.data.options import DataOptions, ModelOptions
from semioffline.errors import UserError
from semioffline.policy.decoding import Decoding
from semioffline.policy.diverse_beam import MOST_DIVERSE
from semioffline.printing import say
from semioffline.scoring.reward_set import RewardSet
from semioffline.training.run_folder import open_folder, write_settings
from semioffline.validation import (
    BATCH,
    BEAMS,
    NOT_NEGATIVE,
    PENALTY,
    SECONDS,
    SEED,
    STEPS,
    TEMPERATURE,
    TOKENS,
    Options,
    Range,
    setting,
)

STRATEGIES = ("diverse_beam", "sampling", "beam")


@dataclass
class CandidateOptions(Options):
    output_dir: str | None = setting(
        None, "Folder for candidates.jsonl. An interrupted command continues there.", place=True
    )
    split: str = setting("train", "Split to read.")
    reward: list[str] = setting([], "Reward that scores and sorts the candidates. Default: the task's reward.")
    num_candidates: int = setting(16, "N, candidates per input.", allowed=BEAMS)
    strategy: str = setting(
        "diverse_beam", "How to generate: diverse_beam | sampling (nucleus) | beam.", choices=STRATEGIES
    )
    diversity_penalty: float = setting(
        1.0, "diverse_beam: penalty for tokens that an earlier group chose.", allowed=Range(0, MOST_DIVERSE)
    )
    num_beam_groups: int | None = setting(
        None, "diverse_beam: number of groups. Default: one group per beam.", allowed=BEAMS
    )
    search_beams: int | None = setting(
        None,
        "beam, diverse_beam: number of beams. The best num_candidates are kept, from each group in turn. Default: "
        "num_candidates.",
        allowed=BEAMS,
    )
    top_p: float = setting(
        0.95,
        "sampling: draw among the likeliest tokens that together have this probability.",
        allowed=Range(0, 1, open_low=True),
    )
    temperature: float = setting(1.0, "sampling: temperature.", allowed=TEMPERATURE)
    length_penalty: float = setting(
        1.0, "beam, diverse_beam: exponent of the length in a beam's score.", allowed=PENALTY
    )
    no_repeat_ngram_size: int = setting(0, "Never repeat an n-gram of this size; 0: no limit.", allowed=NOT_NEGATIVE)
    min_new_tokens: int = setting(0, "Shortest candidate in tokens.", allowed=NOT_NEGATIVE)
    max_prompt_length: int | None = setting(None, "Longest source in tokens.", allowed=TOKENS)
    max_completion_length: int | None = setting(None, "Longest candidate in tokens.", allowed=TOKENS)
    truncation_side: str | None = setting(
        None, "Side where long prompts are cut: left | right.", choices=get_args(TruncationSide)
    )
    batch_size: int = setting(16, "Inputs to decode at a time.", allowed=BATCH)
    shard_size: int = setting(256, "Inputs per shard. An interruption loses at most one shard.", allowed=STEPS)
    reward_timeout: float | None = setting(
        None, "Time limit for one call of a reward function, in seconds. Default: no limit.", allowed=SECONDS
    )
    cuda_graphs: bool = setting(False, "Decode with CUDA graphs: faster on a CUDA device. Not with beams.")
    seed: int = setting(0, "Random seed of the sampling.", allowed=SEED)

    def decoding(self, max_new_tokens: int) -> Decoding:
        make = partial(
            Decoding,
            num_return_sequences=self.num_candidates,
            max_new_tokens=max_new_tokens,
            min_new_tokens=self.min_new_tokens,
            no_repeat_ngram_size=self.no_repeat_ngram_size,
        )
        unread = {"sampling": ("num_beam_groups", "search_beams"), "beam": ("num_beam_groups",)}
        for name in unread.get(self.strategy, ()):
            if (value := getattr(self, name)) is not None:
                raise UserError(f"--{name} {value} has no effect with --strategy {self.strategy}: leave it out")
        if self.strategy == "sampling":
            return make(do_sample=True, top_p=self.top_p, temperature=self.temperature)
        beams = self.search_beams or self.num_candidates
        make = partial(make, num_beams=beams, length_penalty=self.length_penalty)
        if self.strategy == "beam":
            return make()
        if self.num_candidates == 1:
            raise UserError(
                "--num_candidates 1 must be at least 2 for --strategy diverse_beam: "
                "for one candidate, use --strategy sampling or beam"
            )
        groups = self.num_beam_groups or beams
        return make(num_beam_groups=groups, diversity_penalty=self.diversity_penalty)


def run(argv: list[str]) -> None:
    types = [DataOptions, ModelOptions, CandidateOptions]
    task = parse("candidates", types, argv)[0].load_task()
    ours = {field.name for field in fields(CandidateOptions)}  # lengths and repetition, but not the number of beams
    defaults: Recipe = {name: value for name, value in task.settings.items() if name in ours}
    defaults["reward"] = [task.reward] if task.reward else None
    data, model, options = parse("candidates", types, argv, defaults)
    if not options.output_dir:
        raise UserError("no output folder: give --output_dir FOLDER")
    if not options.reward:
        raise UserError("candidates needs a reward to sort by: give --reward (a name, file.py:function or model:NAME)")
    device = model.checked_device()
    options.decoding(2)  # refuse bad settings before anything is loaded
    rewards = RewardSet(options.reward, device=device, timeout=options.reward_timeout)
    source = data.source(options.seed)
    rows, stored = task.load(source, options.split), task.load(replace(source, raw=True), options.split)
    folder = open_folder(options.output_dir, resume=True)
    policy = model.load().to(device)
    if options.cuda_graphs:
        policy.generator.replay_decoding()
    args = MethodConfig(
        output_dir=str(folder),
        use_cpu=device == "cpu",
        max_prompt_length=options.max_prompt_length,
        max_completion_length=options.max_completion_length,
        truncation_side=options.truncation_side,
    )
    limits = text_limits(policy, args)
    examples = Examples(rows, policy, *limits, args.truncation_side)
    not_theirs = ("output_dir", "device", "shard_size", "batch_size", "cuda_graphs", "reward_timeout")
    settings = data.made_with() | asdict(model) | asdict(options)
    settings = {k: v for k, v in settings.items() if k not in not_theirs}
    path = write_candidates(
        policy, examples, stored, options.decoding(limits[1]), rewards, folder, settings,
        options.batch_size, options.shard_size, options.seed,
    )  # fmt: skip
    write_settings(folder, data, model, options)
    say(f"{len(examples)} inputs with up to {options.num_candidates} candidates each in {path}")
