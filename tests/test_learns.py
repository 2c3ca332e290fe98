"""The shipped runs learn, for every seed (slow: an hour in all)."""

import json
import os
from pathlib import Path
import subprocess
import sys

import pytest

ROOT = Path(__file__).resolve().parents[1]


def summary_of(variant, seed, folder, algorithm="dapo"):
  done = subprocess.run(
    [sys.executable, ROOT / "experiments/run.py",
     f"--config={ROOT}/configs/{algorithm}.py:{variant}",
     f"--config.seed={seed}", "--workdir=run"],
    cwd=folder, env=os.environ | {"XLA_FLAGS": ""}, capture_output=True,
    text=True,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  return json.loads((folder / "run/summary.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_tiny(seed, tmp_path):
  out = summary_of("tiny", seed, tmp_path)
  assert out["accuracy_before"] <= 0.5
  assert out["accuracy_after"] >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_smollm2(seed, tmp_path):
  out = summary_of("smollm2", seed, tmp_path)
  assert out["accuracy_before"] <= 0.45
  assert out["accuracy_after"] >= 0.9
  assert out["greedy_after"] >= out["greedy_before"] + 0.15


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
  "algorithm", ["grpo", "dr_grpo", "ppo", "vc_ppo", "vapo"]
)
def test_the_family_on_tiny(algorithm, seed, tmp_path):
  out = summary_of("tiny", seed, tmp_path, algorithm)
  assert out["accuracy_after"] >= 0.85
  if algorithm in ("vc_ppo", "vapo"):
    assert out["explained_variance_pretrained"] >= 0.5
