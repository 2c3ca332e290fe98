"""The ladders: each row is one change, and the statistics are right."""

from pathlib import Path
import sys

import numpy as np
import pytest

from configs import dapo, vapo
from dapo_jax import config as config_lib

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "experiments"))
import ablation


@pytest.mark.parametrize("ladder, of", [("dapo", dapo), ("vapo", vapo)])
def test_every_row_is_a_config_that_passes_the_checks(ladder, of, tmp_path):
  configs = [
    ablation.config_of(of.get_config("tiny"), tmp_path, ladder, number, seed=0)
    for number in range(len(ablation.LADDERS[ladder]))
  ]
  for number, c in enumerate(configs):
    config_lib.check(c)
    if number == 0:
      continue
    other = configs[number - 1 if ladder == "dapo" else 0]
    changed = {k for k in c if c[k] != other[k]} - {"start_from"}
    assert changed
    if ladder == "dapo":
      assert len(changed) == 1


def test_the_interval_is_students():
  mean, half = ablation.mean_and_half([0.8, 0.9, 1.0])
  np.testing.assert_allclose(mean, 0.9)
  # t(2) = 4.303, standard deviation 0.1: 4.303 * 0.1 / √3
  np.testing.assert_allclose(half, 0.2484, atol=1e-4)
  assert ablation.mean_and_half([0.5]) == (0.5, None)
