"""DAPO (arXiv:2503.14476): the defaults of `common.base` are its switches."""

from configs import common


def get_config(arg=None):
  """The config of DAPO at a variant, see `common.VARIANTS`."""
  c = common.base()
  c.algorithm = "dapo"
  return common.apply_variant(c, arg)
