"""Questions answered by searching a corpus of passages, in worlds that are generated or from files."""
