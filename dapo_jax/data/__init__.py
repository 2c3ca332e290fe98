"""Prompts: data sets, the tokenizer and the resumable stream."""
