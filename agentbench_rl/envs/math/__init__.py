"""Mathematical problems, answered at once or step by step with a calculator."""
