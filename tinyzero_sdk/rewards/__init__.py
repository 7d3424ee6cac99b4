"""Score wrappers: parsing and making them by name, and the built-in ones that shape a reward."""
