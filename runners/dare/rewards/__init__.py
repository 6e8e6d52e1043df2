"""Rewards: rules that judge one answer, and the number of declared parts that a run trains on."""
