"""GRPO (arXiv:2402.03300): outcome supervision, KL coefficient as there."""

from configs import common


def get_config(arg=None):
  """The config of GRPO at a variant, see `common.VARIANTS`."""
  return common.build(
    "grpo", arg, loss_agg="seq_mean_token_mean", clip_high=0.2, kl_coef=0.04,
    filter_groups=False, overlong_punish=False,
  )  # fmt: skip
