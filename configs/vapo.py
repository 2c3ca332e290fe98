"""VAPO (arXiv:2504.05118).

Reading: λ = 1 - 1 / (α|y|) looks α|y| tokens ahead, with the paper's α = 0.05
a thousand at 20,000 tokens, and none at all up to 20. Configs with responses
that short, shrunk ones too, take 0.5. The 50 steps of value pretraining are
taken as iterations, as the learning rates' warm-up is counted, and the critic's
warm-up begins again behind it.
"""

from configs import common


def get_config(arg=None):
  """The config of VAPO at a variant, see `common.VARIANTS`."""
  c = common.build(
    "vapo", arg, advantage="gae", lam_alpha=0.05, lam_critic=1.0,
    value_pretrain_iters=50, loss_agg="token_mean", clip_high=0.28,
    ntp_coef=0.1, filter_groups=False, overlong_punish=False,
  )  # fmt: skip
  if c.max_response_len < 100:
    c.lam_alpha = 0.5
  return c
