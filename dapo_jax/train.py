"""The loop: DAPO's Algorithm 1, stage by stage, and the family's.

The life of one batch:

  prompts.batch_at()           PromptBatch  tokens [P, Lp], lengths, uid
   -> generate()        (jit)  Rollout      tokens [B, T], logprobs, lengths
   -> evaluate.judge()  (host) is_correct [B]
   -> groups            (host) keep 0 < correct < G; enough? else next round;
                               surplus dropped or carried
   -> update.prepare()  (jit)  old_logprobs of the policy that sampled; values
                               of the critic, ref_logprobs, where there are
                               any; rewards, advantages, value targets
   -> update.update()   (jit)  minibatch by minibatch: rows packed without
                               padding, one train_step each, state donated
   -> update.fit_critic()      the same for a critic
   -> metrics, evaluation, checkpoint

Before the first iteration the critic may learn alone: value pretraining.

The host's part is the same on every process: all read all responses.
"""

import functools
import json
from pathlib import Path
import time

import jax
from tqdm import tqdm

from dapo_jax import (
  checkpoint,
  config as config_lib,
  evaluate,
  groups as groups_lib,
  loading,
  losses,
  metrics as metrics_lib,
  monitor,
  programs as programs_lib,
  sharding,
  signals,
  update,
)
from dapo_jax.config import UserError
from dapo_jax.data import prompts
from dapo_jax.signals import Preempted

# What a random key is for: folded into the root key first.
PARAMS, ROLLOUT, EVALUATE, VALUE = range(4)
METRICS, SAMPLES = "metrics.jsonl", "samples.jsonl"
VALUE_METRICS = "value_metrics.jsonl"  # of value pretraining


def train(c, workdir: Path) -> dict:
  """Runs a config in a workdir, from its newest checkpoint if it has one.

  Args:
    c: the config, see configs/common.py.
    workdir: where everything is written.

  Returns:
    The summary, as in summary.json.

  Raises:
    UserError: a mistake in config, data, weights or workdir, or a run that
      cannot go on. Nothing is lost.
    Preempted: SIGTERM or Ctrl-C came; the state is saved.
  """
  start_time = time.perf_counter()
  phase = metrics_lib.Phases()
  say = tqdm.write

  # ---- Setup: config, workdir, data, model ---------------------------------
  try:
    mesh = sharding.make_mesh(
      dict(data=c.mesh_data, fsdp=c.mesh_fsdp, tensor=c.mesh_tensor)
    )
    config_lib.check(c, sharding.batch_shards(mesh))
    say(config_lib.describe(c))
    model_config, read_weights, tokenizer = loading.load_model(c)
    train_set, test_set, *warm_set = loading.load_problems(c, tokenizer, say)
    config_lib.claim(workdir, c)
    data = {"train": train_set.fingerprint(), "eval": test_set.fingerprint()}
  except (ValueError, FileNotFoundError) as error:
    raise UserError(str(error)) from error
  programs = programs_lib.build(c, model_config, mesh, tokenizer.eos_ids)
  root = jax.random.key(c.seed)
  key_for = functools.partial(jax.random.fold_in, root)

  # ---- State: from a checkpoint, or new, after a warm start ----------------
  checkpoints = checkpoint.Checkpoints(workdir, c.keep_checkpoints)
  is_new = checkpoints.is_empty
  buffer, tallies = None, None  # groups kept, and facts of all groups sampled
  try:
    written = [r["iter"] for r in metrics_lib.read_rows(workdir / METRICS)]
    for name in (SAMPLES, evaluate.SAMPLES, VALUE_METRICS):
      for _ in metrics_lib.read_rows(workdir / name):
        pass  # a damaged file is told before anything is written
    if is_new:
      if written and written[-1] > 0:
        raise ValueError(
          f"workdir {workdir} has metrics up to iteration {written[-1]}, but "
          "no checkpoint; put its checkpoints back, or give another --workdir"
        )
      params, critic_params = _start(c, programs, key_for, read_weights)
      critic_body = None
      if c.critic_weights and critic_params is not None:
        raise ValueError(
          f"start_from={c.start_from!r} holds a critic; leave critic_weights="
          f"{c.critic_weights!r} out"
        )
      if c.critic_weights:
        critic_body = loading.load_critic_body(c, model_config)
      if c.warm_steps and not c.start_from:
        say(f"warm start {c.warm_steps} supervised steps on demonstrations")
        params = update.warm_start(c, programs, params, *warm_set, tokenizer)
      is_pretrained = critic_params is not None
      if programs.critic and not is_pretrained:
        critic_params = programs.critic.of_policy(critic_body or params)
      del critic_body
      models = update.Models(
        programs.init_state(params),
        critic_params and programs.critic.init_state(critic_params),
      )
      del params, critic_params
      loop = dict(iter=0, position=0, rounds=0, empty_iters=0, skipped=0,
                  data=data, wall_sec=0.0, compile_sec=0.0,
                  entropy_coef=c.entropy_coef, value_iter=0, value_history=[],
                  value_skipped=0,
                  value_done=is_pretrained or not c.value_pretrain_iters,
                  )  # fmt: skip
    else:
      *states, loop, buffer, tallies = checkpoints.restore(
        programs.state_shape,
        programs.critic and programs.critic.state_shape,
      )
      models = update.Models(*states)
      config_lib.compare(loop.pop("config"), c, "the newest checkpoint")
      loading.compare_data(loop["data"], data)
      if written[: loop["iter"] + 1] != list(range(loop["iter"] + 1)):
        raise ValueError(
          f"{workdir / METRICS} lacks rows up to iteration {loop['iter']}, "
          "where the newest checkpoint is; put the file back, or give another "
          "--workdir"
        )
      if c.kl_coef and loop["iter"]:
        params, _ = checkpoint.read_start(
          workdir / checkpoint.START, c, programs.params_shape
        )
        models = models._replace(reference=programs.to_reference(params))
        del params
      say(f"continuing behind iteration {loop['iter']} of {c.iters}")
  except (ValueError, FileNotFoundError) as error:
    raise UserError(str(error)) from error
  del read_weights
  first = 0 if is_new else loop["iter"] + 1
  earlier = {k: loop[k] for k in ("wall_sec", "compile_sec")}
  rows = metrics_lib.JsonLines(workdir / METRICS, first)
  samples = metrics_lib.JsonLines(workdir / SAMPLES, first)
  eval_samples = metrics_lib.JsonLines(workdir / evaluate.SAMPLES, first)
  boards = metrics_lib.Boards(workdir, c.to_dict(), first, c.wandb)
  bar = tqdm(
    total=c.iters, initial=loop["iter"], desc=c.algorithm, unit="iter",
    disable=None,
  )  # fmt: skip

  def spent() -> dict:
    wall = earlier["wall_sec"] + time.perf_counter() - start_time
    return dict(
      wall_sec=wall, compile_sec=earlier["compile_sec"] + phase.compile_sec
    )

  def save() -> None:
    with phase("checkpoint"):
      place = loop | spent() | {"config": json.loads(c.to_json())}
      try:
        checkpoints.save(
          checkpoint.Saved(models.policy, models.critic, place, buffer, tallies)
        )
      except Exception as error:  # Orbax has no type for a full disk
        raise UserError(_not_written(workdir, error)) from error

  def save_finished() -> None:
    try:
      checkpoints.wait()
    except Exception as error:  # raised by what was written in the background
      raise UserError(_not_written(workdir, error)) from error

  def close() -> None:
    save_finished()
    stop_listening()
    for writer in (
      checkpoints, rows, samples, eval_samples, boards, bar, phase,
    ):  # fmt: skip
      writer.close()

  def sample_round(weights, key):
    """Groups of the next round of prompts, and what the verifier said."""
    size = config_lib.round_size(c)
    batch = prompts.batch_at(
      train_set, loop["position"], size, seed=c.seed,
      max_prompt_len=c.max_prompt_len,
    )  # fmt: skip
    loop["position"] += size
    with phase("generate"):
      rollout = jax.device_get(
        programs.generate(
          weights, key, batch.prompt_tokens, batch.prompt_len, batch.uid,
          0, c.temperature, c.top_p,
        )
      )  # fmt: skip
    with phase("verify"):
      answers = [train_set.answers[i] for i in batch.index]
      judged = evaluate.judge(c, tokenizer, rollout, answers)
    found = groups_lib.of_rollout(batch, rollout, judged.is_correct)
    return found, judged.status

  def stop_here(where: str) -> None:
    save()
    close()
    raise Preempted(f"saved {where}")

  def evaluation(iteration: int) -> dict:
    with phase("eval"):
      weights = programs.to_rollout(models.policy.params)
      found = evaluate.policy(
        c, programs, weights, key_for(EVALUATE), test_set, tokenizer,
        write=lambda row: eval_samples.write({"iter": iteration, **row}),
      )  # fmt: skip
      return monitor.of_evaluation(*found, c.reward_rule, c.verify_timeout_sec)

  if is_new:
    row = {"iter": 0, **evaluation(0)}
    row |= phase.take()[0]
    rows.write(row)
    boards.write(0, row)
    say(monitor.line(row, c.iters))
    save()
    # From here on a row of metrics means that there is a checkpoint.
    save_finished()

  # Before this point a signal just ends the process: nothing would be lost.
  terminated, stop_listening = signals.listen()

  # ---- Value pretraining: a fixed policy, Monte-Carlo returns --------------
  value_rows, value_boards = None, None
  while not loop["value_done"]:
    number, iter_start = loop["value_iter"] + 1, time.perf_counter()
    if terminated.is_set():
      stop_here(f"behind iteration {number - 1} of value pretraining")
    if value_rows is None:
      value_rows = metrics_lib.JsonLines(workdir / VALUE_METRICS, number)
      value_boards = metrics_lib.Boards(
        workdir, c.to_dict(), number, wandb=False, name="value"
      )
    weights = programs.to_rollout(models.policy.params)
    found, _ = sample_round(weights, jax.random.fold_in(key_for(VALUE), number))
    del weights  # the update needs the memory
    found = groups_lib.take(found, slice(c.prompts_per_batch))
    with phase("value_score"):
      batch = update.prepare_values(c, programs, models.critic, found)
    with phase("value_update"):
      critic, updates = update.fit_critic(c, programs, models.critic, batch)
    models = models._replace(critic=critic)
    row = {"iter": number, "accuracy": found.is_correct.mean()}
    row |= monitor.of_critic(batch, updates)
    loop["value_skipped"], longest = monitor.skipped_in_a_row(
      loop["value_skipped"], updates
    )
    loop["value_iter"] = number
    loop["value_history"].append(
      [row["explained_variance"], row["value_error"]]
    )
    loop["value_done"] = number >= c.value_pretrain_iters or (
      monitor.has_settled(
        loop["value_history"], c.value_settle_iters, c.value_settle_tol
      )
    )
    if loop["value_done"]:
      # All that stays of the stage is the weights, as with `start_from`.
      loop["position"] = 0
      models = models._replace(critic=programs.critic.init_state(critic.params))
    del critic
    seconds, row["recompilations"] = phase.take()
    row |= seconds | {"iter_sec": time.perf_counter() - iter_start}
    value_rows.write(row)
    value_boards.write(number, row)
    say(monitor.value_line(row, c.value_pretrain_iters))
    problem = monitor.reason_to_stop(c, 0, longest, row)
    if problem:
      close()
      raise UserError(problem)
    if loop["value_done"] or number % c.checkpoint_every_iters == 0:
      save()
  if value_rows:
    value_rows.close()
    value_boards.close()
  if not loop["iter"] and (c.kl_coef or c.value_pretrain_iters):
    # What this run starts from, for a KL to it and for other runs.
    params = models.policy.params
    try:
      checkpoint.write_start(
        workdir, c, params, models.critic and models.critic.params
      )
    except Exception as error:  # Orbax has no type for a full disk
      raise UserError(_not_written(workdir, error)) from error
    if c.kl_coef:
      models = models._replace(reference=programs.to_reference(params))
    del params

  # ---- Iterations ----------------------------------------------------------
  while loop["iter"] < c.iters:
    iteration, iter_start = loop["iter"] + 1, time.perf_counter()
    weights = None
    key = jax.random.fold_in(key_for(ROLLOUT), iteration)

    # Sample until the batch is full or the rounds are spent.
    while loop["rounds"] < c.max_rounds and (
      buffer is None or buffer.num < c.prompts_per_batch
    ):
      if terminated.is_set():
        stop_here(
          f"within iteration {iteration}, after {loop['rounds']} rounds"
        )
      if weights is None:
        weights = programs.to_rollout(models.policy.params)
      found, status = sample_round(weights, key)
      tallies = monitor.add_tallies(tallies, found, status)
      kept = groups_lib.is_mixed(found.is_correct) | (not c.filter_groups)
      if kept.any():
        buffer = groups_lib.join(buffer, groups_lib.take(found, kept))
      loop["rounds"] += 1
    del weights  # the update needs the memory
    row = {"iter": iteration, "rounds": loop["rounds"]}
    row |= monitor.before_filter(tallies, c.group_size)

    # Update, unless there is nothing to learn from.
    chosen, carried, dropped, updates = None, None, 0, []
    value_longest = 0
    if buffer is not None:
      chosen, carried, dropped = groups_lib.split_surplus(
        buffer, c.prompts_per_batch, c.surplus
      )
      with phase("score"):
        batch = update.prepare(c, programs, models, chosen)
        if carried is not None:
          carried = update.score(c, programs, models.policy.params, carried)
      with phase("update"):
        policy, updates = update.update(
          c, programs, models.policy, batch, loop["entropy_coef"]
        )
      models = models._replace(policy=policy)
      row |= monitor.after_filter(batch)
      if models.critic:
        with phase("value_update"):
          critic, fits = update.fit_critic(c, programs, models.critic, batch)
        models = models._replace(critic=critic)
        row |= monitor.of_critic(batch, fits)
        loop["value_skipped"], value_longest = monitor.skipped_in_a_row(
          loop["value_skipped"], fits
        )
      for sample in monitor.sample_rows(
        iteration, batch, train_set, tokenizer, c.num_logged_samples
      ):
        samples.write(sample)
    is_empty = all(u["skipped_empty"] for u in updates)
    loop["empty_iters"] = loop["empty_iters"] + 1 if is_empty else 0
    loop["skipped"], longest = monitor.skipped_in_a_row(
      loop["skipped"], updates
    )
    row |= monitor.of_updates(updates) | {
      "optimizer_step": int(models.policy.step),
      "lr": float(programs.learning_rate(max(int(models.policy.step) - 1, 0))),
      "prompts_carried": 0 if carried is None else carried.num,
      "prompts_dropped": dropped,
      "empty_iters": loop["empty_iters"],
    }
    if c.entropy_coef or c.entropy_target:
      row["entropy_coef"] = loop["entropy_coef"]
    if c.entropy_target and "entropy" in row:
      loop["entropy_coef"] = losses.next_entropy_coef(
        loop["entropy_coef"], row["entropy"], target=c.entropy_target,
        step=c.entropy_coef_step,
      )  # fmt: skip

    # Evaluate, write, save.
    is_last = iteration == c.iters
    every = c.eval_every_iters
    if is_last or (every and iteration % every == 0):
      row |= evaluation(iteration)
    seconds, row["recompilations"] = phase.take()
    row |= seconds | monitor.rates(row, seconds, chosen)
    row["iter_sec"] = time.perf_counter() - iter_start
    row["peak_bytes"] = metrics_lib.peak_bytes()
    rows.write(row)
    boards.write(iteration, row)
    say(monitor.line(row, c.iters))
    bar.set_postfix_str(monitor.brief(row), refresh=False)
    bar.update()
    loop |= dict(iter=iteration, rounds=0)
    buffer, tallies = carried, None
    problem = monitor.reason_to_stop(
      c, loop["empty_iters"], max(longest, value_longest), row
    )
    if problem:  # the last good checkpoint stays the newest
      close()
      raise UserError(problem)
    stop = terminated.is_set() and not is_last
    if stop:
      stop_here(f"behind iteration {iteration}")
    if is_last or iteration % c.checkpoint_every_iters == 0:
      save()

  # ---- Summary -------------------------------------------------------------
  close()
  summary = monitor.summary(rows.read(), c, spent(), loop["value_history"])
  metrics_lib.write_json(workdir / "summary.json", summary)
  say(monitor.closing(summary, c, workdir))
  return summary


def _start(c, programs, key_for, read_weights):
  """Params of the policy to begin with, and of its critic if there is one."""
  if c.start_from:
    critic = programs.critic and programs.critic.params_shape
    return checkpoint.read_start(c.start_from, c, programs.params_shape, critic)
  if read_weights is None:
    return programs.init_params(key_for(PARAMS)), None
  return jax.device_put(read_weights(), programs.params_sharding), None


def _not_written(workdir: Path, error: Exception) -> str:
  reason = " ".join(str(error).split())[-160:]
  return (
    f"a checkpoint cannot be written to {workdir} ({reason}); mend that and "
    "run the same command: it continues from the one before"
  )
