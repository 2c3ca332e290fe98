"""VAPO (arXiv:2504.05118)."""

from configs import common


def get_config(arg=None):
  """The config of VAPO at a variant, see `common.VARIANTS`."""
  return common.build(
    "vapo", arg, advantage="gae", lam_alpha=0.05, lam_critic=1.0,
    value_pretrain_iters=50, loss_agg="token_mean", clip_high=0.28,
    ntp_coef=0.1, filter_groups=False, overlong_punish=False,
  )  # fmt: skip
