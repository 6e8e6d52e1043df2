"""OpenCompass as released, in a process of its own: it writes the prompts, and it scores the answers.

`job` and `configs` are all that the parent imports; opencompass itself is imported in the child alone, which is
`python -m dare.opencompass JOB.json`.
"""
