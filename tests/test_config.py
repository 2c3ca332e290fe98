"""Configs: every variant builds and is checked, every field is read."""

import ast
from pathlib import Path

from ml_collections import ConfigDict
import pytest

from configs import common, dapo
from dapo_jax import config as config_lib
from dapo_jax.config import UserError

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("words", ["", ",paper", ",recipe", ",debug"])
@pytest.mark.parametrize("variant", sorted(common.VARIANTS))
def test_every_variant_passes_the_checks(variant, words):
  c = dapo.get_config(variant + words)
  config_lib.check(c)
  config_lib.describe(c)
  assert c.algorithm == "dapo" and c.filter_groups and c.overlong_punish
  assert (c.clip_low, c.clip_high) == (0.2, 0.28)


def test_the_default_is_a_real_model():
  assert dapo.get_config().to_dict() == dapo.get_config("smollm2").to_dict()


def test_the_papers_setting():
  c = dapo.get_config("qwen32b")
  assert c.prompts_per_batch * c.group_size == 8192
  assert c.prompts_per_batch * c.group_size // c.minibatch_size == 16
  assert (c.group_size, c.minibatch_size) == (16, 512)
  assert c.max_response_len == 20480 and c.overlong_cache_len == 4096
  assert c.max_response_len - c.overlong_cache_len == 16384
  assert (c.lr, c.warmup_iters) == (1e-6, 20)
  assert (c.temperature, c.top_p) == (1.0, 1.0)
  assert (c.eval_samples, c.eval_temperature, c.eval_top_p) == (32, 1.0, 0.7)
  assert (c.loss_agg, c.dual_clip) == ("group_token_mean", 0.0)
  assert not c.overlong_filter
  recipe = dapo.get_config("qwen32b,recipe")
  assert (recipe.warmup_iters, recipe.dual_clip) == (10, 10.0)
  assert (recipe.loss_agg, recipe.std_ddof) == ("token_mean", 1)
  assert (recipe.prompts_per_round, recipe.max_rounds) == (1536, 10)
  assert (recipe.weight_decay, recipe.max_grad_norm) == (0.1, 1.0)
  assert (recipe.b1, recipe.b2, recipe.max_prompt_len) == (0.9, 0.999, 2048)


def test_debug_keeps_the_switches():
  for reading in ("paper", "recipe"):
    full = dapo.get_config(f"qwen32b,{reading}")
    small = dapo.get_config(f"qwen32b,{reading},debug")
    for field in (
      "loss_agg", "dual_clip", "std_ddof", "warmup_iters", "clip_high",
      "reward_rule", "eval_top_p", "filter_groups", "remat", "lr",
    ):  # fmt: skip
      assert small[field] == full[field], field


def set_fields(**fields):
  c = dapo.get_config("tiny")
  c.update(dict(lr_decay_iters=0, lr_floor=0.0))
  for name, value in fields.items():
    if isinstance(value, ConfigDict):
      c[name] = value
    else:
      c.update({name: value})
  return c


@pytest.mark.parametrize(
  "fields, words",
  [
    (dict(group_size=1, minibatch_size=32), ["group_size=1", "at least 2"]),
    (dict(minibatch_size=60), ["whole groups", "56 or 64"]),
    (dict(minibatch_size=96), ["256", "these fit", "64, 128, 256"]),
    (dict(row_len=30), ["row_len=30", "at least 38"]),
    (dict(model="qwen9b"), ["'qwen9b'", "qwen32b"]),
    (dict(data=dict(name="gsm9k")), ["data.name='gsm9k'", "arithmetic"]),
    (dict(eval_data=dict(name="x")), ["eval_data.name='x'", "gsm8k"]),
    (dict(data=ConfigDict(dict(name="gsm8k"))), ["data has other fields"]),
    (dict(lr_floor=0.5), ["lr_floor=0.5", "lr_decay_iters=0"]),
    (dict(model="", weights="random"), ["need a model", "smollm2"]),
    (dict(loss_agg="mean"), ["'mean'", "token_mean"]),
    (dict(advantage="gea"), ["'gea'", "group_normalized"]),
    (dict(reward_rule="exact"), ["'exact'", "symbolic"]),
    (dict(surplus="keep"), ["'keep'", "drop, carry"]),
    (dict(dtype="float16"), ["'float16'", "bfloat16"]),
    (dict(std_ddof=2), ["std_ddof=2", "0, 1"]),
    (dict(top_p=0.9), ["top_p=0.9", "full support"]),
    (dict(eval_top_p=0.0), ["eval_top_p=0.0"]),
    (dict(temperature=0.0), ["temperature=0.0", "more than 0"]),
    (dict(dual_clip=0.5), ["dual_clip=0.5", "more than 1"]),
    (dict(clip_low=1.0), ["clip_low=1.0"]),
    (dict(iters=0), ["iters=0", "at least 1"]),
    (dict(lr=-1.0), ["lr=-1.0", "negative"]),
    (dict(seed=2**32), ["seed=4294967296"]),
    (dict(lr=float("nan")), ["lr=nan"]),
    (dict(temperature=float("nan")), ["temperature=nan"]),
    (dict(seed=-1), ["seed=-1"]),
    (dict(verify_timeout_sec=0.0), ["verify_timeout_sec=0.0", "more than 0"]),
    (dict(max_failed_verdicts=2.0), ["max_failed_verdicts=2.0"]),
    (dict(eval_prompts_per_round=-1), ["eval_prompts_per_round=-1"]),
    (dict(overlong_cache_len=100), ["overlong_cache_len=100", "28"]),
  ],
)
def test_bad_values_are_told_in_one_line_with_the_remedy(fields, words):
  with pytest.raises(UserError) as error:
    config_lib.check(set_fields(**fields))
  text = str(error.value)
  assert "\n" not in text
  for word in words:
    assert word in text


def test_sizes_that_do_not_split_over_the_devices():
  with pytest.raises(UserError, match="prompts_per_round=32.*30 or 35"):
    config_lib.check(set_fields(microbatch_size=5), batch_shards=5)
  with pytest.raises(UserError, match="microbatch_size=1.*try 4"):
    config_lib.check(set_fields(microbatch_size=1), batch_shards=4)
  with pytest.raises(UserError, match="eval_prompts_per_round=6.*4 or 8"):
    config_lib.check(set_fields(eval_prompts_per_round=6), batch_shards=4)


def test_unknown_variants_and_words_list_the_choices():
  with pytest.raises(ValueError, match="'huge'.*tiny"):
    dapo.get_config("huge")
  with pytest.raises(ValueError, match="'fast'.*debug"):
    dapo.get_config("tiny,fast")


LAYERS = {
  0: "types masked signals",
  1: "losses advantages logprobs sampling optim sharding models rewards",
  2: "rollout step groups packing data compiled programs update loading",
  3: "evaluate checkpoint metrics config monitor",
  4: "train command",
}


def test_imports_only_go_down():
  level = {name: n for n, names in LAYERS.items() for name in names.split()}
  for path in sorted((ROOT / "dapo_jax").rglob("*.py")):
    parts = path.relative_to(ROOT / "dapo_jax").with_suffix("").parts
    if parts[0] == "__init__":
      continue
    for node in ast.walk(ast.parse(path.read_text())):
      if not isinstance(node, ast.ImportFrom):
        continue
      if not (node.module or "").startswith("dapo_jax"):
        continue
      names = node.module.split(".")[1:2] or [a.name for a in node.names]
      for name in names:
        assert level[name] <= level[parts[0]], f"{path} imports {name}"


def test_configs_import_ml_collections_only():
  for path in (ROOT / "configs").glob("*.py"):
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, ast.ImportFrom):
        assert node.module in ("ml_collections", "configs"), path
      elif isinstance(node, ast.Import):
        pytest.fail(f"{path}: import {node.names[0].name}")
