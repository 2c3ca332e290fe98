"""The whole loop in this process, over eight devices: the same numbers."""

import json

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict
import numpy as np
import pytest

from configs import dapo, vapo
from dapo_jax import config as config_lib, metrics, train


class Recorder:
  """A config that remembers which of its fields were read."""

  def __init__(self, config, read=None, prefix=""):
    self._config, self._prefix = config, prefix
    self.read = set() if read is None else read

  def __getattr__(self, name):
    self.read.add(self._prefix + name)
    value = getattr(self._config, name)
    if isinstance(value, ConfigDict):
      return Recorder(value, self.read, f"{self._prefix}{name}.")
    return value

  def __getitem__(self, name):
    # Only the checks index; a check alone does not make a field used.
    return self._config[name]


def config(**fields):
  c = dapo.get_config("tiny,debug")
  c.update(dict(iters=1, surplus="carry", eval_greedy=False) | fields)
  return c


def rows(workdir):
  return list(metrics.read_rows(workdir / "metrics.jsonl"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory, start):
  """Rows of the run on two meshes of eight devices, and the fields it read."""
  folder = tmp_path_factory.mktemp("meshes")
  recorder = Recorder(
    config(start_from=str(start), mesh_data=2, mesh_fsdp=2, mesh_tensor=2)
  )
  train.train(recorder, folder / "split")
  # One part of the batch: every device works on all rows.
  whole = config(start_from=str(start), mesh_data=1, mesh_fsdp=1, mesh_tensor=8)
  train.train(whole, folder / "whole")
  return rows(folder / "split"), rows(folder / "whole"), recorder.read


def test_meshes_agree(runs):
  split, whole, _ = runs
  assert [r["iter"] for r in split] == [r["iter"] for r in whole] == [0, 1]
  assert split[1]["updates"] > 0
  assert [r["recompilations"] for r in (split[1], whole[1])] == [0, 0]
  for ours, theirs in zip(split, whole):
    for key, value in ours.items():
      if not key.endswith(metrics.MEASURED_SUFFIXES):
        np.testing.assert_allclose(
          value, theirs[key], rtol=1e-3, atol=1e-5, err_msg=key
        )


def test_every_field_is_read(runs, start, tmp_path):
  """A field that nothing reads is a lie."""
  c = vapo.get_config("tiny,debug")
  c.update(
    iters=2, start_from=str(start), eval_greedy=False, kl_coef=0.01,
    entropy_target=9.0, entropy_coef_step=0.01,
  )  # fmt: skip
  recorder = Recorder(c)
  train.train(recorder, tmp_path)
  fields = set(config_lib.flat(c.to_dict()))
  unread = fields - runs[2] - recorder.read
  # run.py reads this one, to name the workdir.
  assert unread <= {"variant"}, unread
  # A target above all entropies: the bonus rises from iteration to iteration.
  found = [r["entropy_coef"] for r in rows(tmp_path)[1:]]
  assert found == [0.0, 0.01]


def test_a_second_compilation_in_a_phase_is_counted():
  phase = metrics.Phases()
  program = jax.jit(lambda x: x * 2 + 1)
  for _ in range(2):
    with phase("work"):
      program(np.zeros(3, np.float32)).block_until_ready()
  assert phase.take()[1] == 0
  with phase("work"):
    program(np.zeros(5, np.float32)).block_until_ready()
  seconds, recompilations = phase.take()
  assert recompilations == 1 and seconds["work_sec"] > 0
  assert phase.compile_sec > 0
  phase.close()


def test_rows_of_a_torn_file(tmp_path):
  path = tmp_path / "metrics.jsonl"
  path.write_text('{"iter": 0}\n{"iter": 1}\n{"iter": 2}\n{"iter": 3, "a')
  file = metrics.JsonLines(path, 2)
  file.write({"iter": 2, "x": float("nan"), "n": jnp.float32(0.1)})
  file.close()
  found = [json.loads(line) for line in path.read_text().splitlines()]
  assert [r["iter"] for r in found] == [0, 1, 2]
  assert found[2]["x"] is None and np.float32(found[2]["n"]) == np.float32(0.1)
