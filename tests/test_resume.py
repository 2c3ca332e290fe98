"""Interrupted = uninterrupted, bit by bit, wherever the process is killed."""

import json
from pathlib import Path
import shutil
import signal

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
import run_and_kill

from dapo_jax.metrics import MEASURED_SUFFIXES

ROOT = Path(__file__).resolve().parents[1]
# Rounds of 6 prompts for a batch of 8 groups: every iteration fills its buffer
# bit by bit; surplus groups are carried over, and checkpoints skip iterations.
ARGS = (
  f"--config={ROOT}/configs/dapo.py:tiny,debug",
  "--config.iters=4", "--config.prompts_per_round=6", "--config.max_rounds=8",
  "--config.surplus=carry", "--config.checkpoint_every_iters=2",
  "--config.eval_every_iters=2",
)  # fmt: skip


@pytest.fixture(scope="module")
def run(start):
  """Starts a process that sends itself a signal, or none."""

  def run(workdir, moment="round", count=0, name="SIGKILL", extra=()):
    return run_and_kill.start(
      workdir, *ARGS, f"--config.start_from={start}", *extra, moment=moment,
      count=count, name=name,
    )  # fmt: skip

  return run


def rows(workdir):
  """The deterministic part of metrics.jsonl, and the samples whole."""
  kept = []
  for line in (workdir / "metrics.jsonl").read_text().splitlines():
    row = json.loads(line)
    kept.append(
      {k: v for k, v in row.items() if not k.endswith(MEASURED_SUFFIXES)}
    )
  samples = ("samples.jsonl", "eval_samples.jsonl")
  return kept, *((workdir / name).read_text() for name in samples)


def state(workdir):
  """Leaves of the newest checkpoint's training state."""
  folder = workdir.resolve() / "checkpoints"
  manager = ocp.CheckpointManager(folder)
  out = manager.restore(
    manager.latest_step(),
    args=ocp.args.Composite(state=ocp.args.StandardRestore()),
  )
  manager.close()
  return jax.tree.leaves(out["state"])


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, run):
  workdir = tmp_path_factory.mktemp("whole") / "run"
  done = run(workdir)
  assert done.returncode == 0, done.stderr
  return workdir


def assert_same(workdir, uninterrupted):
  ours, theirs = rows(workdir), rows(uninterrupted)
  assert [r["iter"] for r in ours[0]] == [0, 1, 2, 3, 4]
  assert ours == theirs
  for a, b in zip(state(workdir), state(uninterrupted), strict=True):
    np.testing.assert_array_equal(a, b)


def test_the_run_meets_what_it_is_to_survive(uninterrupted):
  table, *_ = rows(uninterrupted)
  trained = table[1:]
  assert any(r["rounds"] > 1 for r in trained)  # half-filled buffers
  assert any(r["prompts_carried"] > 0 for r in trained)
  assert all(r["updates"] > 1 for r in trained)
  assert all(r["recompilations"] == 0 for r in trained)
  summary = json.loads((uninterrupted / "summary.json").read_text())
  assert summary["iterations"] == 4


def test_kill_9_at_any_moment(uninterrupted, tmp_path, run):
  workdir = tmp_path / "run"
  moments = [
    ("evaluated", 1),  # before anything is saved
    ("round", 2),  # the buffer is half full
    ("optimizer_step", 6),  # between two optimizer steps
    ("saving", 1),  # a checkpoint is being written
    ("row_written", 1),  # a row is there, its checkpoint is not
  ]
  for moment, count in moments:
    done = run(workdir, moment, count)
    assert done.returncode == -signal.SIGKILL, (moment, done.stderr)
  # A row that the kill tore in two.
  with (workdir / "metrics.jsonl").open("a") as file:
    file.write('{"iter": 3, "accur')
  done = run(workdir)
  assert done.returncode == 0, done.stderr
  assert "continuing behind iteration" in done.stdout
  assert_same(workdir, uninterrupted)


def test_sigterm_saves_a_half_filled_buffer_and_exits_cleanly(
  uninterrupted, tmp_path, run
):
  workdir = tmp_path / "run"
  single = ("--config.keep_checkpoints=1",)
  done = run(workdir, "round", 3, "SIGTERM", single)
  assert done.returncode == 0, done.stderr
  assert "stopped: saved" in done.stdout
  # Killed again, behind the checkpoint within an iteration.
  done = run(workdir, "optimizer_step", 2, extra=single)
  assert done.returncode == -signal.SIGKILL, done.stderr
  done = run(workdir, extra=single)
  assert done.returncode == 0, done.stderr
  assert_same(workdir, uninterrupted)


def test_a_finished_run_says_so_and_keeps_its_files(uninterrupted, run):
  before = rows(uninterrupted)
  done = run(uninterrupted)
  assert done.returncode == 0, done.stderr
  assert "held-out" in done.stdout
  assert rows(uninterrupted) == before


def test_checkpoints_that_are_gone_are_no_silent_restart(
  uninterrupted, tmp_path, run
):
  workdir = tmp_path / "run"
  shutil.copytree(uninterrupted, workdir)
  shutil.rmtree(workdir / "checkpoints")
  before = rows(workdir)
  done = run(workdir)
  assert done.returncode == 2
  assert "no checkpoint" in done.stderr and "--workdir" in done.stderr
  assert rows(workdir) == before
  # Nor are metrics that are gone.
  shutil.copytree(
    uninterrupted / "checkpoints", workdir / "checkpoints", dirs_exist_ok=True
  )
  (workdir / "metrics.jsonl").unlink()
  done = run(workdir)
  assert done.returncode == 2 and "lacks rows" in done.stderr


def test_a_checkpoint_of_another_config_says_what_differs(
  uninterrupted, tmp_path, run
):
  workdir = tmp_path / "run"
  shutil.copytree(uninterrupted, workdir)
  path = workdir / "config.json"
  path.write_text(json.dumps(json.loads(path.read_text()) | {"lr": 0.5}))
  done = run(workdir, extra=("--config.lr=0.5",))
  assert done.returncode == 2
  assert "checkpoint belongs to another config (lr: 0.0004 there" in done.stderr


def test_a_torn_checkpoint_is_told_and_nothing_is_written_over(
  uninterrupted, tmp_path, run
):
  workdir = tmp_path / "run"
  shutil.copytree(uninterrupted, workdir)
  newest = max((workdir / "checkpoints").iterdir(), key=lambda p: int(p.name))
  for path in (newest / "state").rglob("*"):
    if path.is_file() and path.stat().st_size > 1000:
      path.write_bytes(path.read_bytes()[:100])
  before = rows(workdir)
  done = run(workdir)
  assert done.returncode == 2
  assert len(done.stderr.strip().splitlines()) == 1
  assert "checkpoint" in done.stderr and "Delete that folder" in done.stderr
  assert rows(workdir) == before
  # The remedy works: the one before it takes over.
  shutil.rmtree(newest)
  done = run(workdir)
  assert done.returncode == 0, done.stderr
  assert_same(workdir, uninterrupted)
