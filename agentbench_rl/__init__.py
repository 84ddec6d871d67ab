"""agentbench_rl: is this agentic-RL method really better than that one, at equal cost, on the same tasks?"""

__version__ = "0.1.0"
