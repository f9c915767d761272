"""The comparison of a root with what its log says it must hold."""
