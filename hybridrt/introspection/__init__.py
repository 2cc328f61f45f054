"""Looking inside: what sessions and models hold, and where two of them part."""
