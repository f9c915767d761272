"""What sets up, fetches and checks, beside the program."""
