import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.common.message.MessageExt;

/** Shared by the programs: how they end, and how they print. */
final class Program {
    static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    static final int SEND_MILLIS = 60_000;

    interface Body {
        void run() throws Exception;
    }

    private Program() {
    }

    /** Run the body and exit: client threads would keep the process alive after an exception. */
    static void run(Body body) {
        int status = 0;
        try {
            body.run();
        } catch (Throwable e) {
            e.printStackTrace();
            status = 1;
        }
        OUT.flush();
        System.exit(status);
    }

    /** Print one line of fields; null is an empty field. */
    static synchronized void line(Object... fields) {
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < fields.length; i++) {
            text.append(i == 0 ? "" : "\t").append(fields[i] == null ? "" : fields[i]);
        }
        OUT.println(text);
    }

    /** Print a message as a consumer sees it. */
    static void message(String what, MessageExt m) {
        line(what, m.getTopic(), m.getQueueId(), m.getQueueOffset(), m.getCommitLogOffset(),
            m.getStoreSize(), m.getStoreTimestamp(), m.getTags(), m.getKeys(), hex(m.getBody()));
    }

    static String hex(byte[] data) {
        StringBuilder text = new StringBuilder();
        for (byte b : data) {
            text.append(String.format("%02x", b));
        }
        return text.toString();
    }
}
