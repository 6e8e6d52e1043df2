"""Checkpoints as files: fetched and added as backbones, hashed, read by their headers, merged, and described."""
