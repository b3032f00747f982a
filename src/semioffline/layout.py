"""How a prompt and the rows that follow it are laid out in a decoder-only model's sequence."""

from typing import NamedTuple

import torch
from torch import Tensor

from semioffline.types import Row, Text


class Layout(NamedTuple):
    ids: Tensor
    """(B, L) prompt, then each row's input tokens, then padding: nothing in between."""
    positions: Tensor
    """(B, L) position ids; every row starts again where the prompt ends."""
    segments: Tensor
    """(B, L) 0 in the prompt, r in the r-th row (from 1), -1 at padding."""
    predicts: list[Tensor]
    """for each row, (B, T): the place in the sequence whose output predicts the row's token t."""


def pack(source: Text, rows: list[Row], pad_id: int) -> Layout:
    """Lay the rows after one copy of the prompt.

    A row's first token is predicted at the prompt's last place, its token t at the place of its token t - 1; so its
    last token never has to be put in.
    """
    device, batch = source.ids.device, source.ids.shape[0]
    prompt_lengths = source.keep_mask.sum(1)
    lengths = [(row.keep_mask.sum(1) - 1).clamp(min=0) for row in rows]
    total = int((prompt_lengths + sum(lengths)).max())
    ids = torch.full((batch, total), pad_id, device=device)
    positions = torch.zeros_like(ids)
    segments = torch.full_like(ids, -1)

    def put(tokens: Tensor, start: Tensor, length: Tensor, first_position: Tensor, segment: int) -> Tensor:
        steps = torch.arange(tokens.shape[1], device=device)[None, :]  # (1, T)
        places = start[:, None] + steps  # (B, T)
        inside = steps < length[:, None]
        at = (torch.arange(batch, device=device)[:, None].expand_as(places)[inside], places[inside])
        ids[at] = tokens[inside]
        positions[at] = (first_position[:, None] + steps)[inside]
        segments[at] = segment
        return places

    zeros = torch.zeros_like(prompt_lengths)
    put(source.ids, zeros, prompt_lengths, zeros, 0)
    start, predicts = prompt_lengths, []
    for number, (row, length) in enumerate(zip(rows, lengths, strict=True), start=1):
        places = put(row.ids, start, length, prompt_lengths, number)
        predicts.append(torch.cat([prompt_lengths[:, None] - 1, places[:, :-1]], dim=1))
        start = start + length
    return Layout(ids, positions, segments, predicts)


def block_mask(segments: Tensor) -> Tensor:
    """(B, 1, L, L) True where place q may attend to place k: causal, the prompt and its own row only."""
    length = segments.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=segments.device).tril()
    key, query = segments[:, None, :], segments[:, :, None]
    itself = torch.eye(length, dtype=torch.bool, device=segments.device)  # padding attends to itself: no empty softmax
    return (causal & ((key == 0) | (key == query)) | itself)[:, None]
