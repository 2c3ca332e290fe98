"""Reinforcement learning of a language model with DAPO, in JAX."""
