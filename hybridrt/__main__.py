"""`python -m hybridrt` is `hybridrt`."""

from hybridrt.cli import main

if __name__ == "__main__":
    main()
