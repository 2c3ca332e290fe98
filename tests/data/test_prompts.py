"""The stream of prompts is a function of its position."""

import numpy as np
import pytest

from dapo_jax.data import arithmetic, prompts, word_problems
from dapo_jax.data.tokenizer import Tokenizer
from dapo_jax.rewards import is_equivalent


@pytest.fixture(scope="module")
def tokenizer():
  return Tokenizer.characters(arithmetic.ALPHABET)


def some(n):
  """n problems whose prompt is their number."""
  return prompts.Problems(
    [[i] * (1 + i % 3) for i in range(n)], [""] * n, [""] * n, [""] * n, [],
    n, {},
  )  # fmt: skip


def test_position_is_all_there_is():
  knobs = dict(seed=3, max_prompt_len=4)
  problems = some(10)
  whole = prompts.batch_at(problems, 0, 40, **knobs)
  parts = [prompts.batch_at(problems, p, 8, **knobs) for p in range(0, 40, 8)]
  np.testing.assert_array_equal(
    whole.index, np.concatenate([p.index for p in parts])
  )
  np.testing.assert_array_equal(whole.uid, np.arange(40))


def test_every_pass_is_a_permutation_of_its_own():
  batch = prompts.batch_at(some(10), 0, 30, seed=0, max_prompt_len=4)
  passes = batch.index.reshape(3, 10)
  for order in passes:
    np.testing.assert_array_equal(np.sort(order), np.arange(10))
  assert not (passes[0] == passes[1]).all()
  other = prompts.batch_at(some(10), 0, 30, seed=1, max_prompt_len=4)
  assert not (other.index == batch.index).all()


def test_prompts_are_padded_on_the_right():
  batch = prompts.batch_at(some(10), 0, 10, seed=0, max_prompt_len=4)
  for i, n, row in zip(batch.index, batch.prompt_len, batch.prompt_tokens):
    assert n == 1 + i % 3
    np.testing.assert_array_equal(row, [i] * n + [0] * (4 - n))


def load(tokenizer, tmp_path, split="train", name="arithmetic", **knobs):
  knobs = dict(max_prompt_len=20) | knobs
  source = prompts.Source(name, split=split)
  return prompts.load(source, tokenizer, folder=tmp_path, **knobs)


def test_long_prompts_are_dropped_and_counted(tokenizer, tmp_path):
  everything = load(tokenizer, tmp_path)
  short = load(tokenizer, tmp_path, max_prompt_len=8)
  assert not everything.dropped and everything.rows == everything.num
  assert short.num + short.dropped[prompts.TOO_LONG] == short.rows
  assert max(map(len, short.prompts)) <= 8
  with pytest.raises(
    ValueError, match="4096 prompt too long.*max_prompt_len=2"
  ):
    load(tokenizer, tmp_path, max_prompt_len=2)
  with pytest.raises(ValueError, match="no split 'dev'.*test"):
    load(tokenizer, tmp_path, split="dev")


def test_arithmetic_holds_its_test_problems_out(tokenizer, tmp_path):
  splits = {s: load(tokenizer, tmp_path, s) for s in ("warm", "train", "test")}
  test = set(splits["test"].problems)
  for split in ("warm", "train"):
    assert not test & set(splits[split].problems)
  for problem, answer in zip(splits["test"].problems, splits["test"].answers):
    assert eval(problem) == int(answer)


def test_the_own_solutions_of_a_data_set_are_right(tokenizer, tmp_path):
  """The contract of prompt, solution and reward."""
  for split in ("train", "test"):
    problems = load(tokenizer, tmp_path, split, limit=200)
    for solution, answer in zip(problems.solutions, problems.answers):
      assert is_equivalent(solution, answer)


def test_two_processes_may_prepare_the_same_data(
  tokenizer, tmp_path, monkeypatch
):
  plain, first = arithmetic.Arithmetic._generate_examples, True

  def overtaken(self, split):
    nonlocal first
    if first:
      first = False
      load(tokenizer, tmp_path)  # the other one is done before this one
    yield from plain(self, split)

  monkeypatch.setattr(arithmetic.Arithmetic, "_generate_examples", overtaken)
  ours = load(tokenizer, tmp_path)
  assert not first and ours.num == 4096
  assert ours.fingerprint() == load(tokenizer, tmp_path).fingerprint()


def test_about_two_demonstrations_in_five_are_right(tokenizer, tmp_path):
  warm = load(tokenizer, tmp_path, "warm")
  right = np.mean(
    [
      is_equivalent(solution, answer)
      for solution, answer in zip(warm.solutions[:500], warm.answers)
    ]
  )
  assert 0.3 < right < 0.5


def test_word_problems_hold_out_numbers_and_kinds(tmp_path):
  class Plain:
    def encode_chat(self, messages):
      assert [m["role"] for m in messages][-1] == "user"
      return [1]

  train, test = (
    load(Plain(), tmp_path, split, "word_problems")
    for split in ("train", "test")
  )

  def pairs(problems):
    found = set()
    for text in problems.problems:
      a, b = (int(w) for w in text.split() if w.isdigit())
      found.add((min(a, b), max(a, b)))
    return found

  assert not pairs(train) & pairs(test)
  new = {k for k, (*_, known) in word_problems.KINDS.items() if not known}
  assert not new & set(train.kinds) and new < set(test.kinds)
  for problems in (train, test):
    for solution, answer in zip(problems.solutions, problems.answers):
      assert is_equivalent(solution, answer)


def test_an_unknown_data_set_lists_the_choices(tokenizer, tmp_path):
  with pytest.raises(ValueError, match="'gsm9k'.*arithmetic.*gsm8k"):
    load(tokenizer, tmp_path, name="gsm9k")


def test_a_changed_problem_changes_the_fingerprint():
  problems = some(10)
  assert problems.fingerprint() == some(10).fingerprint()
  other = problems._replace(answers=["1", *problems.answers[1:]])
  longer = problems._replace(problems=["A?", *problems.problems[1:]])
  swapped = longer._replace(problems=longer.problems[::-1])
  found = {p.fingerprint() for p in (problems, other, longer, swapped)}
  assert len(found) == 4
