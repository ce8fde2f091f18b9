"""Decoding with real models: the verifiers' stop distributions are drawn from instead of summed over."""
