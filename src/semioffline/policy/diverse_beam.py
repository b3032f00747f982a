"""Diverse beam search, in the form that `model.generate(custom_generate=...)` accepts: Transformers 5 ships none.

`generate` prepares everything before it calls the search: `input_ids` (B * N, prompt) and `model_kwargs` arrive with
each input repeated N = num_beams times, the encoder already run, the cache empty. It passes the parameters that it
finds in the signature here to the search instead of to its GenerationConfig, where `num_beam_groups` would ask for
remote code. It does not pass `synced_gpus`: parameters must not be sharded over processes (ZeRO-3, FSDP) meanwhile.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation.utils import GenerateBeamDecoderOnlyOutput, GenerateBeamEncoderDecoderOutput

from semioffline.errors import UserError
from semioffline.validation import show

TokenRule = Callable[[Any, Any], Tensor]
"""Transformers' LogitsProcessorList (ids, scores -> scores) or StoppingCriteriaList (ids, None -> ended)."""

SearchResult = Tensor | GenerateBeamDecoderOnlyOutput | GenerateBeamEncoderDecoderOutput
"""Token ids, or with return_dict_in_generate=True an output object with `sequences` and `sequences_scores`."""

_NEVER = -1.0e9
"""Score of a beam that must not be chosen. It is finite, as in transformers' beam search, so that sums can be
compared."""

MOST_DIVERSE = 1000
"""Largest diversity penalty. With a larger one the results are the same, but float32 sums lose the
log-probabilities."""


def diverse_beam_search(
    model: Any,
    input_ids: Tensor,
    logits_processor: TokenRule,
    stopping_criteria: TokenRule,
    generation_config: GenerationConfig,
    num_beam_groups: int = 1,
    diversity_penalty: float = 0.0,
    **model_kwargs: Any,
) -> SearchResult:
    """Run diverse beam search (Vijayakumar et al. 2018, Algorithm 1, Hamming diversity), for `model.generate`:

        model.generate(**inputs, custom_generate=diverse_beam_search, num_beams=16, num_beam_groups=16,
                       diversity_penalty=1.0, num_return_sequences=16)

    The N beams of an input form G groups of n = N / G. At every step the groups choose one after another, and group g
    sees log p(v | y_<t, x) - diversity_penalty * #{beams of groups before g that went on with v at this step}.
    A hypothesis scores the sum of these over its tokens / length ** length_penalty, EOS counted. As in transformers 4,
    the penalty stays in the score, and hypotheses that end are not counted: nothing discourages EOS, and a group that
    has stopped penalises nobody. One group is transformers' own beam search, token for token.

    Returns (B * num_return_sequences, prompt + new) ids, padded on the right. Every group gives its best hypothesis
    before any gives its second, and so on; those returned for one input are sorted by score, best first.
    """
    _refuse_unsupported(generation_config, num_beam_groups, diversity_penalty)
    (rows, prompt_length), num_beams = input_ids.shape, generation_config.num_beams
    shape = (rows // num_beams, num_beam_groups, num_beams // num_beam_groups)  # (B, G, n)
    prompts = input_ids.reshape(*shape, prompt_length)
    groups = [_Group(prompts[:, g], generation_config) for g in range(num_beam_groups)]
    outputs = model._prefill(input_ids, generation_config, model_kwargs)
    for length in range(prompt_length, generation_config.max_length):
        model_kwargs = model._update_model_kwargs_for_generation(
            outputs, model_kwargs, is_encoder_decoder=model.config.is_encoder_decoder
        )
        logits = outputs.logits[:, -1].to(device=input_ids.device, dtype=torch.float32, copy=True)  # (B * N, V)
        log_probs = logits_processor(input_ids, logits.log_softmax(-1)).reshape(*shape, -1)  # (B, G, n, V)
        if not _advance(groups, log_probs, diversity_penalty, length, stopping_criteria):
            break
        input_ids = torch.stack([group.tokens for group in groups], 1)[..., : length + 1].flatten(0, 2)
        _reorder_cache(model_kwargs, torch.stack([group.parents for group in groups], 1))
        step = 1 if model_kwargs["use_cache"] else None  # tokens the model has not seen yet; None: all
        inputs = model.prepare_inputs_for_generation(input_ids, next_sequence_length=step, **model_kwargs)
        outputs = model(**inputs, return_dict=True)
    sequences, scores = _best(groups, generation_config.num_return_sequences)
    if not generation_config.return_dict_in_generate:
        return sequences
    output: Any = GenerateBeamEncoderDecoderOutput if model.config.is_encoder_decoder else GenerateBeamDecoderOnlyOutput
    result: SearchResult = output(sequences=sequences, sequences_scores=scores)
    return result


def group_problems(num_beams: int, num_beam_groups: int, diversity_penalty: float) -> list[str]:
    """Return the problems of these settings, one sentence each."""
    wrong = []
    if num_beam_groups < 1 or num_beams % num_beam_groups:
        wrong.append(f"num_beam_groups={show(num_beam_groups)} must divide num_beams={show(num_beams)}")
    if not 0 <= diversity_penalty <= MOST_DIVERSE:
        wrong.append(f"diversity_penalty must be from 0 to {MOST_DIVERSE:g}, not {diversity_penalty}")
    return wrong


def _refuse_unsupported(config: GenerationConfig, num_beam_groups: int, diversity_penalty: float) -> None:
    wrong = group_problems(config.num_beams, num_beam_groups, diversity_penalty)
    if config.do_sample:
        wrong.append("do_sample=True is not supported: the groups take the likeliest tokens")
    for name in ("output_logits", "output_attentions", "output_hidden_states"):
        if getattr(config, name, None):
            wrong.append(f"{name}=True is not supported: only sequences and sequences_scores are returned")
    if wrong:
        raise UserError(f"diverse beam search: {'; '.join(wrong)}.")


def _advance(
    groups: "list[_Group]", log_probs: Tensor, penalty: float, length: int, stopping_criteria: TokenRule
) -> bool:
    """Advance all groups by one token, in order. Each is discouraged from the tokens of the groups before. Return
    whether to continue."""
    counts = torch.zeros_like(log_probs[:, 0, 0])  # (B, V): how many beams of earlier groups went on with each token
    all_ended = torch.ones((), dtype=torch.bool, device=counts.device)
    for g, group in enumerate(groups):
        counted = group.open[:, None].to(counts.dtype)  # (B, 1)
        ended = group.advance(log_probs[:, g] - penalty * counts[:, None], length, stopping_criteria)
        chosen = group.tokens[:, :, length]  # (B, n)
        counts.scatter_add_(1, chosen, counted.expand_as(chosen))
        all_ended = all_ended & ended.all()
    any_open = torch.stack([group.open for group in groups]).any()
    return bool(any_open & ~all_ended)


class _Group:
    """One group of beams for every input: n running beams, and the n best hypotheses that ended so far."""

    def __init__(self, prompts: Tensor, config: GenerationConfig) -> None:
        self.config = config
        batch, beams, self.prompt_length = prompts.shape
        eos: Tensor | None = config._eos_token_tensor
        pad: Tensor | None = config._pad_token_tensor
        self.eos = prompts.new_empty(0) if eos is None else eos.to(prompts.device)
        # Enough candidates that n go on even if every beam's best continuations are all the EOS ids.
        self.width = beams * max(2, 1 + len(self.eos))
        self.tokens = prompts.new_full((batch, beams, config.max_length), -1 if pad is None else int(pad))  # (B, n, L)
        self.tokens[:, :, : self.prompt_length] = prompts
        self.scores = torch.zeros(batch, beams, device=prompts.device)
        self.scores[:, 1:] = _NEVER  # the beams are equal at first: let only one of them continue
        self.parents = torch.zeros_like(self.tokens[:, :, 0])  # (B, n): the beam that each running beam continues
        self.ended = self.tokens.clone()  # (B, n, L), sorted by score
        self.ended_scores = torch.full_like(self.scores, _NEVER)
        self.ended_lengths = torch.zeros_like(self.parents)  # new tokens; 0 is a free place
        self.open = torch.ones(batch, dtype=torch.bool, device=prompts.device)  # (B,): may still find something better

    def advance(self, log_probs: Tensor, length: int, stopping_criteria: TokenRule) -> Tensor:
        """Extend the beams, which have `length` tokens, by one. Return which candidates ended. log_probs: (B, n, V)."""
        batch, beams, vocabulary = log_probs.shape
        scores, index = (log_probs + self.scores[:, :, None]).flatten(1).topk(self.width)  # (B, W) of n * V
        parents, new = index // vocabulary, index % vocabulary
        tokens = _take(self.tokens, parents)  # (B, W, L)
        tokens[:, :, length] = new
        ended = stopping_criteria(tokens[:, :, : length + 1].flatten(0, 1), None).view(batch, -1)  # (B, W)
        self._record(tokens, scores, ended, length + 1 - self.prompt_length)
        # The best that go on. At the length limit none does: then the best without EOS, for the other groups to see.
        running = (ended.long() + torch.isin(new, self.eos)).argsort(dim=1, stable=True)[:, :beams]  # (B, n)
        self.scores = _take(scores + ended * _NEVER, running)
        self.tokens, self.parents = _take(tokens, running), _take(parents, running)
        self._close(length + 1 - self.prompt_length)
        return ended

    def _record(self, tokens: Tensor, scores: Tensor, ended: Tensor, new_tokens: int) -> None:
        """Merge the hypotheses that end at this step into the finished ones, and keep the n best of each group (n:
        beams per group), by score / new_tokens ** length_penalty."""
        beams = self.scores.shape[1]
        worthy = ended & self.open[:, None]
        worthy[:, beams:] = False  # candidates after the n-th are spares for the running beams
        scores = torch.where(worthy, scores / new_tokens**self.config.length_penalty, _NEVER)
        self.ended_scores, best = torch.cat([self.ended_scores, scores], 1).topk(beams)
        self.ended = _take(torch.cat([self.ended, tokens], 1), best)
        self.ended_lengths = _take(torch.cat([self.ended_lengths, worthy * new_tokens], 1), best)

    def _close(self, new_tokens: int) -> None:
        """Stop a group if n hypotheses ended and, unless early stopping is enough, no running beam can beat the worst
        of them.

        The bound is that of transformers: the best running beam scored at its present length, or with
        early_stopping="never" and a positive length penalty at the greatest length.
        """
        power, early = self.config.length_penalty, self.config.early_stopping
        if early == "never" and power > 0:
            new_tokens = self.config.max_length - self.prompt_length
        hopeless = self.scores[:, 0] / new_tokens**power <= self.ended_scores.amin(1)
        full = (self.ended_lengths > 0).all(1)
        self.open = self.open & ~(full if early is True else full & hopeless)


def _take(beams: Tensor, index: Tensor) -> Tensor:
    """Return rows of beams (B, m) or (B, m, L) at index (B, k)."""
    return beams.gather(1, index) if beams.dim() == 2 else beams.take_along_dim(index[:, :, None], 1)


def _reorder_cache(model_kwargs: dict[str, Any], parents: Tensor) -> None:
    """Reorder the key-value cache: each beam gets the cache of its parent. parents has shape (B, G, n); its indices are
    relative to the group."""
    batch, groups, beams = parents.shape
    cache: Any = model_kwargs.get("past_key_values")
    if cache is None and not model_kwargs["use_cache"]:
        return
    # An encoder-decoder's cross-attention is the same for all beams of an input: only self-attention moves.
    cache = getattr(cache, "self_attention_cache", cache)
    if not hasattr(cache, "reorder_cache"):
        raise UserError(f"diverse beam search: {type(cache).__name__} cannot follow beams; set use_cache=False.")
    first = torch.arange(batch * groups, device=parents.device).view(batch, groups, 1) * beams
    cache.reorder_cache((first + parents).flatten())


def _best(groups: list[_Group], count: int) -> tuple[Tensor, Tensor]:
    """Return `count` hypotheses, sorted by score: first the best of every group, then the second best of every group,
    and so on."""
    # Rank before group, (B, n, G), so that the first places hold the best of every group.
    scores, order = torch.stack([group.ended_scores for group in groups], 2).sort(dim=2, descending=True, stable=True)
    order = (order + torch.arange(scores.shape[1], device=order.device)[:, None] * len(groups)).flatten(1)
    scores, by_score = scores.flatten(1)[:, :count].sort(dim=1, descending=True, stable=True)
    chosen = order.gather(1, by_score)  # (B, count), into n * G
    lengths = _take(torch.stack([group.ended_lengths for group in groups], 2).flatten(1), chosen)
    tokens = _take(torch.stack([group.ended for group in groups], 2).flatten(1, 2), chosen)
    longest = groups[0].prompt_length + int(lengths.max())
    return tokens[:, :, :longest].flatten(0, 1), scores.flatten()
