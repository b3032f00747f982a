"""The options of `compare`, and how they become one config for each method."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from semioffline.cli.options import as_flags, parse, unread_setting
from semioffline.cli.recipes import Recipe, take_recipe
from semioffline.config import MethodConfig, check_own_settings, setting_names
from semioffline.data.options import DataOptions, ModelOptions
from semioffline.errors import UserError, unknown
from semioffline.experiments.plan import START
from semioffline.methods.shared.registry import check_method, config_class
from semioffline.policy.decoding import Decoding
from semioffline.storage.untrusted import check_name, parse_settings
from semioffline.validation import (
    BEAMS,
    NOT_NEGATIVE,
    PROCESSES,
    SECONDS,
    SEED,
    STEPS,
    TEMPERATURE,
    Options,
    Range,
    setting,
    show,
)

OWN = ("seeds", "steps")
"""Names in --settings of a method that are not settings of the method."""
METHODS = ["ft", "mft", "gold", "brio", "self_critic", "actor_critic", "avg", "semi_offline", "brio+semi_offline"]


@dataclass
class CompareOptions(Options):
    methods: list[str] = setting(
        METHODS, "Methods to compare. METHOD@LABEL is METHOD with its own settings from --settings."
    )
    reward: list[str] = setting(
        [], "Reward by name, file.py:function, module:function or model:NAME; several are added."
    )
    seeds: list[int] = setting(
        [0], "Random seeds; one run each. `seeds` of a method in --settings override them.", allowed=SEED
    )
    budget_seconds: float = setting(60.0, "Training time of each method, in seconds.", allowed=SECONDS)
    budget_steps: int | None = setting(None, "Steps of each method, instead of --budget_seconds.", allowed=STEPS)
    start_steps: int = setting(
        300,
        "Steps of the M-FT stage before the comparison; 0: --model is an M-FT checkpoint already.",
        allowed=STEPS._replace(low=0),
    )
    start_learning_rate: float | None = setting(
        None, "Learning rate of the M-FT stage. Default: 1e-4; 2e-3 for the tiny built-in model.", allowed=NOT_NEGATIVE
    )
    unseen_inputs: int | None = setting(
        None, "Leave this many training inputs out of the M-FT stage. All methods train on them alone.", allowed=STEPS
    )
    num_candidates: int = setting(8, "Candidates per input, for the methods that need them.", allowed=BEAMS)
    candidate_temperature: float = setting(
        1.0, "Sampling temperature of the candidates; lower: closer to the most likely text.", allowed=TEMPERATURE
    )
    candidate_rows: int | None = setting(
        None, "Training inputs to generate candidates for. Default: all.", allowed=STEPS
    )
    settings: str = setting("{}", 'Settings of single methods, as JSON: {"avg": {"num_samples": 8}}.')
    evaluations: int = setting(
        6, "Number of evaluations on validation: after the whole budget, 1/2, 1/4, 1/8, ...", allowed=Range(1, 64)
    )
    keep: str = setting("best", "Checkpoint to test: best (by validation reward) | last.", choices=("best", "last"))
    jobs: int = setting(
        1,
        "Runs at a time, each in a process. Every method is timed alone first, to turn seconds into steps.",
        allowed=PROCESSES._replace(low=1),
    )
    beside: list[str] = setting(
        [], "LABEL=FOLDER of other comparisons with the same M-FT checkpoint, added as METHOD@LABEL."
    )
    only: str | None = setting(
        None, "Do one part: METHOD:SEED, start:SEED or timing (without a table), or table (of the finished runs)."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_shape(parse_settings(self.settings))

    def sampling(self, max_new_tokens: int) -> Decoding:
        """Return the decoding settings of candidates."""
        return Decoding(
            do_sample=True,
            temperature=self.candidate_temperature,
            top_p=0.95,
            max_new_tokens=max_new_tokens,
            num_return_sequences=self.num_candidates,
        )


TYPES = [DataOptions, ModelOptions, CompareOptions]


def read_command(
    argv: list[str], defaults: Recipe
) -> tuple[DataOptions, ModelOptions, CompareOptions, MethodConfig, dict[str, Recipe]]:
    """Parse and check the options of a comparison, the settings of its M-FT stage, and each method's own settings."""
    data, model, options, args = parse("compare", [*TYPES, config_class("mft")], argv, defaults, unread="ignore")
    listed = _listed(argv)
    if options.start_learning_rate is None:
        options = replace(options, start_learning_rate=2e-3 if model.model is None else 1e-4)
    by_method = _by_method(options, args, listed)
    _check_read(argv, [*options.methods, *listed])
    return data, model, options, args, by_method


def method_config(method: str, own: Recipe, argv: list[str], defaults: Recipe) -> MethodConfig:
    """Return the config of one method: the shared settings that it reads, and its own."""
    kind = config_class("mft" if method == START else method.partition("@")[0])
    flags = as_flags({name: value for name, value in own.items() if name not in OWN})
    return parse("compare", [*TYPES, kind], [*argv, *flags], defaults, unread="ignore")[3]


def _check_read(argv: list[str], methods: list[str]) -> None:
    """Reject a shared setting that none of the methods reads."""
    recipe, words = take_recipe(argv)
    names = {field.name for kind in TYPES for field in fields(kind)} | setting_names(config_class("mft"))
    for method in methods:
        names |= setting_names(config_class(method.partition("@")[0]))
    flags = [word.split("=")[0].lstrip("-").replace("-", "_") for word in words if word.startswith("--")]
    for kind, given in (("key in the recipe", map(str, recipe)), ("option", flags)):
        for name in given:
            if name not in names and name.removeprefix("no_") not in names:
                raise unread_setting(kind, name, names)


def _listed(argv: list[str]) -> list[str]:
    """Return the methods of the recipe, also those that --methods leaves out."""
    recipe, _ = take_recipe(argv)
    listed = recipe.get("methods", METHODS) if recipe else []
    return [str(method) for method in (listed if isinstance(listed, list) else [listed])]


def _by_method(options: CompareOptions, args: MethodConfig, listed: list[str]) -> dict[str, Recipe]:
    """Return each method's own settings, those of METHOD before those of METHOD@LABEL. All names are checked here.

    listed: the recipe's methods. --methods may leave some of them out; their settings are then not used.
    """
    if not options.reward:
        raise UserError("compare needs a reward: give --reward (a name, file.py:function or model:NAME)")
    for method in options.methods:
        check_method(method.partition("@")[0])
        _check_label(method)
        if options.methods.count(method) > 1:
            raise UserError(f"--methods has {method} twice: METHOD@LABEL is METHOD with settings of its own")
    if args.early_stopping_patience is not None:
        raise UserError(
            "early_stopping_patience cannot be used in a comparison, where all seeds of a method train for the same "
            "steps"
        )
    options.sampling(1)
    given = parse_settings(options.settings)
    bases = [method.partition("@")[0] for method in options.methods]
    for method in given:
        if method not in [START, *options.methods, *bases, *listed, *(name.partition("@")[0] for name in listed)]:
            raise unknown("method in --settings", method, [START, *options.methods])
    for method, own in given.items():
        _check_own(method, own)
    found = {m: given.get(base, {}) | given.get(m, {}) for m, base in zip(options.methods, bases, strict=True)}
    return found | {START: {k: v for k, v in given.get(START, {}).items() if k not in OWN}}


def _check_label(method: str) -> None:
    """Check that METHOD@LABEL can be the name of a folder."""
    _, is_labelled, label = check_name("method", method).partition("@")
    if is_labelled and (not label or "@" in label):
        raise UserError(f"the method '{method}' must be METHOD or METHOD@LABEL, with a label that has no @ in it")


def _check_own(method: str, own: Recipe) -> None:
    """Check the names and values of a method's own settings."""
    kind: Any = config_class("mft" if method == START else method.partition("@")[0])
    names = setting_names(kind)
    for name in own.keys() - names - set(OWN):
        raise unread_setting(f"setting of {method}", name, names)
    check_own_settings(kind, method, {name: value for name, value in own.items() if name not in OWN})


def _check_shape(given: Any) -> None:
    """Check that --settings has the form {method: {name: value}}, and its seeds and steps."""
    if not isinstance(given, dict) or not all(isinstance(own, dict) for own in given.values()):
        raise UserError('--settings must be a map of methods to maps of settings: {"avg": {"num_samples": 8}}')
    for method, own in given.items():
        seeds, steps = own.get("seeds", [0]), own.get("steps")
        if not isinstance(seeds, list) or not seeds or not all(type(seed) is int and seed in SEED for seed in seeds):
            raise UserError(f"--settings: the seeds of {method} must be a list of numbers {SEED}, not {show(seeds)}")
        if steps is not None and (type(steps) is not int or steps not in STEPS):
            raise UserError(f"--settings: the steps of {method} must be a number {STEPS}, not {show(steps)}")
