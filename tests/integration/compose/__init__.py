"""The services of docker-compose.yml: an engine to run them on, local images, and calls to them."""
