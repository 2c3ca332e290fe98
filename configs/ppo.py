"""PPO (arXiv:1707.06347), as VAPO's baseline has it (arXiv:2504.05118)."""

from configs import common


def get_config(arg=None):
  """The config of PPO at a variant, see `common.VARIANTS`."""
  c = common.build(
    "ppo", arg, advantage="gae", lam_actor=0.95, lam_critic=0.95,
    loss_agg="token_mean", clip_high=0.2,
    filter_groups=False, overlong_punish=False,
  )  # fmt: skip
  return common.without_groups(c)
