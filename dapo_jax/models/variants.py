"""Sizes of models: one row each, the published dimensions."""

from dapo_jax.models.transformer import ModelConfig

_QWEN2_5 = dict(rope_theta=1e6, norm_eps=1e-6, qkv_bias=True)
_QWEN3 = dict(
  rope_theta=1e6, norm_eps=1e-6, qk_norm=True, head_width=128,
  vocab_size=151936, max_positions=40960,
)  # fmt: skip

MODELS: dict[str, ModelConfig] = {
  # A random decoder for tests and the short demo.
  "tiny": ModelConfig(
    vocab_size=32, num_layers=3, width=96, num_heads=4, num_kv_heads=2,
    head_width=24, mlp_width=256, rope_theta=1e4, norm_eps=1e-5,
    tied_head=True, max_positions=1024,
  ),
  # HuggingFaceTB/SmolLM2-135M-Instruct
  "smollm2": ModelConfig(
    vocab_size=49152, num_layers=30, width=576, num_heads=9, num_kv_heads=3,
    head_width=64, mlp_width=1536, rope_theta=1e5, norm_eps=1e-5,
    tied_head=True, max_positions=8192,
  ),
  # Qwen/Qwen2.5-0.5B
  "qwen0_5b": ModelConfig(
    vocab_size=151936, num_layers=24, width=896, num_heads=14, num_kv_heads=2,
    head_width=64, mlp_width=4864, tied_head=True, max_positions=32768,
    **_QWEN2_5,
  ),
  # Qwen/Qwen2.5-1.5B
  "qwen1_5b": ModelConfig(
    vocab_size=151936, num_layers=28, width=1536, num_heads=12,
    num_kv_heads=2, head_width=128, mlp_width=8960, tied_head=True,
    max_positions=131072, **_QWEN2_5,
  ),
  # Qwen/Qwen2.5-7B
  "qwen7b": ModelConfig(
    vocab_size=152064, num_layers=28, width=3584, num_heads=28,
    num_kv_heads=4, head_width=128, mlp_width=18944, tied_head=False,
    max_positions=131072, **_QWEN2_5,
  ),
  # Qwen/Qwen2.5-32B; its norm has eps 1e-5, unlike the smaller ones'.
  "qwen32b": ModelConfig(
    vocab_size=152064, num_layers=64, width=5120, num_heads=40,
    num_kv_heads=8, head_width=128, mlp_width=27648, tied_head=False,
    max_positions=131072, **{**_QWEN2_5, "norm_eps": 1e-5},
  ),
  # Qwen/Qwen3-0.6B
  "qwen3_0_6b": ModelConfig(
    num_layers=28, width=1024, num_heads=16, num_kv_heads=8, mlp_width=3072,
    tied_head=True, **_QWEN3,
  ),
  # Qwen/Qwen3-8B
  "qwen3_8b": ModelConfig(
    num_layers=36, width=4096, num_heads=32, num_kv_heads=8, mlp_width=12288,
    tied_head=False, **_QWEN3,
  ),
}  # fmt: skip
