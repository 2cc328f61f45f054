"""Looking inside: what layers hold and do, what they held earlier, what if, and where runs part."""
