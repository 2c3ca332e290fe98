"""Evaluates a model: python experiments/eval.py --config=configs/dapo.py:tiny.

The model is that of the config (`--config.weights=`: a Hugging Face folder, a
GGUF file), or with `--run=WORKDIR` the newest checkpoint of a run with that
config. The problems are the config's held-out ones, others by
`--config.eval_data.name=gsm8k --config.eval_data.path=FILE`; how many, how many
samples of each and how they are drawn are its `eval_*` fields.

Prints avg@k, unbiased pass@k and maj@k, each with a 95 % interval over
problems; every sample is kept in eval_samples.jsonl, the table in eval.json.
Interrupted, the same command goes on. Exit codes are those of run.py.
"""

from pathlib import Path
import sys

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from absl import flags

from dapo_jax import command

_WORKDIR = flags.DEFINE_string(
  "workdir", None, "Where results go (default: evals/RUN-DATASET)."
)
_RUN = flags.DEFINE_string(
  "run", None, "Workdir of a run, whose newest checkpoint is evaluated."
)


def evaluate(config) -> None:
  """Evaluates, prints the table and writes it.

  Raises:
    UserError: a mistake in config, data, weights or workdir.
  """
  c = config
  import jax
  from tqdm import tqdm

  from dapo_jax import (
    checkpoint,
    config as config_lib,
    evaluate as evaluate_lib,
    loading,
    metrics,
    monitor,
    programs,
    sharding,
  )
  from dapo_jax.config import UserError
  from dapo_jax.train import EVALUATE

  try:
    mesh = sharding.make_mesh(
      dict(data=c.mesh_data, fsdp=c.mesh_fsdp, tensor=c.mesh_tensor)
    )
    # No more samples of a prompt at once than are wanted.
    c.group_size = min(c.group_size, max(c.eval_samples, 1))
    config_lib.check(c, sharding.batch_shards(mesh), training=False)
    run = Path(_RUN.value) if _RUN.value else None
    if run is None and c.weights == "random":
      raise ValueError(
        "the config's weights are random: give the run to evaluate, "
        "--run=WORKDIR, or other --config.weights"
      )
    model_config, read_weights, tokenizer = loading.load_model(c)
    source = loading.sources(c)[1]
    problems = loading.load_source(c, source, c.eval_problems, tokenizer, print)
    bound = programs.build(c, model_config, mesh, tokenizer.eos_ids)
    if run is not None:
      saved = checkpoint.read(run, c, bound.state_shape)
      params, place = saved.state.params, saved.loop["iter"]
    else:
      params = jax.device_put(read_weights(), bound.params_sharding)
      place = 0
    of = str(run.resolve()) if run else c.weights
    name = f"{run.resolve().name if run else command.name_of(c)}-{source.name}"
    workdir = Path(_WORKDIR.value or Path("evals") / name)
    config_lib.claim(
      workdir, c, evaluated=f"{of}, iteration {place}",
      problems=problems.fingerprint(),
    )  # fmt: skip
    path = workdir / evaluate_lib.SAMPLES
    done = list(metrics.read_rows(path))
  except (ValueError, FileNotFoundError) as error:
    raise UserError(str(error)) from error

  is_greedy = c.eval_greedy and c.eval_temperature
  total = problems.num * (c.eval_samples + bool(is_greedy))
  bar = tqdm(total=total, initial=len(done), unit="sample", disable=None)
  rows = metrics.JsonLines(path, place + 1)  # forgets a torn line only

  def write(row: dict) -> None:
    rows.write({"iter": place, **row})
    bar.update()

  sampled, greedy = evaluate_lib.policy(
    c, bound, bound.to_rollout(params), jax.random.fold_in(
      jax.random.key(c.seed), EVALUATE
    ), problems, tokenizer, done, write,
  )  # fmt: skip
  bar.close()
  rows.close()
  found = evaluate_lib.summarize(sampled, c.reward_rule, c.verify_timeout_sec)
  if greedy is not None:
    found["greedy"] = evaluate_lib.average(greedy.is_correct)
  metrics.write_json(
    workdir / "eval.json",
    {
      "evaluated": of, "iteration": place, "data": source._asdict(),
      "problems": problems.num, "samples": c.eval_samples,
      "temperature": c.eval_temperature, "top_p": c.eval_top_p,
      "response_len": sampled.response_len.mean(),
      "truncated": sampled.is_truncated.mean(),
      **{name: value._asdict() for name, value in found.items()},
    },
  )  # fmt: skip
  print(monitor.evaluation_table(sampled, found, workdir))


if __name__ == "__main__":
  command.start(evaluate, __doc__)
