"""Rewards from verdicts and from response lengths.

Plain arithmetic with operators and methods that numpy and jax arrays share,
so that the same function runs on the host and inside a compiled program.
"""


def outcome(is_correct):
  """Reward of the final answer: +1 if it is right, else -1.

  DAPO eq. (7), arXiv:2503.14476.

  Args:
    is_correct: Boolean array of any shape.

  Returns:
    Array of the same shape, floating point.
  """
  return is_correct * 2.0 - 1.0


def overlong_penalty(response_len, *, max_len: int, cache_len: int):
  """Soft overlong punishment, to be added to the outcome reward.

  DAPO eq. (13), arXiv:2503.14476:
    0                                      |y| <= L_max - L_cache
    ((L_max - L_cache) - |y|) / L_cache    L_max - L_cache < |y| <= L_max
    -1                                     L_max < |y|

  Deviates: verl's recipe has no last branch, which only matters where a
  response can be longer than max_len; here the penalty is clamped at -1.

  Args:
    response_len: Array [B], number of generated tokens, end included.
    max_len: L_max, tokens; from here on the penalty is -1.
    cache_len: L_cache, tokens before max_len in which the penalty grows;
      0 switches the penalty off.

  Returns:
    Array [B] of penalties in [-1, 0], floating point.

  Raises:
    ValueError: cache_len is negative or exceeds max_len.
  """
  if not 0 <= cache_len <= max_len:
    raise ValueError(
      f"cache_len must lie between 0 (off) and max_len, got cache_len="
      f"{cache_len}, max_len={max_len}; the paper has 4096 and 20480"
    )
  if cache_len == 0:
    return response_len * 0.0
  over = (max_len - cache_len - response_len) / cache_len
  return over.clip(-1.0, 0.0)
