"""Small stores, each with what the tests of several modules ask of it."""
