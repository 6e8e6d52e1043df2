"""`dare serve`: a policy behind the HTTP shapes that others already speak."""
