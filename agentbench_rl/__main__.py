"""`python -m agentbench_rl` is `agentrl`."""

from agentbench_rl.cli import main

main()
