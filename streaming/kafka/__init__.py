"""Output to Kafka: arrivals as small events, and the messages (a mirror); not the query.

======================  ===========================================================================
module                  contains
======================  ===========================================================================
``client_options``      options by Kafka's names, to kafka-python's; unknown ones are refused
``producer_options``    the same to librdkafka's
``topic_rules``         which topics are mirrored, and their names in Kafka
``records``             the messages of a stretch of the log as Kafka records
``cluster``             the administrative client: topics, partitions, limits
``routes``              the Kafka topic and partition of each queue
``oversized``           messages larger than Kafka accepts
``producer``            the transactional producer, librdkafka's
``position``            the position of a mirror, in a compacted topic of that Kafka
``mirror_sink``         the sink: messages and position in one transaction
``arrivals``            the listener that notifies Kafka of queues with new messages
``client_errors``       the errors of both clients as ``StoreError``
======================  ===========================================================================

Nothing outside this package imports ``kafka`` or ``confluent_kafka``.
"""
