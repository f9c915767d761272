import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.ToLongFunction;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Measures reads by RocketMQ's own store (5.x), on one thread: the twin of bench/reads.py.
 *
 * Arguments: STORE KIND TOPIC FILE. STORE is written to (abort, checkpoint, lock): a throw-away copy.
 * FILE holds one request a line: a queue offset (KIND "get"), a time in ms ("time"), a key ("key").
 * Queue 0 is read. Prints lines of "figure NAME NANOSECONDS-A-CALL ANSWERS", where ANSWERS is how
 * many messages one round found, or the sum of the queue offsets.
 */
public final class StoreReads {
    private static final long WARM_UP_NANOS = 5_000_000_000L;
    private static final int ROUNDS = 3;
    private static final String GROUP = "bench";

    private StoreReads() {
    }

    public static void main(String[] args) {
        try {
            List<String> requests = Files.readAllLines(Path.of(args[3]), StandardCharsets.UTF_8);
            DefaultMessageStore store = open(args[0]);
            measure(store, args[1], args[2], requests);
        } catch (Throwable e) { // of whatever kind: the store's threads would keep the JVM
            e.printStackTrace();
            System.err.flush();
            Runtime.getRuntime().halt(1);
        }
        System.out.flush();
        Runtime.getRuntime().halt(0); // the copy is thrown away: no shutdown is waited for
    }

    private static DefaultMessageStore open(String storeRoot) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(storeRoot);
        config.setStorePathCommitLog(storeRoot + "/commitlog");
        config.setHaListenPort(0); // any free one
        config.setTimerWheelEnable(false);
        config.setCleanFileForciblyEnable(false); // a full disk here is no reason to delete
        // As the Python side has it: nothing counts as "on disk", whatever memory there is.
        config.setMaxTransferCountOnMessageInDisk(config.getMaxTransferCountOnMessageInMemory());
        config.setMaxTransferBytesOnMessageInDisk(config.getMaxTransferBytesOnMessageInMemory());
        BrokerConfig broker = new BrokerConfig();
        DefaultMessageStore store = new DefaultMessageStore(
            config, new BrokerStatsManager(broker), null, broker, new ConcurrentHashMap<>());
        if (!store.load()) {
            throw new IllegalStateException("the store does not load " + storeRoot);
        }
        store.start();
        return store;
    }

    private static void measure(
        DefaultMessageStore store, String kind, String topic, List<String> requests) {
        switch (kind) {
            case "get" -> {
                run("plain", requests, r -> get(store, topic, Long.parseLong(r), false));
                run("decoded", requests, r -> get(store, topic, Long.parseLong(r), true));
            }
            case "time" -> run("plain", requests,
                r -> store.getOffsetInQueueByTime(topic, 0, Long.parseLong(r)));
            case "key" -> {
                run("plain", requests, r -> query(store, topic, r, false));
                run("decoded", requests, r -> query(store, topic, r, true));
            }
            default -> throw new IllegalArgumentException(kind);
        }
    }

    /** Calls once a request, for some seconds to warm up, then in the rounds of which the best counts. */
    private static void run(String name, List<String> requests, ToLongFunction<String> call) {
        long warmUntil = System.nanoTime() + WARM_UP_NANOS;
        while (System.nanoTime() < warmUntil) {
            round(requests, call);
        }
        long best = Long.MAX_VALUE;
        long answers = 0;
        for (int i = 0; i < ROUNDS; i++) {
            long began = System.nanoTime();
            answers = round(requests, call);
            best = Math.min(best, System.nanoTime() - began);
        }
        System.out.println("figure " + name + " " + (double) best / requests.size() + " " + answers);
    }

    private static long round(List<String> requests, ToLongFunction<String> call) {
        long answers = 0;
        for (String request : requests) {
            answers += call.applyAsLong(request);
        }
        return answers;
    }

    private static long get(DefaultMessageStore store, String topic, long offset, boolean decodes) {
        GetMessageResult result = store.getMessage(GROUP, topic, 0, offset, 32, null);
        long found = decodes ? decode(result.getMessageBufferList()) : result.getMessageCount();
        result.release();
        return found;
    }

    private static long query(DefaultMessageStore store, String topic, String key, boolean decodes) {
        QueryMessageResult result = store.queryMessage(topic, key, 64, 0, Long.MAX_VALUE);
        List<ByteBuffer> buffers = result.getMessageBufferList();
        long found = decodes ? decode(buffers) : buffers.size();
        result.release();
        return found;
    }

    private static long decode(List<ByteBuffer> buffers) {
        long found = 0;
        for (ByteBuffer buffer : buffers) {
            found += MessageDecoder.decodes(buffer).size();
        }
        return found;
    }
}
