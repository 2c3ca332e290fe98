"""Six algorithms, one program: every config, by the same tests."""

import dataclasses
import json
import math
import os
import signal

from flax import linen as nn
import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from configs import common, dapo, dr_grpo, grpo, ppo, vapo, vc_ppo
from dapo_jax import (
  checkpoint,
  config as config_lib,
  metrics,
  monitor,
  train,
  update,
)
from dapo_jax.config import UserError
from dapo_jax.data import arithmetic
from dapo_jax.data.tokenizer import Tokenizer
from dapo_jax.models import hf, transformer
from dapo_jax.models.variants import MODELS
from dapo_jax.signals import Preempted

ALGORITHMS = dict(
  dapo=dapo, grpo=grpo, dr_grpo=dr_grpo, ppo=ppo, vc_ppo=vc_ppo, vapo=vapo
)
each = pytest.mark.parametrize("name", ALGORITHMS)

# What a name stands for: all of it, at every variant.
_OFF = dict(
  filter_groups=False, overlong_punish=False, overlong_filter=False,
  dual_clip=0.0, entropy_coef=0.0, entropy_target=0.0, tis_limit=0.0,
  objective="clip", clip_low=0.2, clip_high=0.2, kl_coef=0.0, ntp_coef=0.0,
  value_pretrain_iters=0, gamma=1.0,
)  # fmt: skip
SWITCHES = dict(
  dapo=_OFF | dict(
    advantage="group_normalized", clip_high=0.28, filter_groups=True,
    overlong_punish=True,
  ),
  grpo=_OFF | dict(
    advantage="group_normalized", loss_agg="seq_mean_token_mean",
    kl_coef=0.04, kl_estimator="k3", kl_in="loss",
  ),
  dr_grpo=_OFF | dict(
    advantage="group_centered", loss_agg="seq_mean_token_sum_const"
  ),
  ppo=_OFF | dict(
    advantage="gae", loss_agg="token_mean", lam_actor=0.95, lam_critic=0.95,
    lam_alpha=0.0, group_size=1,
  ),
  vc_ppo=_OFF | dict(
    advantage="gae", loss_agg="token_mean", lam_actor=0.95, lam_critic=1.0,
    lam_alpha=0.0, group_size=1, value_pretrain_iters=100,
  ),
  vapo=_OFF | dict(
    advantage="gae", loss_agg="token_mean", lam_critic=1.0, lam_alpha=0.05,
    clip_high=0.28, ntp_coef=0.1, value_pretrain_iters=50,
  ),
)  # fmt: skip


@each
@pytest.mark.parametrize("words", ["", ",debug"])
@pytest.mark.parametrize("variant", sorted(common.VARIANTS))
def test_every_variant_passes_the_checks(name, variant, words):
  c = ALGORITHMS[name].get_config(variant + words)
  config_lib.check(c)
  assert config_lib.describe(c)
  assert (c.algorithm, c.variant) == (name, variant + words)


@each
@pytest.mark.parametrize("variant", sorted(common.VARIANTS))
def test_a_name_stands_for_the_complete_algorithm(name, variant):
  c = ALGORITHMS[name].get_config(variant)
  expected = dict(SWITCHES[name])
  if name == "vapo" and c.max_response_len < 100:
    expected["lam_alpha"] = 0.5  # 0.05 is no horizon at all there
  if name == "dapo":
    expected["loss_agg"] = (
      "group_token_mean" if variant.startswith("qwen") else "token_mean"
    )
  assert {k: c[k] for k in expected} == expected


@each
def test_a_variant_is_the_same_work_for_every_algorithm(name):
  c, other = ALGORITHMS[name].get_config("qwen32b"), dapo.get_config("qwen32b")
  assert c.prompts_per_batch * c.group_size == 8192
  for field in ("minibatch_size", "lr", "max_response_len", "warmup_iters"):
    assert c[field] == other[field]
  assert c.critic_lr == 2e-6


# The shortest evaluation; the warm start is made once, for all.
SHORT = dict(
  eval_every_iters=0, eval_problems=8, eval_samples=2,
  eval_greedy=False, keep_checkpoints=9,
)  # fmt: skip


class Killed(BaseException):
  """Stands for a kill: nothing catches it."""


def leaves(workdir):
  """All arrays of the newest checkpoint."""
  c = json.loads((workdir / "config.json").read_text())
  manager = checkpoint.Checkpoints(workdir, keep=9)
  number = manager._manager.latest_step()
  names = ("state", "critic") if c["advantage"] == "gae" else ("state",)
  args = {n: checkpoint.ocp.args.StandardRestore() for n in names}
  out = manager._manager.restore(
    number, args=checkpoint.ocp.args.Composite(**args)
  )
  manager.close()
  flat = checkpoint.ocp.tree.to_flat_dict
  return {n: flat(out[n]) for n in names}


def rows(path):
  """The deterministic part of a file of rows."""
  drop = metrics.MEASURED_SUFFIXES
  return [
    {k: v for k, v in row.items() if not k.endswith(drop)}
    for row in metrics.read_rows(path)
  ]


@each
def test_two_steps_learn_and_a_resumed_run_is_the_same(
  name, tmp_path, monkeypatch, start
):
  c = ALGORITHMS[name].get_config("tiny,debug")
  c.update(SHORT | dict(start_from=str(start)))
  train.train(c, tmp_path / "whole")
  found = rows(tmp_path / "whole/metrics.jsonl")
  assert [r["iter"] for r in found] == [0, 1, 2]
  for row in found[1:]:
    assert row["updates"] == row["skipped_nonfinite"] + 2 == 2
    assert row["recompilations"] == 0
    assert np.isfinite([row[k] for k in ("loss", "grad_norm", "entropy")]).all()
    if c.advantage == "gae":
      assert row["value_updates"] == 2 and row["value_grad_norm"] > 0
      assert np.isfinite([row["explained_variance"], row["value_loss"]]).all()
    if c.kl_coef:
      assert row["kl"] > 0
    if c.ntp_coef:
      # The mean over tokens of correct responses: 0 if there are none.
      assert (row["ntp_loss"] > 0) == (row["accuracy_after_filter"] > 0)
  after = leaves(tmp_path / "whole")
  first = tmp_path / "whole/checkpoints/0"
  before = checkpoint.ocp.StandardCheckpointer().restore(first / "state")
  flat = checkpoint.ocp.tree.to_flat_dict(before)
  # The demonstrations of `tiny` never use some rows; every matrix moves.
  changed = [
    not np.array_equal(flat[k], after["state"][k])
    for k in flat
    if k[0] == "params"
  ]
  assert all(changed) and len(changed) > 5

  # Killed in the second iteration, and in value pretraining where it is.
  workdir = tmp_path / "killed"
  for at, count in (("fit_critic", 2), ("update", 2)):
    if at == "fit_critic" and not c.value_pretrain_iters:
      continue
    plain, calls = getattr(update, at), 0

    def strike(*args, plain=plain, count=count):
      nonlocal calls
      calls += 1
      if calls == count:
        raise Killed
      return plain(*args)

    monkeypatch.setattr(update, at, strike)
    with pytest.raises(Killed):
      train.train(c, workdir)
    monkeypatch.setattr(update, at, plain)
  train.train(c, workdir)
  for file in ("metrics", "samples", "eval_samples", "value_metrics"):
    whole, again = (tmp_path / d / f"{file}.jsonl" for d in ("whole", "killed"))
    assert rows(whole) == rows(again)
  again = leaves(workdir)
  for part, tree in after.items():
    for key, value in tree.items():
      np.testing.assert_array_equal(value, again[part][key], str(key))


def test_the_start_of_a_run_starts_others(tmp_path, monkeypatch, start):
  c = vapo.get_config("tiny,debug")
  c.update(SHORT | dict(start_from=str(start), iters=1, kl_coef=0.01))

  # SIGTERM saves within value pretraining; the same command goes on.
  def terminate(*args, plain=monitor.value_line):
    os.kill(os.getpid(), signal.SIGTERM)
    return plain(*args)

  first = tmp_path / "first"
  monkeypatch.setattr(monitor, "value_line", terminate)
  with pytest.raises(Preempted, match="behind iteration 1 of value pretrain"):
    train.train(c, first)
  monkeypatch.undo()
  assert len(rows(first / "value_metrics.jsonl")) == 1
  assert not (first / "start").exists()
  train.train(c, first)
  assert len(rows(first / "value_metrics.jsonl")) == 2

  # Its iterations are those of the run that it comes from, bit by bit.
  second = tmp_path / "second"
  c.start_from = str(first / "start")
  train.train(c, second)
  assert not (second / "value_metrics.jsonl").exists()
  for file in ("metrics", "samples", "eval_samples"):
    ours, theirs = (rows(d / f"{file}.jsonl") for d in (first, second))
    assert ours and ours == theirs
  ours, theirs = leaves(first), leaves(second)
  for part, tree in ours.items():
    for key, value in tree.items():
      np.testing.assert_array_equal(value, theirs[part][key], str(key))

  # What a start is not is told in a line.
  c.critic_weights = str(tmp_path)
  with pytest.raises(UserError, match="holds a critic; leave critic_weights"):
    train.train(c, tmp_path / "third")
  c.update(critic_weights="", start_from=str(tmp_path / "nowhere"))
  with pytest.raises(UserError, match="nowhere is no start of a run"):
    train.train(c, tmp_path / "third")
  # Nor does a run with a KL go on without its reference.
  (first / "start/start.json").unlink()
  c.update(start_from=str(start), iters=2)
  with pytest.raises(UserError, match="is no start of a run"):
    train.train(c, first)


def test_policy_and_critic_start_from_folders(tmp_path):
  """Weights of bf16, as most folders have them; master weights are f32."""
  tokenizer = Tokenizer.characters(arithmetic.ALPHABET, arithmetic.WORDS)
  tiny, given = MODELS["tiny"], {}
  for seed, name in enumerate(("policy", "critic", "other")):
    width = {"other": 48}.get(name, tiny.width)
    shape = dataclasses.replace(tiny, width=width)
    params = transformer.init_params(shape, jax.random.key(seed))
    given[name] = nn.unbox(params)
    hf.save(
      tmp_path / name, shape, given[name], ml_dtypes.bfloat16,
      tokenizer=tokenizer if name == "policy" else None,
    )  # fmt: skip
  # The critic's is a reward model: a score instead of a vocabulary's head.
  path = tmp_path / "critic/model.safetensors"
  tensors = safetensors.numpy.load_file(path)
  tensors["score.weight"] = np.ones((1, tiny.width), ml_dtypes.bfloat16)
  safetensors.numpy.save_file(tensors, path)
  raw = json.loads((tmp_path / "critic/config.json").read_text())
  raw["tie_word_embeddings"] = False
  (tmp_path / "critic/config.json").write_text(json.dumps(raw))
  c = ppo.get_config("tiny,debug")
  c.update(
    model="", weights=str(tmp_path / "policy"), warm_steps=0, iters=1,
    critic_weights=str(tmp_path / "critic"), eval_greedy=False,
    eval_problems=8, eval_samples=2,
  )  # fmt: skip
  train.train(c, tmp_path / "run")
  restored = checkpoint.ocp.StandardCheckpointer()
  for part, name in (("state", "policy"), ("critic", "critic")):
    start = restored.restore(tmp_path / f"run/checkpoints/0/{part}")["params"]
    start = start.get("body", start)
    flat = checkpoint.ocp.tree.to_flat_dict(start)
    for key, value in checkpoint.ocp.tree.to_flat_dict(given[name]).items():
      assert flat[key].dtype == np.float32
      np.testing.assert_array_equal(
        flat[key], np.asarray(value, ml_dtypes.bfloat16), str(key)
      )
    # Two steps move every weight; of bf16 many would stay.
    after = leaves(tmp_path / "run")[part]
    for key in (("layers", "wq"), ("norm",)):
      path = ("params", "body", *key) if part == "critic" else ("params", *key)
      assert after[path].dtype == np.float32
      assert (after[path] != flat[key]).mean() > 0.99

  for name, words in (
    ("none", "none has no config.json"), ("other", "width 48 there, 96 wanted")
  ):  # fmt: skip
    c.critic_weights = str(tmp_path / name)
    with pytest.raises(UserError, match=words):
      train.train(c, tmp_path / "refused")


@pytest.mark.parametrize(
  "fields, words",
  [
    (dict(gamma=1.5), ["gamma=1.5", "[0, 1]"]),
    (dict(lam_critic=-0.1), ["lam_critic=-0.1"]),
    (dict(objective="ppo"), ["objective='ppo'", "gspo"]),
    (dict(kl_estimator="k4"), ["kl_estimator='k4'", "k3"]),
    (dict(kl_in="both"), ["kl_in='both'", "reward"]),
    (dict(objective="cispo", dual_clip=10.0), ["dual_clip=10.0", "cispo"]),
    (dict(clip_low=1.0), ["clip_low=1.0", "less than 1"]),
    (dict(dual_clip=math.nan), ["dual_clip=nan", "more than 1"]),
    (dict(critic_lr=math.inf), ["critic_lr=inf"]),
    (
      dict(
        advantage="group_centered", value_pretrain_iters=0, critic_weights="x"
      ),
      ["critic_weights='x'", "no critic"],
    ),
    (dict(tis_limit=0.5), ["tis_limit=0.5", "at least 1"]),
    (dict(tis_mode="drop"), ["tis_mode='drop'", "truncate"]),
    (dict(entropy_target=0.3), ["entropy_target=0.3", "set both"]),
    (
      dict(advantage="leave_one_out", group_size=1, value_pretrain_iters=0),
      ["group_size=1", "advantage='gae'"],
    ),
    (dict(advantage="group_centered"), ["value_pretrain_iters=50", "gae"]),
    (dict(critic_lr=-1.0), ["critic_lr=-1.0"]),
  ],
)
def test_bad_values_are_told_in_one_line_with_the_remedy(fields, words):
  c = vapo.get_config("tiny")
  c.update(fields)
  with pytest.raises(UserError) as error:
    config_lib.check(c)
  for word in words:
    assert word in str(error.value)


def test_cispo_may_do_without_a_lower_limit():
  c = grpo.get_config("tiny")
  c.update(objective="cispo", clip_low=1.0)
  config_lib.check(c)
