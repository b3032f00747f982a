"""Decoding settings, for evaluation and for static targets: greedy, beam search, sampling, diverse beam search."""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from semioffline.config import MethodConfig
from semioffline.errors import UserError
from semioffline.policy.diverse_beam import MOST_DIVERSE, diverse_beam_search, group_problems
from semioffline.validation import (
    BEAMS,
    NEW_TOKENS,
    NOT_NEGATIVE,
    PENALTY,
    TEMPERATURE,
    Range,
    descriptions,
    setting,
    show,
    wrong_settings,
)

Strategy = Literal["greedy", "beam", "sampling", "diverse_beam"]


class SamplingSettings(Protocol):
    """Settings of the distribution that tokens are drawn from."""

    temperature: float
    top_k: int
    top_p: float


@dataclass(frozen=True)
class Decoding:
    """Settings of one decoding run. Wrong settings are rejected on construction, all of them in one UserError.

    Other settings of the model's own `generation_config` (forced or suppressed tokens, a repetition penalty, the EOS
    ids) still apply. For samples with their own random numbers, settings that change the distribution (the penalty,
    min_p, a bias, bad words of several tokens) are ignored: these samples come from the plain policy
    (`policy.neutral`).
    """

    num_beams: int = setting(
        1, "Beams per input, over all groups; 1 is greedy decoding or plain sampling.", allowed=BEAMS
    )
    num_beam_groups: int = setting(1, "Groups of beams; more than 1 is diverse beam search.", allowed=BEAMS)
    diversity_penalty: float = setting(
        0.0,
        "Subtracted from a token's log-probability for each earlier group that chose it at this step; needs groups.",
        allowed=Range(0, MOST_DIVERSE),
    )
    do_sample: bool = setting(False, "Draw tokens at random instead of taking the likeliest.")
    temperature: float = setting(
        1.0, "Logits are divided by it before sampling; below 1 is more cautious. Sampling only.", allowed=TEMPERATURE
    )
    top_p: float = setting(
        1.0,
        "Sample among the likeliest tokens that together reach this probability; 1 keeps all. Sampling only.",
        allowed=Range(0, 1, open_low=True),
    )
    top_k: int = setting(
        0, "Sample among this many likeliest tokens; 0 keeps all. Sampling only.", allowed=NOT_NEGATIVE
    )
    max_new_tokens: int = setting(64, "Maximum number of new tokens, EOS included.", allowed=NEW_TOKENS)
    min_new_tokens: int = setting(0, "No EOS before this many new tokens.", allowed=NEW_TOKENS._replace(low=0))
    length_penalty: float = setting(
        1.0,
        "Beams score summed log-probability / length ** length_penalty; above 0 favours long. Ignored without beams.",
        allowed=PENALTY,
    )
    no_repeat_ngram_size: int = setting(
        0,
        "No n-gram of this size occurs twice (in decoder-only models the prompt counts too); 0 switches it off.",
        allowed=NOT_NEGATIVE,
    )
    early_stopping: bool = setting(
        False, "Stop an input as soon as it has as many finished hypotheses as beams. Ignored without beams."
    )
    num_return_sequences: int = setting(
        1, "Texts per input: at most num_beams, or any number when sampling.", allowed=BEAMS
    )

    def __post_init__(self) -> None:
        self.validate()

    @classmethod
    def for_evaluation(cls, config: MethodConfig, max_new_tokens: int) -> "Decoding":
        """Return the decoding settings of evaluations during training."""
        return cls(
            num_beams=config.num_beams,
            length_penalty=config.length_penalty,
            no_repeat_ngram_size=config.no_repeat_ngram_size,
            min_new_tokens=config.min_new_tokens,
            max_new_tokens=max_new_tokens,
        )

    def validate(self) -> None:
        """Raise one UserError that names every problem."""
        described = descriptions(Decoding)
        wrong = list(wrong_settings(self, described))
        if not any(item.type_problem(getattr(self, name)) for name, item in described.items()):
            wrong += self._contradictions()  # numbers cannot be compared before they are
        if wrong:
            raise UserError(f"decoding: {'; '.join(wrong)}.")

    def _contradictions(self) -> list[str]:
        wrong = group_problems(self.num_beams, self.num_beam_groups, 0.0)
        if self.min_new_tokens > self.max_new_tokens:
            wrong.append(
                f"min_new_tokens={show(self.min_new_tokens)} is above max_new_tokens={show(self.max_new_tokens)}"
            )
        if self.num_beam_groups > 1 and self.diversity_penalty == 0:
            wrong.append("num_beam_groups above 1 needs a diversity_penalty, e.g. 1.0: without it all groups are equal")
        if self.num_beam_groups == 1 and self.diversity_penalty > 0:
            wrong.append(f"diversity_penalty={show(self.diversity_penalty)} needs num_beam_groups above 1")
        if self.do_sample and self.num_beams > 1:
            what = "num_beams and num_beam_groups" if self.num_beam_groups > 1 else "num_beams"
            wrong.append(f"do_sample=True cannot be combined with {what} above 1: choose one")
        if not self.do_sample and (self.temperature != 1 or self.top_p != 1 or self.top_k != 0):
            wrong.append("temperature, top_p and top_k need do_sample=True")
        if not self.do_sample and self.num_return_sequences > self.num_beams:
            wrong.append(
                f"num_return_sequences={show(self.num_return_sequences)} is above num_beams={show(self.num_beams)}: "
                "raise num_beams or sample"
            )
        return wrong

    @property
    def strategy(self) -> Strategy:
        """The name of the decoding algorithm that these settings select."""
        if self.do_sample:
            return "sampling"
        if self.num_beam_groups > 1:
            return "diverse_beam"
        return "beam" if self.num_beams > 1 else "greedy"

    def signature(self) -> str:
        """Return all settings that have an effect as a short string for result files:
        `beam:4|lp:2|early:no|len:56-142|ngram:3|n:1`."""
        beam = f"lp:{self.length_penalty:g}|early:{'yes' if self.early_stopping else 'no'}"
        head = {
            "greedy": "greedy",
            "beam": f"beam:{self.num_beams}|{beam}",
            "sampling": f"sampling|t:{self.temperature:g}|p:{self.top_p:g}|k:{self.top_k}",
            "diverse_beam": f"diverse_beam:{self.num_beams}|groups:{self.num_beam_groups}"
            f"|penalty:{self.diversity_penalty:g}|{beam}",
        }[self.strategy]
        length = f"len:{self.min_new_tokens}-{self.max_new_tokens}"
        return f"{head}|{length}|ngram:{self.no_repeat_ngram_size}|n:{self.num_return_sequences}"

    def generate_kwargs(self) -> dict[str, Any]:
        """Return the arguments for `model.generate`: only those that act under this strategy, so that transformers
        warns of none.

        One warning is out of reach: a model whose `generation_config` sets `max_length` or `min_length` logs that
        `max_new_tokens` or `min_new_tokens` takes precedence. Set them to None on the model to silence it.
        """
        always = ("do_sample", "num_beams", "max_new_tokens", "min_new_tokens", "no_repeat_ngram_size")
        names = [*always, "num_return_sequences"]
        if self.strategy == "sampling":
            names += ["temperature", "top_p", "top_k"]
        if self.strategy in ("beam", "diverse_beam"):
            names += ["length_penalty", "early_stopping"]
        if self.strategy == "diverse_beam":
            names += ["num_beam_groups", "diversity_penalty"]
        kwargs = {name: getattr(self, name) for name in names}
        return kwargs | ({"custom_generate": diverse_beam_search} if self.strategy == "diverse_beam" else {})
