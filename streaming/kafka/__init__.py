"""Output to Kafka: arrivals as small events (``arrivals``), and the messages (``mirror``).

======================  ===========================================================================
module                  contains
======================  ===========================================================================
``client_options``      Kafka's option names to kafka-python's; unknown options are refused
``topic_rules``         which topics are mirrored, and their names in Kafka
``record_kernel``       the kernel that encodes messages as Kafka records
``record_batches``      the messages of a stretch of the log as record batches, by partition
``cluster``             the administrative client: topics, partitions, limits
``routes``              the Kafka topic and partition of each queue
``producer``            a transactional producer of complete record batches
``position``            the position of a mirror, in a compacted topic of that Kafka
``mirror``              the sink: messages and position in one transaction
``arrivals``            the listener that notifies Kafka of queues with new messages
``client_errors``       kafka-python's errors as ``StoreError``
======================  ===========================================================================

Nothing outside this package imports ``kafka``.
"""
