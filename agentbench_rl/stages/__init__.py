"""The stages: pure functions from files to files, called by the CLI and the Snakefile alike."""
