"""The commands of `python -m dare`, each in a file of its own, and what they say things with."""
