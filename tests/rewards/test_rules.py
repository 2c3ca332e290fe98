"""The three rules by name, and what the package promises about itself."""

import subprocess
import sys
import time

import numpy as np
import pytest

from dapo_jax import rewards

# (response, gold, verdict of the published code).
PAPER = [
  ("Answer: $12$", "12", True),
  ("Answer: $12$.", "12", True),
  ("Answer: \\boxed{12}", "12", True),
  ("Answer: x = 12", "12", True),
  ("Answer:\n12", "12", True),
  ("answer: 12", "12", True),
  ("Answer: 12 degrees", "12", True),
  ("Answer: 1,234", "1234", True),
  ("Answer: -5", "-5", True),
  ("Answer: 12.", "12", False),
  ("Answer: 12.0", "12", False),
  ("Answer: \\(12\\)", "12", False),
  ("**Answer:** 12", "12", False),
  ("**Answer: 12**", "12", False),
  ("Answer: 025", "25", False),
  ("Answer: 12 (a nice number)", "12", False),
  ("Answer: 12\nAnswer: 13", "12", False),
  ("so \\boxed{12}", "12", False),
  ("Answer: $Answer", "12", False),
  ("Answer: 12" + " " + "." * 300, "12", False),  # Outside the window.
  ("Answer: \\frac12", "\\frac{1}{2}", True),
  ("Answer: \\sqrt3", "\\sqrt{3}", True),
  ("Answer: 12 \\text{ cm}", "12", True),
  ("Answer: 0.5", "1/2", False),
]


@pytest.mark.parametrize("response, gold, expected", PAPER)
def test_paper_rule(response, gold, expected):
  (verdict,) = rewards.verify([response], [gold], rule="paper")
  assert verdict.correct is expected


def test_paper_rule_reports_what_it_found():
  (verdict,) = rewards.verify(
    ["Answer: 12 (a nice number)"], ["12"], rule="paper"
  )
  assert verdict.prediction == "12 (a nice number)"
  assert rewards.verify(["so \\boxed{12}"], ["12"], rule="paper")[0] == (
    False,
    None,
    "no_answer",
  )


@pytest.mark.parametrize(
  "response, gold, expected",
  [
    ("\\boxed{33}", "033", True),
    ("Answer: 60.0", "60", True),
    ("Answer: $1{,}234$", "1234", True),
    ("Answer: 1,234", "1234", True),
    ("Answer: x = 5", "5", True),
    ("Answer: 5 cm", "5", True),
    ("Answer: \u22125", "-5", True),
    ("Answer: -5", "5", False),
    ("Answer: 2^3", "8", False),
    ("Answer: 16/2", "8", False),
    ("Answer: 8.5", "8", False),
    ("Answer: 3 or 8", "8", False),
    ("Answer: 8", "16/2", False),
    ("8", "", False),
    ("", "8", False),
    ("Answer: " + "7" * 6000, "7" * 6000, True),
    ("Answer: " + "7" * 6000, "7" * 5999 + "8", False),
  ],
)
def test_integer_rule(response, gold, expected):
  (verdict,) = rewards.verify([response], [gold], rule="integer")
  assert verdict.correct is expected


def test_integer_rule_is_fast():
  responses = [
    f"Counting again gives the total.\nAnswer: {n}" for n in range(5000)
  ]
  golds = [str(n) for n in range(5000)]
  best = float("inf")
  for _ in range(3):
    start = time.perf_counter()
    assert rewards.score(responses, golds, rule="integer").all()
    best = min(best, time.perf_counter() - start)
  # 50,000 a second on a core of its own; a loaded machine gets a tenth.
  assert best < 5000 / 5_000


def test_score():
  got = rewards.score(["Answer: 1", "Answer: 2", "none"], ["1", "1", "1"])
  assert got.dtype == np.bool_ and got.tolist() == [True, False, False]
  assert rewards.score([], []).shape == (0,)


def test_errors_say_what_to_do():
  with pytest.raises(ValueError, match="paper, integer, symbolic"):
    rewards.score(["1"], ["1"], rule="exact")
  with pytest.raises(ValueError, match="2 responses for 1 answers"):
    rewards.score(["1", "2"], ["1"])
  with pytest.raises(ValueError, match="timeout_sec"):
    rewards.score(["1"], ["1"], timeout_sec=0)


def test_a_failing_verifier_stops_the_run():
  ok = [rewards.Verdict(False, "1", "ok")] * 4
  failed = [rewards.Verdict(False, "x!", "timeout")] * 9
  assert rewards.count(ok + failed) == dict(
    ok=4, no_answer=0, timeout=9, error=0
  )
  with pytest.raises(rewards.WorkerError, match="9 of 13 .*9 timeouts"):
    rewards.check(ok + failed)
  rewards.check(ok + failed, max_failed=0.9)
  rewards.check(ok * 3 + failed)


def test_imports_neither_jax_nor_sympy():
  code = (
    "import sys, dapo_jax.rewards as r; assert r.is_equivalent("
    '"Answer: 1/2", "0.5"); print([m for m in ("jax", "flax", "sympy", '
    '"mpmath", "numpy") if m in sys.modules])'
  )
  done = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, check=True
  )
  assert done.stdout.strip() == "[]"
