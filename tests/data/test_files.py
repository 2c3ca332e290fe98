"""Files of problems: schemas, repeats, what is dropped, and what is told."""

import json
from pathlib import Path
import types

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from configs import common, dapo
from dapo_jax import loading
from dapo_jax.data import files, prompts, templates
from dapo_jax.data.prompts import Source

SHARED = Path(__file__).resolve().parents[3] / "shared/data"


class Plain:
  """A tokenizer of characters that keeps the messages."""

  def encode_chat(self, messages):
    return [ord(ch) for ch in messages[-1]["content"]]


def load(source, tmp_path, **knobs):
  knobs = dict(max_prompt_len=10_000) | knobs
  return prompts.load(source, Plain(), folder=tmp_path / "prepared", **knobs)


def jsonl(path, rows):
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  return str(path)


def published(tmp_path, copies=3):
  """A file in DAPO-Math-17k's schema, every problem several times."""
  rows = [
    {
      "data_source": "math_dapo",
      "prompt": [
        {"role": "user", "content": f"Solve.\n\nWhat is {i % 4} + 1?\n\nEnd."}
      ],
      "ability": "MATH",
      "reward_model": {"ground_truth": str(i % 4 + 1), "style": "rule"},
      "extra_info": {"index": str(i)},
    }
    for i in range(4 * copies)
  ]
  path = tmp_path / "dapo-math-17k.parquet"
  pq.write_table(pa.Table.from_pylist(rows), path)
  return path


def test_the_published_schema_is_read_and_repeats_are_counted(tmp_path):
  path = published(tmp_path)
  problems = load(Source("dapo_math", str(path)), tmp_path, rule="paper")
  assert problems.num == 4 and problems.rows == 12
  assert problems.dropped == {files.REPEATED: 8}
  assert problems.answers == ["1", "2", "3", "4"]
  assert problems.problems[1] == "Solve.\n\nWhat is 1 + 1?\n\nEnd."
  # The folder it lies in will do, and a second look finds it prepared.
  again = load(Source("dapo_math", str(tmp_path)), tmp_path, rule="paper")
  assert again == problems


def test_json_lines_with_any_two_columns(tmp_path):
  rows = [
    {"q": "One?", "meta": {"gold": 1}}, {"q": "Half?", "meta": {"gold": "1/2"}},
    {"q": "", "meta": {"gold": 3}}, {"q": "None?", "meta": {"gold": None}},
    {"q": "Two?", "meta": {"gold": 2}}, {"q": "Two?", "meta": {"gold": "3"}},
    {"q": "One?", "meta": {"gold": "1"}},
  ]  # fmt: skip
  source = Source(
    "file", jsonl(tmp_path / "own.jsonl", rows), problem_column="q",
    answer_column="meta.gold", template="Q: {problem} A line `Answer: x`.",
  )  # fmt: skip
  problems = load(source, tmp_path)
  assert problems.problems == ["One?", "Half?"]
  assert problems.dropped == {
    files.REPEATED: 1, files.CONTRADICTORY: 1, files.EMPTY: 2
  }  # fmt: skip
  text = "".join(map(chr, problems.prompts[0]))
  assert text == "Q: One? A line `Answer: x`."
  # What the rule cannot read can never be right: it is dropped, and counted.
  strict = load(source, tmp_path, rule="integer")
  assert strict.problems == ["One?"]
  assert strict.dropped[prompts.UNREADABLE] == 1
  # Rewritten, a half has an integer too.
  whole = load(source._replace(integers=True), tmp_path, rule="integer")
  assert whole.answers == ["1", "3"] and "in the form" in whole.problems[1]


def test_gsm8k_answers_stand_behind_the_mark(tmp_path):
  rows = [{"question": "How many?", "answer": "1+2=<<1+2=3>>3\n#### 1,003"}]
  path = jsonl(tmp_path / "g.jsonl", rows)
  assert load(Source("gsm8k", path), tmp_path).answers == ["1,003"]


def test_an_edited_file_is_another_data_set(tmp_path):
  path = tmp_path / "own.jsonl"
  source = Source("file", jsonl(path, [{"problem": "A?", "answer": 1}]))
  before = load(source, tmp_path)
  jsonl(path, [{"problem": "A?", "answer": 2}])
  after = load(source, tmp_path)
  assert (before.answers, after.answers) == (["1"], ["2"])
  assert before.fingerprint() != after.fingerprint()


def test_values_are_texts_or_numbers(tmp_path):
  path = tmp_path / "own.parquet"
  table = {"problem": ["A?", "B?", "C?"], "answer": [18.0, 0.5, None]}
  pq.write_table(pa.table(table), path)
  problems = load(Source("file", str(path)), tmp_path)
  assert problems.answers == ["18", "0.5"]
  # A null in the middle of a path is no answer, not a missing column.
  rows = [{"problem": "A?", "m": {"gold": 1}}, {"problem": "B?", "m": None}]
  source = Source("file", jsonl(tmp_path / "n.jsonl", rows),
                  answer_column="m.gold")  # fmt: skip
  problems = load(source, tmp_path)
  assert problems.answers == ["1"] and problems.dropped == {files.EMPTY: 1}


BAD = {
  "a list": ("x.jsonl", '{"problem": "A?", "answer": ["2"]}', "row 1: "),
  "not a number": ("x.jsonl", '{"problem": "A?", "answer": NaN}', "row 1: "),
  "no text": ("x.jsonl", "\udcff", "line 1 is no JSON"),
  "no json": ("x.jsonl", "{'a'", "line 1 is no JSON"),
  "no object": ("x.jsonl", "[1]", "line 1 is no JSON object"),
  "no column": (
    "x.jsonl",
    '{"question": 1}',
    "no column 'problem'; it has que",
  ),
  "no parquet": ("x.parquet", "text", "is no parquet file"),
  "other kind": ("x.csv", "a,b", "give a .jsonl or .parquet"),
  "empty": ("x.jsonl", "", "no problem left of 0 rows"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_is_told_in_one_line(kind, tmp_path):
  name, text, message = BAD[kind]
  (tmp_path / name).write_text(text, errors="surrogateescape")
  with pytest.raises(ValueError) as error:
    load(Source("file", str(tmp_path / name)), tmp_path)
  assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("field", ["integers", "problem_column", "path"])
def test_what_a_made_up_set_cannot_do_is_refused(field, tmp_path):
  value = {"integers": True}.get(field, "x")
  with pytest.raises(ValueError, match="only data.split and data.template"):
    load(Source("arithmetic", **{field: value}), tmp_path)


def test_a_missing_file_is_named_with_what_gets_it(tmp_path):
  with pytest.raises(FileNotFoundError, match="hf download.*data.path"):
    load(Source("math500"), tmp_path)
  with pytest.raises(FileNotFoundError, match="nowhere.*hf download"):
    load(Source("dapo_math", str(tmp_path / "nowhere")), tmp_path)


# -- The start of a run ------------------------------------------------------


def config(tmp_path, **fields):
  c = dapo.get_config("tiny")
  c.update(dict(warm_steps=0, max_prompt_len=300, eval_problems=0) | fields)
  return c


def start(c, tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  said = []
  return loading.load_problems(c, Plain(), said.append), "\n".join(said)


def test_the_start_reports_what_was_read_and_what_both_sets_share(
  tmp_path, monkeypatch
):
  train = [{"problem": f"What is {i}?", "answer": i} for i in range(10)]
  train += [{"problem": "Long? " * 60, "answer": 1}, train[0]]
  train += [{"problem": "What is 1-1?", "answer": 0}]
  test = [
    {"problem": f"Please.\n\nWhat is {i}?", "answer": i} for i in (9, "1+1")
  ]
  c = config(
    tmp_path,
    data=dict(name="file", path=jsonl(tmp_path / "a.jsonl", train)),
    eval_data=dict(path=jsonl(tmp_path / "b.jsonl", test)),
  )
  (found, held_out), said = start(c, tmp_path, monkeypatch)
  assert (found.num, held_out.num) == (11, 2)
  assert "11 problems of 13 rows" in said
  assert "1 repeated" in said and f"1 {prompts.TOO_LONG}" in said
  assert "of 300 tokens" in said and "near the limit" in said
  assert "1 of 2 evaluation problems are among the training" in said


def test_what_all_problems_say_is_no_overlap(tmp_path, monkeypatch):
  wrap = "Solve the following problem step by step, and end so.\n\n{}\n\nGo."
  rows = lambda texts: [{"problem": wrap.format(t), "answer": 1} for t in texts]
  c = config(
    tmp_path,
    data=dict(name="file", path=jsonl(tmp_path / "a.jsonl", rows("xyz"))),
    eval_data=dict(path=jsonl(tmp_path / "b.jsonl", rows("wvu"))),
  )
  assert "warning" not in start(c, tmp_path, monkeypatch)[1]
  c.eval_data.path = jsonl(tmp_path / "b.jsonl", rows("wzu"))
  assert "1 of 3 evaluation" in start(c, tmp_path, monkeypatch)[1]


def test_a_file_to_evaluate_on_is_asked_for(tmp_path, monkeypatch):
  path = jsonl(tmp_path / "a.jsonl", [{"problem": "A?", "answer": 1}])
  c = config(tmp_path, data=dict(name="file", path=path))
  with pytest.raises(ValueError, match="eval_data.path"):
    start(c, tmp_path, monkeypatch)


def test_a_prompt_that_the_rule_does_not_pay_for_is_refused(
  tmp_path, monkeypatch
):
  """The contract of template and rule: boxes are not the paper's form."""
  path = jsonl(tmp_path / "a.jsonl", [{"problem": "A?", "answer": 1}])
  fields = dict(name="file", path=path, template="boxed")
  c = config(tmp_path, data=fields, eval_data=fields, reward_rule="paper")
  with pytest.raises(ValueError, match="boxed.*'paper'.*template=answer_line"):
    start(c, tmp_path, monkeypatch)
  c.reward_rule = "symbolic"
  assert start(c, tmp_path, monkeypatch)[0][0].num == 1
  c.data.template = "boxes"
  with pytest.raises(ValueError, match="'boxes'.*answer_line"):
    start(c, tmp_path, monkeypatch)


@pytest.mark.parametrize("variant", sorted(common.VARIANTS))
def test_every_variant_keeps_the_contract(variant):
  c = dapo.get_config(variant)
  for source in loading.sources(c):
    loading.check_contract(source, c.reward_rule)


@pytest.mark.parametrize("name", sorted(templates.TEMPLATES))
def test_every_template_keeps_its_contract(name):
  for rule in ("symbolic", "integer"):
    loading.check_contract(Source("file", "x", template=name), rule)


def test_evaluation_takes_what_it_does_not_set_from_training():
  c = dapo.get_config("tiny")
  train = dict(name="file", path="a", problem_column="q", template="boxed")
  c.data.update(train)
  c.eval_data.update(dict(path="b", template="answer_line"))
  found = loading.sources(c)
  assert found[0] == Source(**train)
  assert found[1] == Source("file", "b", "test", "q", template="answer_line")
  c.eval_data.name = "gsm8k"
  assert loading.sources(c)[1].problem_column == ""


def test_changed_data_are_refused():
  before = types.MappingProxyType({"train": "a", "eval": "b"})
  loading.compare_data(before, dict(before))
  with pytest.raises(ValueError, match="the eval problems have changed"):
    loading.compare_data(before, {"train": "a", "eval": "c"})


# -- The published files, where they are at hand -----------------------------


@pytest.mark.skipif(
  not (SHARED / "aime-2024.parquet").exists(), reason="no file of AIME 2024"
)
def test_aime_2024_is_thirty_problems(tmp_path):
  source = Source("aime2024", str(SHARED / "aime-2024.parquet"))
  problems = load(source, tmp_path, rule="integer")
  assert problems.num == 30 and problems.rows == 960
  assert problems.dropped == {files.REPEATED: 930}


@pytest.mark.skipif(not (SHARED / "gsm8k").exists(), reason="no files of GSM8K")
def test_gsm8k_is_read_whole(tmp_path):
  source = Source("gsm8k", str(SHARED / "gsm8k/test.jsonl"))
  problems = load(source, tmp_path)
  assert problems.rows == 1319 == problems.num + sum(problems.dropped.values())
  assert not problems.dropped
  assert problems.answers[0] == "18"
