"""Verifiers inside other libraries: generation in transformers, and the tensor contracts of serving engines."""
