"""The ladders: each row is one change, and the statistics are right."""

import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from configs import dapo, vapo
from dapo_jax import config as config_lib
from experiments import ablation


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


def made_up(accuracy, tokens):
  """metrics.jsonl of a run of two iterations."""
  first = dict(iter=0, eval_accuracy=0.1)
  later = [
    dict(iter=i, optimizer_step=2 * i, tokens_generated=t, entropy=0.5 / i)
    for i, t in enumerate(tokens, 1)
  ]
  later[-1] |= dict(eval_accuracy=accuracy)
  return [first, *later]


def test_differences_are_paired_by_seed():
  found = {
    0: [made_up(0.5, (10, 20)), made_up(0.7, (10, 20))],
    1: [made_up(0.6, (30, 30)), made_up(0.8, (10, 10))],
  }
  before, after = ablation.table("dapo", found)
  assert before["difference"] is None and after["difference_half"] < 1e-9
  np.testing.assert_allclose(after["difference"], 0.1)
  # t(1) = 12.706, standard deviation 0.2 / √2, of two: 12.706 * 0.1
  np.testing.assert_allclose(after["accuracy_half"], 1.2706)
  assert (before["tokens_generated"], after["tokens_generated"]) == (30, 40)
  assert after["entropy"] == 0.25 and after["truncated"] is None
  # Tokens are counted up, and averaged over the seeds, as accuracy is.
  points = ablation.curve(found[1], "eval_accuracy", by_tokens=True)
  np.testing.assert_allclose(points, [(0, 0.1, 0.1, 0.1), (40, 0.7, 0.6, 0.8)])
  points = ablation.curve(found[1], "entropy", by_tokens=False)
  np.testing.assert_allclose(
    points, [(2, 0.5, 0.5, 0.5), (4, 0.25, 0.25, 0.25)]
  )
  text = ablation.as_markdown("dapo", "tiny", [before, after])
  assert "0.700 ± 1.271" in text and "+0.100 ± 0.000" in text


def start(*args, cwd):
  """The command, on runs of a second."""
  small = ("warm_steps=20", "iters=1", "eval_greedy=False")
  return subprocess.run(
    [sys.executable, ablation.__file__, "--variant=tiny,debug",
     *(f"--set={field}" for field in small), *args],
    capture_output=True, text=True, timeout=300, cwd=cwd,
    env=os.environ | {"XLA_FLAGS": ""},
  )  # fmt: skip


def test_a_ladder_goes_on_where_it_stopped(tmp_path):
  rows = ("--rows=1,6",)
  done = start("--seeds=1", *rows, cwd=tmp_path)
  assert done.returncode == 0, done.stderr
  out = tmp_path / "ablations/dapo"
  metrics = lambda: {
    p: p.read_text() for p in sorted(out.glob("*/metrics.jsonl"))
  }
  first = metrics()
  assert len(first) == 2 and "2 of 2 runs to make" in done.stdout
  if importlib.util.find_spec("matplotlib"):
    assert (out / "ablation.png").stat().st_size > 10_000
  else:
    assert "pip install matplotlib" in done.stdout

  done = start("--seeds=2", *rows, cwd=tmp_path)
  assert done.returncode == 0, done.stderr
  assert "2 of 4 runs to make" in done.stdout
  both = metrics()
  assert len(both) == 4 and first.items() <= both.items()
  table = json.loads((out / "table.json").read_text())
  assert [r["number"] for r in table] == [1, 6]
  # The same policy at the start of both rows.
  at_start = {
    p.parent.name: json.loads(t.split("\n")[0]) for p, t in both.items()
  }
  for seed in (0, 1):
    of_seed = [
      r for name, r in at_start.items() if name.endswith(f"seed{seed}")
    ]
    assert of_seed[0]["eval_accuracy"] == of_seed[1]["eval_accuracy"]

  done = start("--seeds=2", *rows, "--set=lr=0.5", cwd=tmp_path)
  assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
  assert "GRPO, seed 0" in done.stderr and "lr" in done.stderr
  assert "--out" in done.stderr and metrics() == both


@pytest.mark.parametrize(
  "args, words",
  [
    (["--rows=7"], ["--rows=7", "1..6"]),
    (["--ladder=ppo"], ["'ppo'", "vapo"]),
    (["--seeds=0"], ["--seeds"]),
    (["--set=lr"], ["lr", "FIELD=VALUE"]),
    (["--set=learning_rate=1"], ["no field 'learning_rate'"]),
    (["--set=clip_high=0.3"], ["clip_high", "the ladder sets it"]),
    (["--sets=1"], ["--sets=1"]),
  ],
)
def test_a_mistake_on_the_command_line_is_one_line(args, words, capsys):
  with pytest.raises(SystemExit) as stop:
    ablation.parse(args)
  assert stop.value.code == 2
  text = capsys.readouterr().err
  assert len(text.splitlines()) == 1
  for word in words:
    assert word in text
