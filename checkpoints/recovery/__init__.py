"""What happens first after a crash: a root is brought back to what its log says."""
