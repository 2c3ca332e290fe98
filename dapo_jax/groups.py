"""Dynamic sampling: which groups stay, and the buffer they wait in.

Host side, numpy. Groups are decided on the number of correct responses and on
nothing else: shaped rewards differ inside an all-correct group whose lengths
differ, and it is dropped all the same (DAPO eq. (11), arXiv:2503.14476).
"""

from typing import NamedTuple

from jaxtyping import Bool, Float, Int
import numpy as np

from dapo_jax.types import PromptBatch, Rollout


class Groups(NamedTuple):
  """Scored groups, one row a prompt. n groups, G responses each.

  `old_logprobs` are those of the policy that sampled the group, once
  `is_scored`: a group carried to a later iteration keeps them.
  """

  prompt_tokens: Int[np.ndarray, "n Lp"]
  prompt_len: Int[np.ndarray, "n"]
  uid: Int[np.ndarray, "n"]
  index: Int[np.ndarray, "n"]
  tokens: Int[np.ndarray, "n G T"]
  rollout_logprobs: Float[np.ndarray, "n G T"]
  old_logprobs: Float[np.ndarray, "n G T"]
  response_len: Int[np.ndarray, "n G"]
  is_truncated: Bool[np.ndarray, "n G"]
  is_correct: Bool[np.ndarray, "n G"]
  is_scored: Bool[np.ndarray, "n"]

  @property
  def num(self) -> int:
    """n."""
    return len(self.prompt_len)


def of_rollout(
  batch: PromptBatch, rollout: Rollout, is_correct: Bool[np.ndarray, "B"]
) -> Groups:
  """Groups of one generation round."""
  prompts = len(batch.prompt_len)
  grouped = lambda x: np.asarray(x).reshape(prompts, -1, *x.shape[1:])
  logprobs = grouped(rollout.rollout_logprobs)
  return Groups(
    *batch,
    tokens=grouped(rollout.tokens),
    rollout_logprobs=logprobs,
    old_logprobs=np.zeros_like(logprobs),
    response_len=grouped(rollout.response_len),
    is_truncated=grouped(rollout.is_truncated),
    is_correct=grouped(is_correct),
    is_scored=np.zeros(prompts, bool),
  )


def is_mixed(is_correct: Bool[np.ndarray, "n G"]) -> Bool[np.ndarray, "n"]:
  """0 < number correct < G: the groups with a signal."""
  right = is_correct.sum(1)
  return (right > 0) & (right < is_correct.shape[1])


def take(groups: Groups, which) -> Groups:
  """The groups at a slice, mask or array of places."""
  return Groups(*(x[which] for x in groups))


def join(first: Groups | None, second: Groups) -> Groups:
  """Both, in order; None stands for no groups."""
  if first is None:
    return second
  return Groups(*(np.concatenate(pair) for pair in zip(first, second)))


def split_surplus(
  buffer: Groups, prompts_per_batch: int, surplus: str
) -> tuple[Groups, Groups | None, int]:
  """Cuts a batch from the front of the buffer, oldest groups first.

  Args:
    buffer: at least one group.
    prompts_per_batch: P.
    surplus: 'drop' (the published recipe) or 'carry' to the next iteration.

  Returns:
    The batch (at most P groups), the carried groups or None, the number of
    dropped groups.
  """
  batch = take(buffer, slice(0, prompts_per_batch))
  rest = buffer.num - batch.num
  if not rest:
    return batch, None, 0
  if surplus == "carry":
    return batch, take(buffer, slice(prompts_per_batch, None)), 0
  return batch, None, rest
