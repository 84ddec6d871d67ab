"""Games of the package gem-llm (extra `gem`)."""
