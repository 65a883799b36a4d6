"""Who may ask: the file of keys, the command that makes them, and what is checked before a request's body is read."""
