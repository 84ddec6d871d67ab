"""Environments of users: a factory that is named in the settings."""
