"""Games made by TextWorld (extra `textworld`)."""
