"""DAPO (arXiv:2503.14476)."""

from configs import common


def get_config(arg=None):
  """The config of DAPO at a variant, see `common.VARIANTS`."""
  return common.build(
    "dapo", arg, words={"paper": _paper, "recipe": _recipe},
    clip_high=0.28, filter_groups=True, overlong_punish=True,
  )  # fmt: skip


def _paper(c):
  """The paper to the letter, where it and the published recipe differ."""
  c.update(warmup_iters=20, loss_agg="group_token_mean", dual_clip=0.0,
           std_ddof=0)  # fmt: skip


def _recipe(c):
  """The published recipe, where it and the paper differ."""
  c.update(warmup_iters=10, loss_agg="token_mean", dual_clip=10.0, std_ddof=1)
