"""The commands, as a user starts them: from anywhere, with any mistake."""

import json
import os
from pathlib import Path
import shutil
import subprocess
import sys

import pytest

ROOT = Path(__file__).resolve().parents[1]
ENV = os.environ | {"XLA_FLAGS": ""}


def run(*args, cwd, command="run", **env):
  return subprocess.run(
    [sys.executable, ROOT / f"experiments/{command}.py", *args],
    capture_output=True, text=True, timeout=300, cwd=cwd, env=ENV | env,
  )  # fmt: skip


def config(arg):
  return f"--config={ROOT}/configs/dapo.py:{arg}"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  """A run of the paper's config, shrunk, from a folder of its own."""
  folder = tmp_path_factory.mktemp("elsewhere")
  done = run(config("qwen32b,debug"), cwd=folder)
  return folder, done


def test_the_papers_config_runs_shrunk_from_another_folder(finished):
  folder, done = finished
  assert done.returncode == 0, done.stderr
  workdir = folder / "runs/dapo-qwen32b-debug"
  summary = json.loads((workdir / "summary.json").read_text())
  for key in (
    "accuracy_before", "accuracy_after", "iterations", "wall_sec",
    "compile_sec",
  ):  # fmt: skip
    assert key in summary, key
  assert summary["iterations"] == 2
  saved = json.loads((workdir / "config.json").read_text())
  assert saved["clip_high"] == 0.28 and saved["reward_rule"] == "paper"
  assert list((workdir / "tensorboard").iterdir())
  assert "optimizer steps" in done.stdout and "next " in done.stdout


def test_metrics_stand_before_and_after_the_filter(finished):
  folder, _ = finished
  path = folder / "runs/dapo-qwen32b-debug/metrics.jsonl"
  rows = [json.loads(line) for line in path.read_text().splitlines()]
  assert [r["iter"] for r in rows] == [0, 1, 2]
  always = (
    "accuracy_before_filter", "response_len_before_filter",
    "truncated_before_filter", "share_all_right", "share_all_wrong",
    "share_kept", "prompts_generated", "prompts_kept", "prompts_carried",
    "prompts_dropped", "updates", "recompilations", "generate_sec",
    "generate_tokens_per_sec", "peak_bytes", "lr",
  )  # fmt: skip
  with_update = (
    "accuracy_after_filter", "response_len_after_filter",
    "truncated_after_filter", "reward_mean", "entropy", "prob_mean",
    "clip_frac_low", "clip_frac_high", "ratio_min", "ratio_mean", "ratio_max",
    "grad_norm", "logprob_gap_mean", "logprob_gap_max", "score_sec",
    "update_sec", "update_tokens_per_sec",
  )  # fmt: skip
  for row in rows[1:]:
    wanted = always + (with_update if row["updates"] else ())
    assert not [k for k in wanted if k not in row]
    assert row["recompilations"] == 0
    if row["updates"]:
      assert row["logprob_gap_max"] < 1e-4  # same weights, same attention
      assert row["ratio_min"] <= 1 <= row["ratio_max"]


def test_samples_tell_what_was_said_and_what_it_earned(finished):
  folder, _ = finished
  workdir = folder / "runs/dapo-qwen32b-debug"
  rows = [
    json.loads(line)
    for line in (workdir / "samples.jsonl").read_text().splitlines()
  ]
  if not rows:
    pytest.skip("no mixed group in two iterations")
  for row in rows:
    assert {"prompt", "response", "answer", "reward", "advantage"} <= set(row)
    assert row["reward"]["outcome"] == (1 if row["correct"] else -1)
    assert -1 <= row["reward"]["overlong_penalty"] <= 0


def test_no_mixed_group_is_an_iteration_without_update_then_an_end(tmp_path):
  # Untrained weights never answer: every group is all wrong.
  done = run(
    config("tiny,debug"), "--config.warm_steps=0", "--config.max_empty_iters=2",
    cwd=tmp_path,
  )  # fmt: skip
  assert done.returncode == 2
  assert "2 iterations in a row without a mixed group" in done.stderr
  assert "pass rate 0.000" in done.stderr and "easier" in done.stderr
  path = tmp_path / "runs/dapo-tiny-debug/metrics.jsonl"
  rows = [json.loads(line) for line in path.read_text().splitlines()]
  assert [r.get("updates") for r in rows] == [None, 0, 0]
  assert rows[1]["groups_by_correct"][0] == rows[1]["prompts_generated"]


def test_updates_that_are_not_finite_are_skipped_then_an_end(tmp_path, start):
  done = run(
    config("tiny,debug"), f"--config.start_from={start}",
    "--config.adam_eps=nan", "--config.max_skipped_steps=3",
    "--config.iters=6", cwd=tmp_path,
  )  # fmt: skip
  assert done.returncode == 2, done.stdout
  assert "optimizer steps in a row" in done.stderr
  assert "not finite" in done.stderr and "lr=" in done.stderr
  path = tmp_path / "runs/dapo-tiny-debug/metrics.jsonl"
  rows = [json.loads(line) for line in path.read_text().splitlines()]
  assert sum(r.get("skipped_nonfinite", 0) for r in rows) >= 3


MISTAKES = {
  "no config": ([], ["--config"]),
  "no such file": (["--config=configs/nowhere.py"], ["nowhere.py"]),
  "unknown variant": ([config("huge")], ["'huge'", "smollm2", "tiny"]),
  "unknown word": ([config("tiny,fast")], ["'fast'", "debug"]),
  "unknown field": ([config("tiny"), "--config.learning=1"], ["learning"]),
  "not a number": ([config("tiny"), "--config.lr=fast"], ["lr", "fast"]),
  "unknown flag": ([config("tiny"), "--wokdir=x"], ["wokdir"]),
  "stray word": ([config("tiny"), "config.lr=1"], ["config.lr=1", "--config"]),
  "seed": ([config("tiny"), "--config.seed=-1"], ["seed=-1"]),
  "wandb": ([config("tiny"), "--config.wandb=True"], ["pip install wandb"]),
  "no data": (
    [config("tiny"), "--config.data.name=dapo_math"],
    ["dapo-math-17k.parquet", "hf download"],
  ),
  "sizes": ([config("tiny"), "--config.minibatch_size=60"], ["56 or 64"]),
  "group of one": (
    [config("tiny"), "--config.group_size=1"], ["group_size=1"],
  ),
  "mesh": ([config("tiny"), "--config.mesh_tensor=3"], ["tensor=3"]),
  "prompts too long": (
    [config("tiny,debug"), "--config.max_prompt_len=2"],
    ["max_prompt_len=2", "4096 prompt too long"],
  ),
  "no weights": (
    [config("qwen32b"), "--config.mesh_tensor=1"],
    ["Qwen2.5-32B", "config.json"],
  ),
  "no boolean": (
    [config("tiny"), "--config.data.integers=maybe"],
    ["'maybe' is neither True nor False"],
  ),
  "no split": (
    [config("tiny,debug"), "--config.data.split=dev"], ["'dev'", "train"],
  ),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(MISTAKES))
def test_a_mistake_is_one_line_and_nothing_is_written(name, tmp_path):
  args, words = MISTAKES[name]
  done = run(*args, "--workdir=w", cwd=tmp_path)
  assert done.returncode == 2, done.stderr
  lines = done.stderr.strip().splitlines()
  assert len(lines) == 1 and lines[0].startswith("error: "), done.stderr
  for word in words:
    assert word in lines[0]
  assert not (tmp_path / "w").exists()


def test_a_workdir_of_another_config_says_what_differs(finished):
  folder, _ = finished
  workdir = folder / "runs/dapo-qwen32b-debug"
  before = (workdir / "config.json").read_text()
  done = run(
    config("qwen32b,debug"), f"--workdir={workdir}", "--config.clip_high=0.2",
    cwd=folder,
  )  # fmt: skip
  assert done.returncode == 2
  assert "clip_high: 0.28 there, 0.2 now" in done.stderr
  assert (workdir / "config.json").read_text() == before


def test_a_finished_run_goes_on_with_more_iterations(finished, tmp_path):
  folder, _ = finished
  workdir = tmp_path / "longer"
  shutil.copytree(folder / "runs/dapo-qwen32b-debug", workdir)
  done = run(
    config("qwen32b,debug"), f"--workdir={workdir}", "--config.iters=3",
    cwd=folder,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  assert "continuing behind iteration 2 of 3" in done.stdout
  summary = json.loads((workdir / "summary.json").read_text())
  assert summary["iterations"] == 3


def test_a_workdir_that_cannot_be_written(tmp_path):
  (tmp_path / "w").write_text("a file")
  done = run(config("tiny,debug"), "--workdir=w/run", cwd=tmp_path)
  assert done.returncode == 2 and "workdir" in done.stderr
  assert len(done.stderr.strip().splitlines()) == 1


def test_a_changed_file_of_problems_is_refused_on_resume(tmp_path):
  """A file of one's own, with one's own template, by the README's fields."""
  problems = [{"q": f"{a}+{b}", "a": a + b} for a in range(4) for b in range(4)]
  held_out = [{"q": "5+4", "a": 9}]
  for name, rows in (("train", problems), ("test", held_out)):
    path = tmp_path / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  args = [
    config("tiny,debug"), "--config.warm_steps=0", "--config.data.name=file",
    "--config.data.path=train.jsonl", "--config.eval_data.path=test.jsonl",
    "--config.data.problem_column=q", "--config.data.answer_column=a",
    "--config.data.template={problem}=?\n", "--workdir=w",
  ]  # fmt: skip
  done = run(*args, "--config.iters=1", cwd=tmp_path)
  assert done.returncode == 0, done.stderr
  assert "file train.jsonl: 16 problems of 16 rows" in done.stdout
  before = (tmp_path / "w/metrics.jsonl").read_text()
  path = tmp_path / "train.jsonl"
  text = path.read_text()
  path.write_text(text.replace('"3+3", "a": 6', '"3+3", "a": 7'))
  done = run(*args, "--config.iters=2", cwd=tmp_path)
  assert done.returncode == 2
  assert "the train problems have changed" in done.stderr
  assert len(done.stderr.strip().splitlines()) == 1
  assert (tmp_path / "w/metrics.jsonl").read_text() == before
  # The same file at another place is the same data.
  path.write_text(text)
  path.rename(tmp_path / "moved.jsonl")
  args[3] = "--config.data.path=moved.jsonl"
  done = run(*args, "--config.iters=1", cwd=tmp_path)
  assert done.returncode == 0, done.stderr
  assert "continuing behind iteration 1 of 1" in done.stdout


# -- The other commands ------------------------------------------------------


def test_evaluating_a_run_gives_the_runs_own_numbers(finished, tmp_path):
  folder, _ = finished
  of_run = folder / "runs/dapo-qwen32b-debug"
  last = json.loads((of_run / "metrics.jsonl").read_text().splitlines()[-1])
  args = [config("qwen32b,debug"), f"--run={of_run}"]
  done = run(*args, cwd=tmp_path, command="eval")
  assert done.returncode == 0, done.stderr
  out = tmp_path / "evals/dapo-qwen32b-debug-arithmetic"
  found = json.loads((out / "eval.json").read_text())
  assert found["avg@4"]["value"] == last["eval_accuracy"]
  assert found["pass@4"]["value"] == last["eval_pass_at_4"]
  assert found["maj@4"]["value"] == last["eval_maj_at_4"]
  assert found["iteration"] == 2 and found["problems"] == 8
  for name in ("avg@4", "pass@2", "maj@4"):
    assert f"\n{name} " in done.stdout
    estimate = found[name]
    assert estimate["low"] <= estimate["value"] <= estimate["high"]
  path = out / "eval_samples.jsonl"
  samples = path.read_text()
  theirs = (of_run / "eval_samples.jsonl").read_text().splitlines()
  assert samples.splitlines() == [r for r in theirs if '"iter": 2,' in r]

  # Cut off in the middle of a line, it goes on with the same samples.
  path.write_text(samples[: len(samples) // 2])
  again = run(*args, cwd=tmp_path, command="eval")
  assert again.returncode == 0, again.stderr
  assert path.read_text() == samples
  # Another question is not written over it.
  other = run(*args, "--config.eval_top_p=0.5", cwd=tmp_path, command="eval")
  assert other.returncode == 2 and "eval_top_p" in other.stderr
  assert path.read_text() == samples

  # Nor is a run written over an evaluation, or an evaluation of another.
  clash = run(config("tiny,debug"), f"--workdir={out}", cwd=tmp_path)
  assert clash.returncode == 2 and "another config" in clash.stderr
  wrong = run(
    config("smollm2"), f"--run={of_run}", "--workdir=x", cwd=tmp_path,
    command="eval",
  )  # fmt: skip
  assert wrong.returncode == 2 and "the run's own --config" in wrong.stderr
  assert path.read_text() == samples and not (tmp_path / "x").exists()

  # The rules on these samples.
  table = run("--samples", path, cwd=tmp_path, command="verify")
  assert table.returncode == 0, table.stderr
  for rule in ("paper", "integer", "symbolic"):
    assert f"\n{rule} " in table.stdout


def test_rules_that_disagree_are_shown(tmp_path):
  rows = [
    {"response": "Answer: 1/2", "answer": "0.5"},
    {"response": "Answer: 7", "answer": "7"},
    {"response": "\\boxed{7}", "answer": "7"},
  ]
  path = tmp_path / "s.jsonl"
  path.write_text("\n".join(map(json.dumps, rows)))
  done = run("--samples", path, cwd=tmp_path, command="verify")
  assert done.returncode == 0, done.stderr
  assert "1 right only by: symbolic\n" in done.stdout
  assert "1 right only by: integer, symbolic\n" in done.stdout
  assert "line 3" in done.stdout and "paper read None" in done.stdout


def test_answers_of_a_file_become_integers(tmp_path):
  rows = [{"q": "A?", "a": "11-2\\sqrt6"}, {"q": "B?", "a": "x<1"}]
  (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)))
  args = ["in.jsonl", "out.jsonl", "--problem-column=q", "--answer-column=a"]
  done = run(*args, cwd=tmp_path, command="integers")
  assert done.returncode == 0, done.stderr
  (row,) = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
  assert row["answer"] == "19" and row["original_answer"] == "11-2\\sqrt6"
  assert "1 left out" in done.stdout
  # Neither its input nor anything else is written over.
  for out in ("in.jsonl", "out.jsonl", "new.parquet", "nowhere/x.jsonl"):
    before = {p: p.read_text() for p in tmp_path.iterdir()}
    done = run("in.jsonl", out, *args[2:], cwd=tmp_path, command="integers")
    assert done.returncode == 2 and out in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert {p: p.read_text() for p in tmp_path.iterdir()} == before


OTHER_MISTAKES = {
  "random weights": ("eval", [config("tiny")], ["--run"]),
  "no run": ("eval", [config("tiny"), "--run=nowhere"], ["nowhere", "check"]),
  "no gguf": (
    "eval", [config("smollm2"), "--config.weights=x.gguf"], ["x.gguf", "such"],
  ),
  "no samples": ("verify", ["--samples", "nowhere"], ["nowhere"]),
  "no response": ("verify", ["--samples", "a.jsonl"], ["no column 'response'"]),
  "no column": ("integers", ["a.jsonl", "b.jsonl"], ["no column 'problem'"]),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(OTHER_MISTAKES))
def test_a_mistake_with_another_command_is_one_line_too(name, tmp_path):
  command, args, words = OTHER_MISTAKES[name]
  (tmp_path / "a.jsonl").write_text('{"a": 1}\n')
  done = run(*args, cwd=tmp_path, command=command)
  assert done.returncode == 2, done.stderr
  lines = done.stderr.strip().splitlines()
  assert len(lines) == 1 and lines[0].startswith("error: "), done.stderr
  for word in words:
    assert word in lines[0]
  assert [p.name for p in tmp_path.iterdir()] == ["a.jsonl"]
