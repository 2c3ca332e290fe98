"""Ablations in miniature: python experiments/ablation.py --ladder=dapo.

Ladder `dapo` is Table 1 of DAPO (arXiv:2503.14476): naive GRPO, then one
switch more a row. All rows are run without KL, the first one too, and
overlong filtering stays on to the last row, as the table has it. Ladder
`vapo` is VAPO (arXiv:2504.05118) and VAPO without one thing each; the paper's
row without group sampling is not in it.

All runs are made in one process, which shares what is compiled. All start from
one policy, OUT/start, as the papers' do; the rows of a seed meet the same
problems, and those with a pretrained critic share it: differences are paired
by seed. OUT holds a workdir a run, with its output in log.txt, and the
results: table.md, table.json, ablation.png; generated tokens are those of
training, without evaluations and value pretraining. The same command continues
an interrupted ablation; finished runs are not made again. Exit codes are those
of run.py.
"""

import argparse
from collections.abc import Iterator
import contextlib
import copy
import functools
import json
import math
from pathlib import Path
import re
import statistics
import sys
import time

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from configs import common
from dapo_jax import command

CONFIGS = Path(__file__).resolve().parents[1] / "configs"

# Fields of every row: what makes the miniature; --set goes on top. Sixteen
# optimizer steps an iteration, as the paper has them: with few, nothing is
# ever clipped. A long warm start and a short run: the rows end apart, each
# before it is perfect, and seeds of a row end close to one another.
TASK = dict(
  minibatch_size=16, warm_steps=900, lr=3e-4, iters=12, lr_decay_iters=12,
  eval_every_iters=4, eval_problems=256,
)  # fmt: skip


def row(name: str, paper: int, **fields) -> dict:
  """A row of a ladder: name, the paper's AIME 2024 accuracy in %, fields."""
  return dict(name=name, paper=paper, fields=fields)


LADDERS = {
  # Fields come on top of those of the rows before.
  "dapo": (
    row("GRPO", 30, loss_agg="seq_mean_token_mean", clip_high=0.2,
        filter_groups=False, overlong_punish=False, overlong_filter=False),
    row("+ overlong filtering", 36, overlong_filter=True),
    row("+ Clip-Higher", 38, clip_high=0.28),
    row("+ soft overlong punishment", 41, overlong_punish=True),
    row("+ token-level loss", 42, loss_agg="token_mean"),
    row("+ dynamic sampling (DAPO)", 50, filter_groups=True),
  ),
  # Fields come on top of VAPO's.
  "vapo": (
    row("VAPO", 60),
    row("without value pretraining", 11, value_pretrain_iters=0),
    row("without decoupled GAE", 33, lam_critic=0.95),
    row("without length-adaptive GAE", 45, lam_alpha=0.0, lam_actor=0.95),
    row("without Clip-Higher", 46, clip_high=0.2),
    row("without token-level loss", 53, loss_agg="seq_mean_token_mean"),
    row("without positive-example NLL", 54, ntp_coef=0.0),
  ),
}  # fmt: skip

# 97.5 % quantiles of Student's t with 1, 2, .. 9 degrees of freedom.
T_QUANTILES = (
  12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262
)  # fmt: skip
LENGTH = "response_len_before_filter"
# Title of a panel -> key of metrics.jsonl.
PANELS = {
  "held-out accuracy": "eval_accuracy",
  "entropy (nats)": "entropy",
  "response length (tokens)": LENGTH,
}


# -- Rows --------------------------------------------------------------------


def workdir_of(out: Path, ladder: str, number: int, seed: int) -> Path:
  """The workdir of a run; rows are numbered from 0 here."""
  name = LADDERS[ladder][number]["name"].lower()
  return out / f"{re.sub('[^a-z0-9]+', '-', name).strip('-')}-seed{seed}"


def config_of(base, out: Path, ladder: str, number: int, seed: int):
  """The config of a run."""
  c = copy.deepcopy(base)
  c.seed = seed
  first = 0 if ladder == "dapo" else number
  for of_ladder in LADDERS[ladder][first : number + 1]:
    c.update(of_ladder["fields"])
  folder = out
  if number and c.value_pretrain_iters:  # VAPO's own run has made the critic
    folder = workdir_of(out, ladder, 0, seed)
  # Absolute: another spelling of OUT is still the same config.
  c.start_from = str(folder.resolve() / "start")
  return c


def make_start(c, folder: Path) -> None:
  """Writes `folder/start`: the policy that all runs start from.

  Raises:
    ValueError, FileNotFoundError: weights, data, or a start of another config.
  """
  import jax

  from dapo_jax import (
    checkpoint,
    config as config_lib,
    loading,
    metrics,
    programs,
    sharding,
    update,
  )
  from dapo_jax.train import PARAMS

  path = folder / "config.json"  # written last: the start is complete
  if path.exists():
    config_lib.compare(json.loads(path.read_text()), c, str(folder))
    return
  mesh = sharding.make_mesh(
    dict(data=c.mesh_data, fsdp=c.mesh_fsdp, tensor=c.mesh_tensor)
  )
  model_config, read_weights, tokenizer = loading.load_model(c)
  bound = programs.build(c, model_config, mesh, tokenizer.eos_ids)
  if read_weights is None:
    key = jax.random.fold_in(jax.random.key(c.seed), PARAMS)
    params = bound.init_params(key)
  else:
    params = jax.device_put(read_weights(), bound.params_sharding)
  if c.warm_steps:
    *_, warm_set = loading.load_problems(c, tokenizer, print)
    params = update.warm_start(c, bound, params, warm_set, tokenizer)
  checkpoint.write_start(folder, c, params, None)
  metrics.write_json(path, json.loads(c.to_json()))


# -- Runs --------------------------------------------------------------------


def read(workdir: Path) -> list[dict]:
  """Rows of a run's metrics.jsonl."""
  from dapo_jax import metrics, train

  return list(metrics.read_rows(workdir / train.METRICS))


def is_finished(workdir: Path, c) -> bool:
  """Whether a run is complete.

  Raises:
    ValueError: it is of another config, longer than wanted, or damaged.
  """
  from dapo_jax import config as config_lib

  if not (workdir / "summary.json").exists():
    return False
  theirs = json.loads((workdir / "config.json").read_text())
  config_lib.compare(theirs, c, str(workdir))
  rows = read(workdir)
  if len(rows) > c.iters + 1:
    raise ValueError(
      f"{workdir} has more iterations than iters={c.iters}; give another "
      "--out, or as many"
    )
  return len(rows) == c.iters + 1


@contextlib.contextmanager
def naming(name: str, *kinds: type[Exception]) -> Iterator[None]:
  """A UserError, or an error of these kinds, tells which run it is of."""
  from dapo_jax.config import UserError

  try:
    yield
  except (UserError, *kinds) as error:
    text = str(error).replace("--workdir", "--out")
    raise UserError(f"{name}: {text}") from error


@contextlib.contextmanager
def logged(folder: Path) -> Iterator[None]:
  """What is printed goes to a file in the folder."""
  folder.mkdir(parents=True, exist_ok=True)
  with (folder / "log.txt").open("a", buffering=1) as file:
    with contextlib.redirect_stdout(file):
      yield


def run(args: argparse.Namespace, base) -> None:
  """Makes the runs that are not there yet, then tables and picture.

  Raises:
    UserError: a run cannot be made; what is finished stays.
    Preempted: SIGTERM or Ctrl-C came; the state of the run is saved.
  """
  from dapo_jax import config as config_lib, metrics
  from dapo_jax.train import train

  ladder, out, runs, todo = args.ladder, args.out, {}, []
  for seed in range(args.seeds):
    for number in args.rows:
      name = f"{LADDERS[ladder][number]['name']}, seed {seed}"
      workdir = workdir_of(out, ladder, number, seed)
      c = config_of(base, out, ladder, number, seed)
      runs.setdefault(number, []).append(workdir)
      with naming(name, ValueError, FileNotFoundError):
        config_lib.check(c)
        if not is_finished(workdir, c):
          todo.append((name, workdir, c))
  total = len(args.rows) * args.seeds
  print(f"{len(todo)} of {total} runs to make", flush=True)

  begin = time.perf_counter()
  for done, (name, workdir, c) in enumerate(todo, 1):
    with naming(name, ValueError, FileNotFoundError), logged(out):
      make_start(base, out)
    with naming(name), logged(workdir):
      summary = train(c, workdir)
    minutes = (time.perf_counter() - begin) / 60
    print(
      f"{name}: held-out {summary['accuracy_before']:.3f} to "
      f"{summary['accuracy_after']:.3f}; {minutes:.1f} min, about "
      f"{minutes / done * (len(todo) - done):.1f} min left",
      flush=True,
    )

  found = {number: list(map(read, of_row)) for number, of_row in runs.items()}
  results = table(ladder, found)
  text = as_markdown(ladder, f"{base.variant}, seeds: {args.seeds}", results)
  metrics.write_json(out / "table.json", results)
  (out / "table.md").write_text(text)
  print(f"\n{text}\nwrote {out}/table.md, {out}/table.json")
  picture(out / "ablation.png", ladder, found)


# -- Results -----------------------------------------------------------------

Runs = dict[int, list[list[dict]]]  # number of a row -> seeds -> metrics


def mean_and_half(values: list[float]) -> tuple[float, float | None]:
  """Mean, half of its 95 % t-interval; one value has none."""
  mean, n = statistics.fmean(values), len(values)
  if n == 1:
    return mean, None
  return mean, T_QUANTILES[n - 2] * statistics.stdev(values) / math.sqrt(n)


def at_end(of_row: list[list[dict]], key: str) -> float | None:
  """The mean of the last values of a metric, over the runs that have one."""
  values = [[r[key] for r in rows if r.get(key) is not None] for rows in of_row]
  lasts = [v[-1] for v in values if v]
  return statistics.fmean(lasts) if lasts else None


def table(ladder: str, found: Runs) -> list[dict]:
  """A dict of results for each row."""
  accuracy = {
    number: [rows[-1]["eval_accuracy"] for rows in of_row]
    for number, of_row in found.items()
  }
  results = []
  for number, of_row in found.items():
    mean, half = mean_and_half(accuracy[number])
    other = number - 1 if ladder == "dapo" else 0
    difference = None, None
    if other in found and other != number:
      pairs = zip(accuracy[number], accuracy[other])
      difference = mean_and_half([a - b for a, b in pairs])
    tokens = [r.get("tokens_generated", 0) for rows in of_row for r in rows]
    results.append(
      {
        "number": number + 1, "name": LADDERS[ladder][number]["name"],
        "accuracy": mean, "accuracy_half": half,
        "accuracy_by_seed": accuracy[number],
        "difference": difference[0], "difference_half": difference[1],
        "tokens_generated": sum(tokens) / len(of_row),
        "response_len": at_end(of_row, LENGTH),
        "entropy": at_end(of_row, "entropy"),
        "truncated": at_end(of_row, "truncated_before_filter"),
        "paper": LADDERS[ladder][number]["paper"],
      }
    )  # fmt: skip
  return results


def as_markdown(ladder: str, what: str, results: list[dict]) -> str:
  """The table as text."""
  columns = {
    "held-out accuracy": ("accuracy", ".3f"),
    "difference": ("difference", "+.3f"),
    "tokens generated": ("tokens_generated", ",.0f"),
    "response length": ("response_len", ".1f"),
    "entropy": ("entropy", ".3f"),
    "truncated": ("truncated", ".1%"),
    "paper": ("paper", ""),
  }
  lines = [["", *columns]]
  for r in results:
    cells = [r["name"]]
    for key, form in columns.values():
      half = r.get(f"{key}_half")
      cells.append("" if r[key] is None else format(r[key], form))
      cells[-1] += "" if half is None else f" ± {half:.3f}"
    lines.append(cells)
  widths = [max(map(len, column)) for column in zip(*lines)]
  lines.insert(1, ["-" * w for w in widths])
  padded = [[x.ljust(w) for x, w in zip(line, widths)] for line in lines]
  before = "the row before" if ladder == "dapo" else "VAPO"
  return (
    f"Ladder {ladder} at {what}. Means over seeds, ± 95 % t-intervals; "
    f"differences to {before}, paired by seed; length, entropy and share "
    "truncated of the last iteration; paper: AIME 2024, in %.\n\n"
    + "".join(f"| {' | '.join(line)} |\n" for line in padded)
  )


def curve(of_row: list[list[dict]], key: str, by_tokens: bool) -> list[tuple]:
  """Points of a line and its band: x, mean, least and largest value.

  Seeds are joined by iteration, and x is a mean over them too: dynamic
  sampling takes each of them another number of tokens.
  """
  joined: dict[int, list[tuple]] = {}
  for rows in of_row:
    tokens = 0
    for r in rows:
      tokens += r.get("tokens_generated", 0)
      if r.get(key) is not None:
        x = tokens if by_tokens else r.get("optimizer_step", 0)
        joined.setdefault(r["iter"], []).append((x, r[key]))
  full = [zip(*p) for _, p in sorted(joined.items()) if len(p) == len(of_row)]
  mean = statistics.fmean
  return [(mean(x), mean(y), min(y), max(y)) for x, y in full]


def picture(path: Path, ladder: str, found: Runs) -> None:
  """Draws the metrics against optimizer steps, and against tokens."""
  try:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker
  except ImportError:
    print("no picture, it needs matplotlib: pip install matplotlib")
    return
  figure, axes = pyplot.subplots(2, len(PANELS), figsize=(13, 7))
  for by_tokens, line in enumerate(axes):
    for axis, (title, key) in zip(line, PANELS.items()):
      for number, of_row in found.items():
        points = curve(of_row, key, bool(by_tokens))
        if not points:
          continue
        x, mean, low, high = zip(*points)
        name, color = LADDERS[ladder][number]["name"], f"C{number}"
        axis.plot(x, mean, ".-", color=color, label=name)
        axis.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
      axis.set_title(title, fontsize=10)
      axis.set_xlabel("generated tokens" if by_tokens else "optimizer steps")
      axis.xaxis.set_major_locator(ticker.MaxNLocator(6))
      axis.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
      axis.grid(alpha=0.3)
  labels = axes[0][0].get_legend_handles_labels()
  figure.legend(*labels, loc="lower center", ncols=4, fontsize=8)
  figure.tight_layout(rect=(0, 0.07, 1, 1))
  figure.savefig(path, dpi=110)
  print(f"wrote {path}")


# -- Command -----------------------------------------------------------------


def parse(argv: list[str]) -> argparse.Namespace:
  """The command line; `rows` become numbers from 0."""
  parser = argparse.ArgumentParser(
    description=__doc__, allow_abbrev=False,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )  # fmt: skip
  # A mistake is told in one line, as by the other commands.
  parser.error = lambda text: parser.exit(command.refuse(ValueError(text)))
  add = parser.add_argument
  add("--ladder", choices=LADDERS, default="dapo")
  add("--variant", default="tiny", help="of the config")
  add("--seeds", type=int, choices=range(1, 11), default=3, metavar="1..10")
  add("--out", type=Path, help="default: ablations/LADDER")
  add("--rows", help="some only, as 1,3 (with vapo 1 is always among them)")
  add("--set", dest="fields", action="append", default=[],
      metavar="FIELD=VALUE", help="for all rows; may be repeated")  # fmt: skip
  args = parser.parse_args(argv)
  rows = LADDERS[args.ladder]
  args.out = args.out or Path("ablations") / args.ladder
  known = [str(n) for n in range(1, len(rows) + 1)]
  given = known if args.rows is None else args.rows.split(",")
  for number in given:
    if number not in known:
      parser.error(f"--rows={args.rows}: {number!r} is none of 1..{len(rows)}")
  first = {0} if args.ladder == "vapo" else set()
  args.rows = sorted({int(n) - 1 for n in given} | first)
  for field in args.fields:
    name, is_given, _ = field.partition("=")
    if not is_given:
      parser.error(f"--set {field}: give FIELD=VALUE")
    if name.partition(".")[0] not in common.base():
      parser.error(f"--set {field}: no field {name!r} in configs/common.py")
    if name in ("seed", "start_from", *rows[0]["fields"]):
      parser.error(f"--set {field}: the ladder sets it")
  return args


if __name__ == "__main__":
  arguments = parse(sys.argv[1:])
  # What is left is a command with a config, like the others.
  sys.argv[1:] = [
    f"--config={CONFIGS}/{arguments.ladder}.py:{arguments.variant}",
    *(f"--config.{name}={value}" for name, value in TASK.items()),
    *(f"--config.{field}" for field in arguments.fields),
  ]
  command.start(functools.partial(run, arguments), __doc__)
