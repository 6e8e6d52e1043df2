"""The execution stack: post-trains and evaluates diffusion language models, one job directory at a time."""

__version__ = "0.1.0"
