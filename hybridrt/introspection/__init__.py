"""Looking inside: what layers hold, and what they do with it."""
