"""To Kafka: arrivals as small events (``arrivals``), and the messages themselves (``mirror``).

======================  ===========================================================================
module                  is
======================  ===========================================================================
``client_options``      Kafka's option names in, kafka-python's out; what is not known is refused
``topic_rules``         which topics are mirrored, and what they are called in Kafka
``record_kernel``       messages as Kafka's records, as a kernel
``record_batches``      the messages of a stretch of the log as record batches, by partition
``cluster``             what is asked of a cluster: topics, partitions, limits
``routes``              which partition of which Kafka topic a queue goes to
``producer``            one transactional producer that takes record batches whole
``position``            how far a mirror is, in a compacted topic of that Kafka
``mirror``              the sink: messages and position in one transaction
``arrivals``            the listener that tells Kafka which queues have new messages
``client_errors``       kafka-python's errors as ours
======================  ===========================================================================

Nothing outside this package imports ``kafka``.
"""
