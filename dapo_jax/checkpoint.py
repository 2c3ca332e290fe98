"""Checkpoints: all that the rest of a run depends on.

Training state, place in the loop and in the data, and the groups that wait in
the dynamic-sampling buffer. Random keys are functions of the seed and of
these, so none is saved. Orbax writes in the background; a checkpoint is there
whole or not at all.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import orbax.checkpoint as ocp

from dapo_jax.groups import Groups
from dapo_jax.metrics import write_json
from dapo_jax.types import TrainState


class Saved(NamedTuple):
  """What a checkpoint holds.

  Attributes:
    state: params, optimizer state, step of the policy.
    critic: the same of the critic, or None.
    loop: place in the loop, JSON values.
    buffer: groups kept so far in this iteration, or carried; None = none.
    tallies: arrays that the metrics of the running iteration are made of.
  """

  state: TrainState
  critic: TrainState | None
  loop: dict[str, Any]
  buffer: Groups | None
  tallies: dict[str, Any] | None


class Checkpoints:
  """The checkpoints of one run, in `workdir/checkpoints`."""

  def __init__(self, workdir: Path, keep: int):
    self._directory = Path(workdir).resolve() / "checkpoints"
    self._manager = ocp.CheckpointManager(
      self._directory,
      options=ocp.CheckpointManagerOptions(
        max_to_keep=keep, enable_async_checkpointing=True
      ),
    )

  @property
  def is_empty(self) -> bool:
    """No finished checkpoint is there."""
    return self._manager.latest_step() is None

  def save(self, saved: Saved) -> None:
    """Starts writing; returns once the device arrays are copied."""
    # Orbax refuses arrays of size 0: what is empty is left out.
    items = {
      "state": ocp.args.StandardSave(saved.state),
      "loop": ocp.args.JsonSave(saved.loop),
    }
    if saved.critic is not None:
      items["critic"] = ocp.args.StandardSave(saved.critic)
    if saved.buffer is not None:
      items["buffer"] = ocp.args.StandardSave(saved.buffer._asdict())
    if saved.tallies is not None:
      items["tallies"] = ocp.args.StandardSave(saved.tallies)
    latest = self._manager.latest_step()
    number = 0 if latest is None else latest + 1
    self._manager.save(number, args=ocp.args.Composite(**items), force=True)

  def place(self) -> dict[str, Any]:
    """What `Saved.loop` of the newest checkpoint holds, its config included."""
    number = self._manager.latest_step()
    args = ocp.args.Composite(loop=ocp.args.JsonRestore())
    return self._manager.restore(number, args=args)["loop"]

  def restore(
    self, like: TrainState, critic_like: TrainState | None = None
  ) -> Saved:
    """Reads the newest checkpoint.

    Args:
      like: shapes, dtypes and shardings of the state.
      critic_like: those of the critic's; None leaves a critic where it is.

    Raises:
      ValueError: it is damaged, or it is not of this config.
    """
    number = self._manager.latest_step()
    folder = self._directory / str(number)
    items = {
      "state": ocp.args.StandardRestore(like),
      "loop": ocp.args.JsonRestore(),
    }
    if critic_like is not None:
      items["critic"] = ocp.args.StandardRestore(critic_like)
    for name in ("buffer", "tallies"):
      if (folder / name).exists():
        items[name] = ocp.args.StandardRestore()
    try:
      out = self._manager.restore(number, args=ocp.args.Composite(**items))
      buffer = Groups(**out["buffer"]) if "buffer" in items else None
      return Saved(
        out["state"], out.get("critic"), out["loop"], buffer, out.get("tallies")
      )
    except Exception as error:  # whatever Orbax or TensorStore make of it
      reason = " ".join(str(error).split())[:200]
      older = len(self._manager.all_steps()) > 1
      remedy = (
        "Delete that folder to continue from the checkpoint before it"
        if older
        else "It is the only one: delete the workdir to start over"
      )
      raise ValueError(
        f"checkpoint {folder} cannot be read ({type(error).__name__}: "
        f"{reason}); nothing was changed. {remedy}, or give another --workdir"
      ) from error

  def wait(self) -> None:
    """Blocks until what was saved is on disk."""
    self._manager.wait_until_finished()

  def close(self) -> None:
    """Waits, and stops the background threads."""
    self._manager.close()


def read(workdir: Path, c, like: TrainState) -> Saved:
  """The newest checkpoint of a finished or running run, to look at only.

  Args:
    workdir: of the run.
    c: a config with the run's model and weights.
    like: shapes, dtypes and shardings of the state.

  Raises:
    ValueError: there is none, it is damaged, or the model is another one.
  """
  if not (workdir / "checkpoints").is_dir():
    raise ValueError(f"{workdir} is no workdir of a run: it has no checkpoints")
  checkpoints = Checkpoints(workdir, keep=1)
  try:
    if checkpoints.is_empty:
      raise ValueError(f"{workdir} has no finished checkpoint")
    theirs = checkpoints.place()["config"]
    for field in ("model", "weights"):  # weights: tokenizer and template too
      if theirs[field] != c[field]:
        raise ValueError(
          f"the run {workdir} has {field}={theirs[field]!r}, the config "
          f"{field}={c[field]!r}; give the run's own --config"
        )
    return checkpoints.restore(like)
  finally:
    checkpoints.close()


# The folder of a run's start, and the file that says that it is complete.
START, _STARTED = "start", "start.json"


def write_start(workdir: Path, c, policy, critic) -> None:
  """Keeps what a run starts from in `workdir/start`, whole or not at all.

  It is the reference of a KL, the outcome of value pretraining, and what
  `start_from` starts any number of later runs from.

  Args:
    workdir: of the run.
    c: its config.
    policy: params before the first update.
    critic: params of the pretrained critic, or None.
  """
  folder = Path(workdir).resolve() / START
  with ocp.StandardCheckpointer() as writer:
    writer.save(folder / "policy", policy, force=True)
    if critic is not None:
      writer.save(folder / "critic", critic, force=True)
  facts = {"model": c.model, "weights": c.weights, "critic": critic is not None}
  write_json(folder / _STARTED, facts)


def read_start(folder: Path, c, policy_like, critic_like=None):
  """Params of policy and critic from a folder that `write_start` filled.

  Args:
    folder: `WORKDIR/start`.
    c: a config with the same model and weights.
    policy_like: shapes, dtypes and shardings of the policy's params.
    critic_like: those of the critic's; None: it is not wanted.

  Returns:
    The policy's, and the critic's or None.

  Raises:
    ValueError: it is no such folder, incomplete, damaged, or of another model.
  """
  folder = Path(folder).expanduser().resolve()
  if not (folder / _STARTED).is_file():
    raise ValueError(
      f"{folder} is no start of a run (no {_STARTED} in it); give the folder "
      f"'{START}' of a run with a critic or a KL"
    )
  try:
    facts = json.loads((folder / _STARTED).read_text())
    for field in ("model", "weights"):
      if facts[field] != c[field]:
        raise ValueError(
          f"{folder} has {field}={facts[field]!r}, the config {c[field]!r}"
        )
    with ocp.StandardCheckpointer() as reader:
      policy = reader.restore(folder / "policy", policy_like)
      if critic_like is None or not facts["critic"]:
        return policy, None
      return policy, reader.restore(folder / "critic", critic_like)
  except Exception as error:  # whatever Orbax or TensorStore make of it
    reason = " ".join(str(error).split())[:200]
    raise ValueError(f"{folder} cannot be used: {reason}") from error
