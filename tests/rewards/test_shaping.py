"""Outcome reward and the soft overlong punishment, DAPO eq. (7) and (13)."""

import numpy as np
import pytest

from dapo_jax.rewards import outcome, overlong_penalty


@pytest.mark.parametrize(
  "max_len, cache_len, response_len, expected",
  [
    (10, 4, [0, 6, 7, 8, 10, 11, 12], [0, 0, -0.25, -0.5, -1, -1, -1]),
    (
      16384,
      4096,
      [12288, 13000, 14336, 16384, 99999],
      [0, -0.173828125, -0.5, -1, -1],
    ),
    (20480, 4096, [16384, 16385, 20480], [0, -1 / 4096, -1]),
    (10, 10, [0, 5, 10], [0, -0.5, -1]),
    (10, 0, [0, 10, 12], [0, 0, 0]),
  ],
)
def test_overlong_penalty(max_len, cache_len, response_len, expected):
  got = overlong_penalty(
    np.array(response_len), max_len=max_len, cache_len=cache_len
  )
  np.testing.assert_allclose(got, expected, rtol=1e-7)
  assert np.issubdtype(got.dtype, np.floating)


def test_under_jit():
  jax = pytest.importorskip("jax")
  penalty = jax.jit(lambda n: overlong_penalty(n, max_len=10, cache_len=4))
  got = penalty(jax.numpy.array([6, 8, 10, 12]))
  np.testing.assert_array_equal(got, [0, -0.5, -1, -1])
  np.testing.assert_array_equal(
    outcome(jax.numpy.array([True, False])), [1, -1]
  )


def test_correct_and_long():
  length = np.array([14336])
  reward = outcome(np.array([True])) + overlong_penalty(
    length, max_len=16384, cache_len=4096
  )
  np.testing.assert_array_equal(reward, [0.5])


@pytest.mark.parametrize("cache_len", [-1, 11])
def test_cache_len_is_checked(cache_len):
  with pytest.raises(ValueError, match="cache_len"):
    overlong_penalty(np.array([1]), max_len=10, cache_len=cache_len)
