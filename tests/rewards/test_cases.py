"""The symbolic rule on tables of cases by kind."""

import importlib.util
import json
import pathlib

import pytest

from dapo_jax import rewards

_HERE = pathlib.Path(__file__).parent
_SHARED = _HERE.parents[1] / ".." / "shared" / "verifier"


def _load(name: str):
  spec = importlib.util.spec_from_file_location(name, _HERE / f"{name}.py")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


BY_KIND = {
  kind: cases
  for name in ("cases_text", "cases_math", "cases_traps")
  for kind, cases in _load(name).BY_KIND.items()
}


@pytest.mark.parametrize("kind", BY_KIND)
def test_kind(kind):
  golds, responses, expected = zip(*BY_KIND[kind], strict=True)
  verdicts = rewards.verify(responses, golds)
  wrong = [
    (case, verdict)
    for case, verdict in zip(BY_KIND[kind], verdicts, strict=True)
    if verdict.correct is not case[2]
  ]
  assert not wrong
  assert rewards.count(verdicts)["error"] == 0


def test_shared_cases():
  path = _SHARED / "cases.handed.jsonl"
  if not path.exists():
    pytest.skip("no verifier cases beside the repository (../shared)")
  cases = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
  verdicts = rewards.verify(
    [c["response"] for c in cases], [c["gold"] for c in cases]
  )
  wrong = [
    (c["id"], c["expected"], v.status)
    for c, v in zip(cases, verdicts, strict=True)
    if v.correct is not c["expected"]
  ]
  assert wrong == []


@pytest.mark.parametrize(
  "gold, response, prediction",
  [
    ("42", "So \\boxed{42}.", "42"),
    ("42", "Answer: $42$.", "42"),
    ("42", "**Final Answer: 42**", "42"),
    ("42", "The total is 42, as we saw. It was a long way to go.", None),
    ("42", "", None),
    ("42", "A box \\boxed{} that is empty", None),
    ("42", "A box \\boxed{42 that stays open", None),
  ],
)
def test_prediction(gold, response, prediction):
  (verdict,) = rewards.verify([response], [gold])
  assert verdict.prediction == prediction
  assert verdict.status == ("no_answer" if prediction is None else "ok")
  assert verdict.correct is (prediction is not None)
