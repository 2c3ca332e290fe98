"""Packed rows: prompts and responses side by side, without padding between.

Host side, numpy. A row of R tokens holds families: a prompt, then as many of
its responses as fit. The prompt stands once for all of them, responses see
the prompt and themselves (`attention.row_mask`), and positions start again
behind the prompt. Loss and gradient are those of one response a row.
"""

from typing import NamedTuple

import jax
from jaxtyping import Int
import numpy as np

from dapo_jax.types import Rows


class Slots(NamedTuple):
  """Where each response stands in the rows.

  Attributes:
    rows: the packed rows, [capacity, R].
    row: row of each response, -1 if it was left out.
    start: first position of each response in its row.
    num_rows: rows in use; the others are empty.
  """

  rows: Rows
  row: Int[np.ndarray, "B"]
  start: Int[np.ndarray, "B"]
  num_rows: int


def pack(
  prompt_tokens: Int[np.ndarray, "P Lp"],
  prompt_len: Int[np.ndarray, "P"],
  response_tokens: Int[np.ndarray, "B T"],
  response_len: Int[np.ndarray, "B"],
  *,
  row_len: int,
  capacity: int,
  share_prompts: bool = True,
) -> Slots:
  """Packs responses into rows, in order, first come first served.

  Args:
    prompt_tokens: prompts, padded on the right.
    prompt_len: tokens of each prompt.
    response_tokens: responses; those of a prompt stand side by side.
    response_len: tokens of each response; 0 leaves it out.
    row_len: R, at least the longest prompt and response together.
    capacity: number of rows to return; B always suffice.
    share_prompts: False gives every response a row of its own.

  Raises:
    ValueError: a prompt and response do not fit a row, or the rows do not
      suffice.
  """
  group_size = len(response_len) // max(len(prompt_len), 1)
  shape = (capacity, row_len)
  tokens, positions, family, response, source = (
    np.zeros(shape, np.int32) for _ in range(5)
  )
  mask = np.zeros(shape, bool)
  row_of = np.full(len(response_len), -1, np.int32)
  start_of = np.zeros(len(response_len), np.int32)
  row, used, families, members = -1, row_len, 0, 0
  prompt_here, prompt_end = -1, 0  # prompt of the open family, its last token

  for b, length in enumerate(int(n) for n in response_len):
    if not length:
      continue
    p = b // group_size
    n = int(prompt_len[p])
    shared = share_prompts and prompt_here == p and used + length <= row_len
    if not shared:
      if n + length > row_len:
        raise ValueError(
          f"a prompt of {n} and a response of {length} tokens do not fit a "
          f"row of {row_len}; raise row_len to max_prompt_len + "
          "max_response_len"
        )
      if not share_prompts or used + n + length > row_len:
        row, used, families = row + 1, 0, 0
        if row == capacity:
          raise ValueError(f"{len(response_len)} responses need more than "
                           f"{capacity} rows of {row_len} tokens")  # fmt: skip
      families, members, prompt_here = families + 1, 0, p
      place = slice(used, used + n)
      tokens[row, place] = prompt_tokens[p, :n]
      positions[row, place] = np.arange(n)
      family[row, place] = families
      used += n
      prompt_end = used - 1
    members += 1
    place = slice(used, used + length)
    tokens[row, place] = response_tokens[b, :length]
    positions[row, place] = n + np.arange(length)
    family[row, place] = families
    response[row, place] = members
    source[row, place] = np.arange(used - 1, used + length - 1)
    source[row, used] = prompt_end
    mask[row, place] = True
    row_of[b], start_of[b] = row, used
    used += length
  rows = Rows(tokens, positions, family, response, source, mask)
  return Slots(rows, row_of, start_of, row + 1)


def to_rows(
  x: np.ndarray, response_len: Int[np.ndarray, "B"], slots: Slots
) -> np.ndarray:
  """Lays values of response tokens [B, T] out in the rows [capacity, R]."""
  out = np.zeros(slots.rows.tokens.shape, x.dtype)
  for b, (row, start, n) in enumerate(
    zip(slots.row, slots.start, response_len)
  ):
    if row >= 0:
      out[row, start : start + n] = x[b, :n]
  return out


def from_rows(
  x: np.ndarray, response_len: Int[np.ndarray, "B"], max_response_len: int,
  slots: Slots,
) -> np.ndarray:  # fmt: skip
  """Reads values of response tokens [B, T] back from rows; 0 on padding."""
  out = np.zeros((len(response_len), max_response_len), x.dtype)
  for b, (row, start, n) in enumerate(
    zip(slots.row, slots.start, response_len)
  ):
    if row >= 0:
      out[b, :n] = x[row, start : start + n]
  return out


def microbatches(tree, microbatch_size: int):
  """[capacity, R] -> [M, W, R]; capacity must be a multiple of W."""
  return jax.tree.map(
    lambda x: x.reshape(-1, microbatch_size, *x.shape[1:]), tree
  )
