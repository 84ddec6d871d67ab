"""Workflows of teams: which roles act in which order, and what they may say."""
