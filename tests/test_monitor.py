"""When value pretraining has settled."""

import pytest

from dapo_jax import monitor


@pytest.mark.parametrize(
  "history, iters, settled",
  [
    ([(0.1, 1.0)] * 3, 2, False),  # too few to compare
    ([(0.1, 1.0)] * 4, 2, True),
    ([(0.1, 1.0)] * 4, 0, False),  # 0 is off
    ([(0.1, 1.0)] * 2 + [(0.2, 1.0)] * 2, 2, False),  # explains more
    ([(0.1, 1.0)] * 2 + [(0.1, 0.9)] * 2, 2, False),  # errs less
    ([(0.1, 1.0)] * 2 + [(0.05, 1.2)] * 2, 2, True),  # grows worse
    ([(0.1, 1.0)] * 2 + [(0.105, 0.995)] * 2, 2, True),  # less than 1 % each
    # Only the newest count.
    ([(0.0, 9.0)] * 5 + [(0.5, 1.0)] * 4, 2, True),
  ],
)
def test_value_pretraining_settles(history, iters, settled):
  history = [list(pair) for pair in history]
  assert monitor.has_settled(history, iters, 0.01) == settled
