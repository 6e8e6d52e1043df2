"""Stands in for the runner in the container: nothing but the entry."""
