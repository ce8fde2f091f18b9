"""Decoding with real models: the same verifiers, drawn from instead of summed over.

The only part of the package that imports torch. One round of the engine: K drafted paths, one target pass over the tree
of their prefixes, a `DraftTree`, the verifier's law, one draw, both caches brought to the committed tokens.
"""
