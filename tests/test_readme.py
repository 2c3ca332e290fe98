"""The commands of the README are the ones that work."""

import os
from pathlib import Path
import re
import shutil
import subprocess

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def commands():
  """Lines of the bash blocks, without comments."""
  blocks = re.findall(r"```bash\n(.*?)```", README, re.S)
  lines = "\n".join(blocks).splitlines()
  return [line for line in lines if line and not line.startswith("#")]


def test_the_two_commands_come_first_and_set_everything_up():
  train, test = commands()[:2]
  for command in (train, test):
    assert command.startswith("python3 -m venv .venv && .venv/bin/pip install")
  assert train.endswith("experiments/run.py --config=configs/dapo.py")
  assert test.endswith(".venv/bin/python -m pytest")
  # What has to pass is the README's own command.
  assert "python -m pytest\n" in (ROOT / ".ci/run").read_text()


def test_every_file_that_is_named_is_there():
  named = re.findall(r"[\w/.-]+\.(?:py|txt|md|png)\b", README)
  missing = [n for n in named if "/" in n or n.endswith((".md", ".txt"))
             if not (ROOT / n).exists()]  # fmt: skip
  assert not [n for n in missing if not n.startswith(("runs/", "/"))]


def test_every_config_that_is_named_parses():
  from configs import dapo

  for variant in re.findall(r"configs/dapo\.py:([\w,]+)", README):
    dapo.get_config(variant)


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_the_two_commands_as_written(number, tmp_path):
  copy = tmp_path / "fresh"
  shutil.copytree(
    ROOT, copy,
    ignore=shutil.ignore_patterns(".venv", "runs", ".git", "__pycache__"),
  )  # fmt: skip
  env = os.environ | {"XLA_FLAGS": "", "XDG_CACHE_HOME": str(tmp_path)}
  done = subprocess.run(
    commands()[number], shell=True, cwd=copy, env=env, capture_output=True,
    text=True,
  )  # fmt: skip
  assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
  if number == 0:
    assert (copy / "runs/dapo-smollm2/summary.json").exists()
