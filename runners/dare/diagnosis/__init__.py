"""The direction in which a method pushes, beside the one that raises the reward, on worlds small enough to be exact."""
