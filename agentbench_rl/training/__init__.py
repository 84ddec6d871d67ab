"""Packing, log-probs, the algorithm-blind trainer, behaviour cloning and trainer checkpoints."""
