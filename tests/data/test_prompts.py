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
    [[i] * (1 + i % 3) for i in range(n)], [""] * n, [""] * n, [""] * n, [], 0
  )


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


def load(tokenizer, tmp_path, split="train", **knobs):
  knobs = dict(max_prompt_len=20) | knobs
  return prompts.load(
    "arithmetic", split, tokenizer, data_dir=str(tmp_path), **knobs
  )


def test_long_prompts_are_dropped_and_counted(tokenizer, tmp_path):
  everything = load(tokenizer, tmp_path)
  short = load(tokenizer, tmp_path, max_prompt_len=8)
  assert everything.num_too_long == 0 and short.num_too_long > 0
  assert short.num + short.num_too_long == everything.num
  assert max(map(len, short.prompts)) <= 8
  with pytest.raises(ValueError, match="max_prompt_len=2"):
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
    prompts.load(
      "word_problems", split, Plain(), max_prompt_len=4,
      data_dir=str(tmp_path),
    )
    for split in ("train", "test")
  )  # fmt: skip

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


def test_an_unknown_data_set_lists_the_choices():
  with pytest.raises(ValueError, match="'gsm9k'.*arithmetic"):
    prompts.template("gsm9k")


def test_a_file_that_is_missing_is_named_with_what_gets_it(tokenizer, tmp_path):
  with pytest.raises(FileNotFoundError, match="dapo-math-17k.parquet.*hf down"):
    prompts.load(
      "dapo_math", "train", tokenizer, max_prompt_len=9, data_dir=str(tmp_path)
    )


def test_the_published_schema_is_read_and_repeats_are_dropped(tmp_path):
  import pyarrow as pa
  import pyarrow.parquet as pq

  rows = [
    {
      "prompt": [{"role": "user", "content": f"What is {i % 3} + 1?"}],
      "reward_model": {"ground_truth": str(i % 3 + 1), "style": "rule"},
    }
    for i in range(9)
  ]
  pq.write_table(pa.Table.from_pylist(rows), tmp_path / "dapo-math-17k.parquet")

  class Plain:
    def encode_chat(self, messages):
      return [len(messages[0]["content"])]

  problems = prompts.load(
    "dapo_math", "train", Plain(), max_prompt_len=9, data_dir=str(tmp_path)
  )
  assert sorted(problems.problems) == [f"What is {i} + 1?" for i in range(3)]
  assert dict(zip(problems.problems, problems.answers))["What is 2 + 1?"] == "3"
