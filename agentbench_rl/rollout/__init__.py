"""Rollouts: the deterministic episode scheduler and one module per topology."""
