"""Texts and sizes of the policies that the tests of this directory build."""

from __future__ import annotations

from agentbench_rl.config import TinyModel

TEXTS = [f"you see a cabinet {i}, a fridge 1 and a drawer {i % 7}.\n> go to fridge {i % 5}" for i in range(60)]
SMALL = TinyModel(hidden_size=32, intermediate_size=64, layers=2, heads=4, max_positions=256)
VOCABULARY = 290
