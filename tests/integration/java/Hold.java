import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends messages that a broker holds back: delay levels, timers, timers that are cancelled, and transactions
 * whose end, or whose answer to a check, the tag names. Then answers checks until a file exists.
 *
 * Arguments: name server, topic, messages of each kind, milliseconds of the later timers, `topic` if a
 * cancellation names topic and unique key, `key` if only the key, `none` for a broker without timers, the
 * file that ends the program, the file to make once all is sent. Prints a line per message: kind, unique key.
 */
public final class Hold {
    private static final String[] ENDS = {"commit", "rollback", "late-commit", "late-rollback", "never"};
    private final DefaultMQProducer producer = new DefaultMQProducer("HoldProducer");
    private final TransactionMQProducer transactions = new TransactionMQProducer("HoldTransactions");
    private final String topic;

    private Hold(String nameServer, String topic) throws Exception {
        this.topic = topic;
        transactions.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object end) {
                return state((String) end);
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return state(message.getTags().replace("late-", ""));
            }
        });
        for (DefaultMQProducer p : List.of(producer, transactions)) {
            p.setNamesrvAddr(nameServer);
            p.setInstanceName(p.getProducerGroup());
            p.setSendMsgTimeout(Program.SEND_MILLIS);
            p.setHeartbeatBrokerInterval(1000);
            p.setPollNameServerInterval(1000);
            p.start();
        }
    }

    public static void main(String[] args) {
        Program.run(() -> {
            Hold hold = new Hold(args[0], args[1]);
            long due = System.currentTimeMillis() + Long.parseLong(args[3]);
            for (int i = 0; i < Integer.parseInt(args[2]); i++) {
                for (int level = 1; level <= 3; level++) {
                    Message message = hold.message("level-" + level, i);
                    message.setDelayTimeLevel(level);
                    hold.print("level-" + level, hold.producer.send(message));
                }
                if (!args[4].equals("none")) {
                    hold.sendTimed(i, due, args[4].equals("topic"));
                }
                for (String end : ENDS) {
                    hold.print(end, hold.transactions.sendMessageInTransaction(hold.message(end, i), end));
                }
            }
            Program.OUT.flush();
            Files.createFile(Path.of(args[6]));
            while (!Files.exists(Path.of(args[5]))) {
                Thread.sleep(100);
            }
        });
    }

    private void sendTimed(int number, long due, boolean withTopic) throws Exception {
        print("timed-soon", producer.send(timed("timed-soon", number, System.currentTimeMillis() + 2000)));
        print("timed-hour", producer.send(timed("timed-hour", number, System.currentTimeMillis() + 3_600_000)));
        print("timed-later", producer.send(timed("timed-later", number, due)));
        SendResult sent = producer.send(timed("timed-cancelled", number, due));
        print("timed-cancelled", sent);
        Message cancel = timed("cancel", number, due);
        String key = withTopic ? topic + "+" + sent.getMsgId() : sent.getMsgId();
        MessageAccessor.putProperty(cancel, "TIMER_DEL_UNIQKEY", key);
        producer.send(cancel);
    }

    private Message timed(String kind, int number, long due) {
        Message message = message(kind, number);
        MessageAccessor.putProperty(message, "TIMER_DELIVER_MS", Long.toString(due));
        return message;
    }

    private Message message(String kind, int number) {
        return new Message(topic, kind, "k" + number, (kind + " " + number).getBytes(StandardCharsets.UTF_8));
    }

    private static LocalTransactionState state(String end) {
        return end.equals("commit") ? LocalTransactionState.COMMIT_MESSAGE
            : end.equals("rollback") ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.UNKNOW;
    }

    private void print(String kind, SendResult result) {
        Program.line(kind, result.getMsgId());
    }
}
