"""Lay rows out for a model: padded to one length, or after one copy of a decoder-only model's prompt."""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from semioffline.algorithm.tensors import Row, Text


class Layout(NamedTuple):
    ids: Tensor
    """(B, L) the prompt, then the input tokens of each row, then padding, without gaps."""
    positions: Tensor
    """(B, L) position ids; every row starts again where the prompt ends."""
    segments: Tensor
    """(B, L) 0 in the prompt, r in the r-th row (from 1), -1 at padding."""
    predicts: list[Tensor]
    """From `pack`: for each row, (B, T), the position in the sequence whose output predicts the row's token t. From
    `side_by_side`: for each row, (N,), these positions of its wanted tokens, in the flattened batch."""


def pack(source: Text, rows: list[Row], pad_id: int, multiple: int = 1) -> Layout:
    """Lay the rows after one copy of the prompt, padded to a multiple of `multiple`.

    A row's first token is predicted at the last position of the prompt, its token t at the position of its token t - 1.
    So its last token is never an input.
    """
    device = source.ids.device
    prompt_lengths = source.keep_mask.sum(1, keepdim=True)  # (B, 1)
    tokens = [source.ids, *(row.ids for row in rows)]
    steps = torch.arange(max(part.shape[1] for part in tokens), device=device)[None]
    inside, positions, predicts, start = [source.keep_mask], [steps[:, : source.ids.shape[1]]], [], prompt_lengths
    for row in rows:
        length = row.ids.shape[1]
        inside.append(widen(row.keep_mask[:, 1:], length, False))
        positions.append(prompt_lengths + steps[:, :length])
        predicts.append(torch.cat([prompt_lengths - 1, start + steps[:, : length - 1]], dim=1))
        start = start + inside[-1].sum(1, keepdim=True)
    total = round_up(int(start.max()), multiple)
    segments = [torch.full_like(part, number) for number, part in enumerate(tokens)]
    kept = torch.cat(inside, dim=1)
    at = (kept.cumsum(1) - 1).masked_fill(~kept, total)  # what is not kept goes to a column of its own, cut off below
    parts = tokens, [p.expand_as(s) for p, s in zip(positions, segments, strict=True)], segments

    def put(values: list[Tensor], empty: int) -> Tensor:
        laid = torch.full((len(at), total + 1), empty, device=device)
        return laid.scatter_(1, at, torch.cat(values, dim=1))[:, :total]

    ids, places, numbers = (put(values, empty) for values, empty in zip(parts, (pad_id, 0, -1), strict=True))
    return Layout(ids, places, numbers, predicts)


def side_by_side(rows: list[Row], start_id: int, pad_id: int, together: bool) -> Layout:
    """Return the decoder's inputs for rows of an encoder-decoder: a start token, then all tokens but the last.

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
    """Return (B, 1, L, L), True where position q may attend to position k: earlier positions of the prompt and of its
    own row."""
    length = segments.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=segments.device).tril()
    key, query = segments[:, None, :], segments[:, :, None]
    itself = torch.eye(length, dtype=torch.bool, device=segments.device)  # padding attends to itself: no empty softmax
    return (causal & ((key == 0) | (key == query)) | itself)[:, None]


def places(predicts: Tensor, wanted: Tensor, length: int) -> Tensor:
    """Return (N,), the positions in the flattened (B, length) batch that predict the wanted tokens, in row-major
    order."""
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
    """Return the rows with the ids to add (-1 for none) as their ids; None if no row adds anything."""
    if all(row.added_ids is None for row in rows):
        return []
    return [replace(row, ids=torch.full_like(row.ids, -1) if row.added_ids is None else row.added_ids) for row in rows]


def without_ids(source: Text) -> Text:
    return replace(source, ids=torch.full_like(source.ids, -1))


def pad_left(ids: Tensor, keep: Tensor, pad_id: int) -> tuple[Tensor, Tensor]:
    """Turn right padding into left padding: roll each row by its number of padding tokens."""
    length = ids.shape[1]
    at = (torch.arange(length, device=ids.device)[None] + keep.sum(1, keepdim=True)) % length
    keep = keep.gather(1, at)
    return ids.gather(1, at).masked_fill(~keep, pad_id), keep
