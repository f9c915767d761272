import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends messages of every kind that clients send: plain, keyed, tagged, ordered, compressed, batches,
 * delayed, in transactions that commit and that roll back.
 *
 * Arguments: name server, topics (A,B), count, seed, milliseconds over which to spread the sending,
 * the number of the first message, optionally a file: sending continues until it exists. Prints a line
 * per message sent: kind, topic, queue, queue offset, unique key, keys, tags, body in hex.
 */
public final class Produce {
    private static final String[] TAGS = {"TagA", "TagB", "标签", null};
    private final Random random;
    private final DefaultMQProducer producer = new DefaultMQProducer("IntegrationProducer");
    private final TransactionMQProducer transactions = new TransactionMQProducer("IntegrationTransactions");

    private Produce(String nameServer, long seed) throws Exception {
        random = new Random(seed);
        transactions.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object state) {
                return (LocalTransactionState) state;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        for (DefaultMQProducer p : List.of(producer, transactions)) {
            p.setNamesrvAddr(nameServer);
            p.setInstanceName(p.getProducerGroup());
            p.setSendMsgTimeout(Program.SEND_MILLIS);
            p.setRetryTimesWhenSendFailed(0);
            p.start();
        }
    }

    public static void main(String[] args) {
        Program.run(() -> {
            Produce produce = new Produce(args[0], Long.parseLong(args[3]));
            String[] topics = args[1].split(",");
            int count = Integer.parseInt(args[2]);
            int first = Integer.parseInt(args[5]);
            long start = System.nanoTime();
            Path end = args.length > 6 ? Path.of(args[6]) : null;
            for (int i = 0; i < count || end != null && !Files.exists(end); i++) {
                produce.send(topics[i % topics.length], first + i);
                long due = start + Long.parseLong(args[4]) * 1_000_000L * i / count;
                Thread.sleep(Math.max(0, (due - System.nanoTime()) / 1_000_000L));
            }
            produce.producer.shutdown();
            produce.transactions.shutdown();
        });
    }

    private void send(String topic, int number) throws Exception {
        String tags = TAGS[random.nextInt(TAGS.length)];
        Message message = new Message(topic, tags, null, bytes("message " + number + " é世"));
        String key = "k" + random.nextInt(50);
        int kind = random.nextInt(100);
        // Each hundred begins with one message of each kind, so that no kind is ever missing.
        switch (number % 100 < KINDS.length ? KINDS[number % 100] : kind < 30 ? "keyed" : kind < 55 ? "plain"
            : KINDS[kind % KINDS.length]) {
            case "plain" -> print("plain", message, producer.send(message));
            case "keyed" -> {
                message.setKeys(List.of(key, "order-" + number));
                message.putUserProperty("客户", "值" + number % 7);
                print("keyed", message, producer.send(message));
            }
            case "ordered" -> print("ordered", message, producer.send(
                message, (queues, m, order) -> queues.get((int) order % queues.size()), number % 7));
            case "compressed" -> {
                message.setBody(bytes("compressible ".repeat(1000)));
                print("compressed", message, producer.send(message));
            }
            case "batch" -> sendBatch(topic, key, number);
            case "delayed" -> {
                message.setKeys(key);
                message.setDelayTimeLevel(1);
                print("delayed", message, producer.send(message));
            }
            case "timed" -> {
                print(delayMillis(message, 1500) ? "timed" : "plain", message, producer.send(message));
            }
            case "commit" -> {
                message.setKeys(key);
                print("commit", message, transactions.sendMessageInTransaction(
                    message, LocalTransactionState.COMMIT_MESSAGE));
            }
            default -> print("rollback", message, transactions.sendMessageInTransaction(
                message, LocalTransactionState.ROLLBACK_MESSAGE));
        }
    }

    private static final String[] KINDS = {
        "plain", "keyed", "ordered", "compressed", "batch", "delayed", "timed", "commit", "rollback"};

    private void sendBatch(String topic, String key, int number) throws Exception {
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < 2 + random.nextInt(5); i++) {
            batch.add(new Message(topic, "TagB", key + " batch-" + number + "-" + i, bytes("part " + i)));
        }
        SendResult result = producer.send(batch);
        String[] uniqueKeys = result.getMsgId().split(",");
        for (int i = 0; i < batch.size(); i++) {
            print("batch", batch.get(i), result, result.getQueueOffset() + i, uniqueKeys[i]);
        }
    }

    /** Request a delay in milliseconds; clients before 5.0 do not support it. */
    private static boolean delayMillis(Message message, long millis) throws Exception {
        try {
            Message.class.getMethod("setDelayTimeMs", long.class).invoke(message, millis);
            return true;
        } catch (NoSuchMethodException e) {
            return false;
        }
    }

    private static void print(String kind, Message message, SendResult result) {
        print(kind, message, result, result.getQueueOffset(), result.getMsgId());
    }

    private static void print(String kind, Message m, SendResult result, long queueOffset, String uniqueKey) {
        Program.line(kind, m.getTopic(), result.getMessageQueue().getQueueId(), queueOffset, uniqueKey,
            m.getKeys(), m.getTags(), Program.hex(m.getBody()));
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
