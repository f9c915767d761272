"""The durable state of OUTPUT: state files, recovery, expiry, rebuild; not what queues hold."""
