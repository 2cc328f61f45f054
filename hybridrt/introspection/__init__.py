"""Looking inside: what each layer holds of a session, what it held earlier, and what if."""
