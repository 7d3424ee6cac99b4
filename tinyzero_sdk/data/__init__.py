"""Data files: reading and writing rows and columns, and building data sets. No scores here."""
