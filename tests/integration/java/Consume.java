import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Reads a topic from its first offset, as a new consumer group.
 *
 * Arguments: name server, topic, group, number of distinct messages to wait for, number of messages
 * to have redelivered through the retry topic (and to wait for), seconds to wait. Prints a line per
 * message.
 */
public final class Consume {
    private final Set<String> seen = ConcurrentHashMap.newKeySet();
    private final Set<String> refused = ConcurrentHashMap.newKeySet();

    private Consume() {
    }

    public static void main(String[] args) {
        Program.run(() -> new Consume().consume(args));
    }

    private void consume(String[] args) throws Exception {
        int count = Integer.parseInt(args[3]);
        int refusals = Integer.parseInt(args[4]);
        long deadline = System.nanoTime() + Long.parseLong(args[5]) * 1_000_000_000L;
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[2]);
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            context.setDelayLevelWhenNextConsume(1);
            return take(messages, refusals);
        });
        consumer.start();
        while ((seen.size() < count || !seen.containsAll(refused)) && System.nanoTime() < deadline) {
            Thread.sleep(50);
        }
        consumer.shutdown();
        if (seen.size() < count || !seen.containsAll(refused)) {
            throw new IllegalStateException("only " + seen.size() + " of " + count
                + " messages arrived; refused and not redelivered: "
                + refused.stream().filter(id -> !seen.contains(id)).toList());
        }
    }

    private ConsumeConcurrentlyStatus take(List<MessageExt> messages, int refusals) {
        MessageExt message = messages.get(0);
        // 5.x clients give all messages of a batch one unique key.
        String id = message.getMsgId() + " " + message.getKeys();
        if (message.getReconsumeTimes() == 0 && refused.size() < refusals && refused.add(id)) {
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        }
        Program.message("message", message);
        seen.add(id);
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    }
}
