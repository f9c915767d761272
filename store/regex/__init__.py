"""Regular expressions over bodies: their size, and matches of bounded work; not the search."""
