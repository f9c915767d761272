"""Real servers as plain processes: RocketMQ, Kafka, Spark, and how to start and stop them."""
