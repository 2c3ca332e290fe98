"""Dr. GRPO (arXiv:2503.20783): GRPO without the std and the length in it."""

from configs import common


def get_config(arg=None):
  """The config of Dr. GRPO at a variant, see `common.VARIANTS`."""
  return common.build(
    "dr_grpo", arg, advantage="group_centered",
    loss_agg="seq_mean_token_sum_const", clip_high=0.2,
    filter_groups=False, overlong_punish=False,
  )  # fmt: skip
