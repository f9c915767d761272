"""One file of a store as rows."""
