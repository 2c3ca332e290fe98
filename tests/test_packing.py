"""Packed rows hold every response once, with its prompt before it."""

import numpy as np
import pytest
import small

from dapo_jax import packing
from dapo_jax.models import attention


def pack(b, **layout):
  return packing.pack(
    b["prompt_tokens"], b["prompt_len"], b["tokens"], b["response_len"],
    **layout,
  )  # fmt: skip


@pytest.mark.parametrize("row_len", [14, 20, 33, 120])
@pytest.mark.parametrize("share", [True, False])
def test_what_a_response_sees_is_its_prompt_and_itself(row_len, share):
  b = small.batch(response_len=np.array([3, 8, 1, 0, 2, 5, 8, 8, 8, 1, 1, 4]))
  slots = pack(b, row_len=row_len, capacity=12, share_prompts=share)
  rows = slots.rows
  mask = np.asarray(attention.row_mask(rows.family, rows.response))
  for i, n in enumerate(b["response_len"]):
    if n == 0:
      assert slots.row[i] == -1
      continue
    row, start = slots.row[i], slots.start[i]
    prompt = b["prompt_tokens"][i // small.G][: b["prompt_len"][i // small.G]]
    for t in range(n):
      seen = np.flatnonzero(mask[row, start + t])
      np.testing.assert_array_equal(
        rows.tokens[row, seen], [*prompt, *b["tokens"][i, : t + 1]]
      )
      np.testing.assert_array_equal(
        rows.positions[row, seen], np.arange(len(prompt) + t + 1)
      )
      # The last token that it may be predicted from.
      assert rows.source[row, start + t] == seen[-2]
  assert rows.response_mask.sum() == b["response_len"].sum()


def test_a_prompt_stands_once_for_the_responses_of_a_row():
  b = small.batch(response_len=np.full(12, 2))
  slots = pack(b, row_len=200, capacity=1)
  tokens = int((slots.rows.family > 0).sum())
  assert tokens == b["prompt_len"].sum() + 24
  apart = pack(b, row_len=14, capacity=12, share_prompts=False)
  assert apart.num_rows == 12


def test_there_and_back():
  b = small.batch()
  slots = pack(b, row_len=33, capacity=12)
  there = packing.to_rows(b["old_logprobs"], b["response_len"], slots)
  back = packing.from_rows(there, b["response_len"], small.T, slots)
  mask = np.arange(small.T) < b["response_len"][:, None]
  np.testing.assert_array_equal(back, np.where(mask, b["old_logprobs"], 0))


def test_what_does_not_fit_is_told():
  b = small.batch(response_len=np.full(12, 8))
  with pytest.raises(ValueError, match="row_len"):
    pack(b, row_len=8, capacity=12)
  with pytest.raises(ValueError, match="rows of 14"):
    pack(b, row_len=14, capacity=3)
