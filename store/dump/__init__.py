"""One file of a store as rows, without regard to the other files."""
