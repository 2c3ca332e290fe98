"""Dynamic sampling: what stays, what is carried, what is dropped."""

import numpy as np
import pytest

from dapo_jax import groups as groups_lib
from dapo_jax.types import PromptBatch, Rollout


def make(is_correct, first_uid=0):
  """Groups with the given verdicts and otherwise recognisable contents."""
  is_correct = np.asarray(is_correct, bool)
  n, size = is_correct.shape
  limit, uid = 5, np.arange(first_uid, first_uid + n, dtype=np.int32)
  batch = PromptBatch(
    np.tile(uid[:, None], (1, 3)), np.full(n, 3, np.int32), uid, uid
  )
  rows = n * size
  lengths = 1 + np.arange(rows, dtype=np.int32) % limit
  rollout = Rollout(
    np.arange(rows * limit, dtype=np.int32).reshape(rows, limit),
    np.arange(limit) < lengths[:, None],
    np.full((rows, limit), -0.5, np.float32),
    lengths,
    lengths == limit,
  )
  return groups_lib.of_rollout(batch, rollout, is_correct.reshape(-1))


def test_worked_example():
  groups = make([[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 0]])
  np.testing.assert_array_equal(
    groups_lib.is_mixed(groups.is_correct), [False, True, False]
  )


def test_decided_on_correctness_not_on_reward():
  # All right, but of different lengths: with the overlong penalty their
  # rewards differ, and the group is dropped all the same.
  groups = make([[1, 1, 1, 1, 1]])
  assert len(set(groups.response_len[0])) > 1
  assert not groups_lib.is_mixed(groups.is_correct).any()


def test_the_odd_one_out_stays_with_its_siblings():
  groups = make([[1, 0, 0, 0]])
  kept = groups_lib.take(groups, groups_lib.is_mixed(groups.is_correct))
  np.testing.assert_array_equal(kept.is_correct, [[1, 0, 0, 0]])


def test_a_group_of_one_is_never_mixed():
  assert not groups_lib.is_mixed(np.array([[True], [False]])).any()


def test_rows_stay_with_their_prompt():
  groups = make([[1, 0], [0, 1], [1, 0]])
  some = groups_lib.take(groups, np.array([False, True, True]))
  np.testing.assert_array_equal(some.uid, [1, 2])
  np.testing.assert_array_equal(some.tokens[0, 0], np.arange(10, 15))
  np.testing.assert_array_equal(some.prompt_tokens[:, 0], [1, 2])


@pytest.mark.parametrize("surplus", ["drop", "carry"])
def test_surplus(surplus):
  buffer = groups_lib.join(make([[1, 0]] * 2), make([[0, 1]] * 3, 2))
  batch, carried, dropped = groups_lib.split_surplus(buffer, 4, surplus)
  np.testing.assert_array_equal(batch.uid, [0, 1, 2, 3])  # oldest first
  if surplus == "carry":
    np.testing.assert_array_equal(carried.uid, [4])
    assert dropped == 0
  else:
    assert carried is None and dropped == 1


def test_soft_landing_takes_what_is_there():
  batch, carried, dropped = groups_lib.split_surplus(
    make([[1, 0]] * 3), 4, "drop"
  )
  assert (batch.num, carried, dropped) == (3, None, 0)


def test_join_with_nothing():
  groups = make([[1, 0]])
  assert groups_lib.join(None, groups) is groups
