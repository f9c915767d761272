import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Asks a broker the questions of `mqadmin`, many in one process.
 *
 * Arguments: name server, broker name. Each line of the input is a question, fields between tabs:
 * key TOPIC KEY, uniq TOPIC KEY, offset TOPIC QUEUE OFFSET, id TOPIC ID, max TOPIC QUEUE, min TOPIC QUEUE,
 * time TOPIC QUEUE TIME. Prints a line for each message or number of an answer, and "end".
 */
public final class Ask {
    private final DefaultMQAdminExt admin = new DefaultMQAdminExt(Program.SEND_MILLIS);
    private final DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("IntegrationAsk");
    private final String broker;

    private Ask(String nameServer, String broker) throws Exception {
        this.broker = broker;
        admin.setNamesrvAddr(nameServer);
        admin.setInstanceName("ask-admin");
        admin.start();
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName("ask-consumer");
        consumer.start();
    }

    public static void main(String[] args) {
        Program.run(() -> {
            Ask ask = new Ask(args[0], args[1]);
            var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                ask.answer(line.split("\t"));
                Program.line("end");
            }
        });
    }

    private void answer(String[] question) throws Exception {
        String topic = question[1];
        switch (question[0]) {
            case "key" -> byKey(topic, question[2]);
            case "uniq" -> Program.message("message",
                consumer.getDefaultMQPullConsumerImpl().queryMessageByUniqKey(topic, question[2]));
            case "id" -> Program.message("message", admin.viewMessage(topic, question[2]));
            case "max" -> Program.line("number", admin.maxOffset(queue(question)));
            case "min" -> Program.line("number", admin.minOffset(queue(question)));
            case "time" -> Program.line(
                "number", admin.searchOffset(queue(question), Long.parseLong(question[3])));
            case "offset" -> byOffset(queue(question), Long.parseLong(question[3]));
            default -> throw new IllegalArgumentException(question[0]);
        }
    }

    private void byKey(String topic, String key) throws Exception {
        try {
            for (MessageExt m : admin.queryMessage(topic, key, 64, 0, Long.MAX_VALUE).getMessageList()) {
                Program.message("message", m);
            }
        } catch (MQClientException e) {
            // The client reports "no match" as an exception.
            if (!String.valueOf(e.getMessage()).contains("no message")) {
                throw e;
            }
        }
    }

    private void byOffset(MessageQueue queue, long offset) throws Exception {
        var result = consumer.pull(queue, "*", offset, 1);
        if (result.getMsgFoundList() != null) {
            for (MessageExt m : result.getMsgFoundList()) {
                Program.message("message", m);
            }
        }
    }

    private MessageQueue queue(String[] question) {
        return new MessageQueue(question[1], broker, Integer.parseInt(question[2]));
    }
}
