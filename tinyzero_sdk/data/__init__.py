"""Data files: reading and writing rows and columns, and building datasets. No scores here."""
