"""How rows are laid out for a model: widened to one length, or behind one copy of a decoder-only model's prompt."""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from semioffline.types import Row, Text


class Layout(NamedTuple):
    ids: Tensor
    """(B, L) prompt, then each row's input tokens, then padding: nothing in between."""
    positions: Tensor
    """(B, L) position ids; every row starts again where the prompt ends."""
    segments: Tensor
    """(B, L) 0 in the prompt, r in the r-th row (from 1), -1 at padding."""
    predicts: list[Tensor]
    """Of `pack`: for each row, (B, T): the place in the sequence whose output predicts the row's token t. Of
    `side_by_side`: for each row, (N,): those places of its wanted tokens, in the flattened batch."""


def pack(source: Text, rows: list[Row], pad_id: int, multiple: int = 1) -> Layout:
    """Lay the rows after one copy of the prompt, padded to a multiple of `multiple`.

    A row's first token is predicted at the prompt's last place, its token t at the place of its token t - 1; so its
    last token never has to be put in.
    """
    device, batch = source.ids.device, source.ids.shape[0]
    prompt_lengths = source.keep_mask.sum(1)
    lengths = [(row.keep_mask.sum(1) - 1).clamp(min=0) for row in rows]
    total = round_up(int((prompt_lengths + sum(lengths)).max()), multiple)
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


def side_by_side(rows: list[Row], start_id: int, pad_id: int, together: bool) -> Layout:
    """The decoder's inputs for rows that have their source elsewhere: a start token, then all tokens but the last.

    together: all rows of an input in one sequence, (B, sum of T); else one sequence each, (len(rows) * B, longest T).
    """
    size = len(rows[0].ids)
    shifted = [torch.cat([torch.full_like(row.ids[:, :1], start_id), row.ids[:, :-1]], dim=1) for row in rows]
    lengths = [row.ids.shape[1] for row in rows]
    device = rows[0].ids.device
    positions = [torch.arange(length, device=device) for length in lengths]
    if together:
        total, starts = sum(lengths), [sum(lengths[:r]) for r in range(len(rows))]
        lines = [torch.arange(size, device=device) * total + start for start in starts]
        segments = [torch.full_like(position, r + 1) for r, position in enumerate(positions)]
        layout = torch.cat(shifted, dim=1), torch.cat(positions)[None], torch.cat(segments)[None]
    else:
        total = max(lengths)
        lines = [(torch.arange(size, device=device) + r * size) * total for r in range(len(rows))]
        ids = torch.cat([widen(tokens, total, pad_id) for tokens in shifted])
        layout = ids, torch.arange(total, device=device)[None], torch.ones_like(ids[:1])
    selected = [
        (line[:, None] + position[None])[row.wanted] for line, position, row in zip(lines, positions, rows, strict=True)
    ]
    return Layout(*layout, selected)


def block_mask(segments: Tensor) -> Tensor:
    """(B, 1, L, L) True where place q may attend to place k: causal, the prompt and its own row only."""
    length = segments.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=segments.device).tril()
    key, query = segments[:, None, :], segments[:, :, None]
    itself = torch.eye(length, dtype=torch.bool, device=segments.device)  # padding attends to itself: no empty softmax
    return (causal & ((key == 0) | (key == query)) | itself)[:, None]


def places(predicts: Tensor, wanted: Tensor, length: int) -> Tensor:
    """(N,) where in the flattened (B, length) batch the wanted tokens are predicted, in row-major order."""
    offsets = torch.arange(len(predicts), device=predicts.device)[:, None] * length
    return (predicts + offsets)[wanted]


def widen(tensor: Tensor, length: int, value: Any) -> Tensor:
    return nn.functional.pad(tensor, (0, length - tensor.shape[-1]), value=value)


def round_up(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


def pad_text(text: Text, multiple: int, pad_id: int) -> Text:
    length = round_up(text.ids.shape[1], multiple)
    return Text(widen(text.ids, length, pad_id), widen(text.keep_mask, length, False), widen(text.words, length, -1))


def pad_row(row: Row, multiple: int, pad_id: int) -> Row:
    length = round_up(row.ids.shape[1], multiple)
    return replace(
        row,
        ids=widen(row.ids, length, pad_id),
        keep_mask=widen(row.keep_mask, length, False),
        wanted=widen(row.wanted, length, False),
        added_ids=None if row.added_ids is None else widen(row.added_ids, length, -1),
    )


def hints(rows: list[Row]) -> list[Row]:
    """The rows with added ids in the place of ids, -1 where nothing is added; none where no row adds anything."""
    if all(row.added_ids is None for row in rows):
        return []
    return [replace(row, ids=torch.full_like(row.ids, -1) if row.added_ids is None else row.added_ids) for row in rows]


def without_ids(source: Text) -> Text:
    return replace(source, ids=torch.full_like(source.ids, -1))


def pad_left(ids: Tensor, keep: Tensor, pad_id: int) -> tuple[Tensor, Tensor]:
    """Right padding to left padding: roll each row by its number of padding tokens."""
    length = ids.shape[1]
    at = (torch.arange(length, device=ids.device)[None] + keep.sum(1, keepdim=True)) % length
    keep = keep.gather(1, at)
    return ids.gather(1, at).masked_fill(~keep, pad_id), keep
