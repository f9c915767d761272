"""The services of docker-compose.yml: a container engine, local images, and calls to services."""
