"""Code repair: a work tree with a failing behaviour, short tool calls, hidden tests that grade."""
