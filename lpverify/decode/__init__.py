"""Decoding with real models: the verifiers' stop distributions are drawn from instead of summed over.

One decoding round of `lpverify.decode.engine`: K drafted paths, one target pass over the tree of their prefixes, a
`DraftTree`, the verifier's stop distribution, one draw, and both caches cut back to the committed tokens.
"""
