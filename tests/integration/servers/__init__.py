"""Real servers as plain processes: RocketMQ, Kafka, and what starts and ends them."""
