"""Numbers of the update that predictions need too. No torch in here."""

FLOAT8_LARGE = 2**22
"""Elements of a weight from which its products are in float8; the smallest that was measured is of an MLP at 0.5B."""
