import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;

/**
 * Sends the messages of `reput export --format jsonl` again, each to the topic that it was exported from.
 *
 * Arguments: name server, directory of the export. Body, tags, keys and user properties are kept; id, offset and times
 * are new. The messages of one queue keep their order. A run that fails prints how many it has sent; running it
 * again sends those again.
 */
public final class Resend {
    private Resend() {
    }

    public static void main(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("ReputResend");
        producer.setNamesrvAddr(args[0]);
        producer.start();
        int sent = 0;
        int status = 0;
        try (Stream<Path> paths = Files.walk(Path.of(args[1]))) {
            List<Path> files = paths.filter(path -> path.toString().endsWith(".jsonl")).sorted().toList();
            for (Path file : files) {
                try (var lines = Files.newBufferedReader(file)) {
                    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                        JSONObject fields = JSON.parseObject(line);
                        producer.send(message(fields),
                            (queues, m, id) -> queues.get((int) id % queues.size()), fields.getInteger("queue_id"));
                        sent++;
                    }
                }
            }
        } catch (Exception e) {
            e.printStackTrace();
            status = 1;
        }
        System.out.println("sent " + sent + " messages");
        System.exit(status); // the client's threads would keep the process alive
    }

    private static Message message(JSONObject fields) {
        String body = fields.getString("body");
        boolean isText = "utf-8".equals(fields.getString("body_encoding"));
        Message message = new Message(fields.getString("topic"), fields.getString("tags"), fields.getString("keys"),
            isText ? body.getBytes(StandardCharsets.UTF_8) : bytes(body));
        message.setFlag(fields.getInteger("flag"));
        for (Map.Entry<String, Object> property : fields.getJSONObject("properties").entrySet()) {
            if (!MessageConst.STRING_HASH_SET.contains(property.getKey()) && !property.getValue().equals("")) {
                message.putUserProperty(property.getKey(), (String) property.getValue());
            }
        }
        return message;
    }

    private static byte[] bytes(String hex) {
        byte[] data = new byte[hex.length() / 2];
        for (int i = 0; i < data.length; i++) {
            data[i] = (byte) Integer.parseInt(hex, 2 * i, 2 * i + 2, 16);
        }
        return data;
    }
}
