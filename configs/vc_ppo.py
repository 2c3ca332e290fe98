"""VC-PPO (arXiv:2503.01491): a pretrained critic and decoupled GAE.

Reading: batches, clip and learning rates are not given there; they are those
of the same authors' PPO baseline. The about 100 steps of value pretraining are
taken as iterations, at most, and it ends before where nothing is gained.
"""

from configs import common


def get_config(arg=None):
  """The config of VC-PPO at a variant, see `common.VARIANTS`."""
  c = common.build(
    "vc_ppo", arg, advantage="gae", lam_actor=0.95, lam_critic=1.0,
    value_pretrain_iters=100, value_settle_iters=10,
    loss_agg="token_mean", clip_high=0.2,
    filter_groups=False, overlong_punish=False,
  )  # fmt: skip
  return common.without_groups(c)
