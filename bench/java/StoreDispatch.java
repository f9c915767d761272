import java.io.File;
import java.lang.reflect.Constructor;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageArrivingListener;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Measures how long RocketMQ's own store (4.x and 5.x) takes to dispatch a commit log from nothing.
 *
 * Argument: STORE, with commitlog/ alone; it is written to. Prints lines of "figure NAME SECONDS":
 * "load" until the store is loaded (the log's last files are read and their CRCs checked), "dispatch"
 * from its start until dispatchBehindBytes() is 0, "shutdown" until what was built is flushed.
 */
public final class StoreDispatch {
    private static final long LOOK_MILLIS = 2;

    private StoreDispatch() {
    }

    public static void main(String[] args) {
        try {
            measure(args[0]);
        } catch (Throwable e) { // of whatever kind: the store's threads would keep the JVM
            e.printStackTrace();
            System.err.flush();
            Runtime.getRuntime().halt(1);
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static void measure(String storeRoot) throws Exception {
        DefaultMessageStore store = open(storeRoot);
        long began = System.nanoTime();
        if (!store.load()) {
            throw new IllegalStateException("the store does not load " + storeRoot);
        }
        tell("load", began);
        began = System.nanoTime();
        Watch watch = new Watch(store);
        watch.start();
        store.start(); // returns within a second after the last byte is dispatched
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(LOOK_MILLIS);
        }
        watch.interrupt();
        watch.join();
        System.out.println("figure dispatch " + (watch.lastBehind - began) / 1e9);
        began = System.nanoTime();
        store.shutdown();
        tell("shutdown", began);
    }

    /** Notes when the store was last seen behind: its start() sleeps in steps of a second. */
    private static final class Watch extends Thread {
        private final DefaultMessageStore store;
        private volatile long lastBehind = System.nanoTime();

        Watch(DefaultMessageStore store) {
            this.store = store;
        }

        @Override
        public void run() {
            try {
                while (true) {
                    if (store.dispatchBehindBytes() > 0) {
                        lastBehind = System.nanoTime();
                    }
                    Thread.sleep(LOOK_MILLIS);
                }
            } catch (InterruptedException e) {
                return;
            }
        }
    }

    private static void tell(String name, long began) {
        System.out.println("figure " + name + " " + (System.nanoTime() - began) / 1e9);
    }

    private static DefaultMessageStore open(String storeRoot) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(storeRoot);
        config.setStorePathCommitLog(storeRoot + File.separator + "commitlog");
        config.setHaListenPort(10_000 + (int) (System.nanoTime() % 20_000));
        config.setCleanFileForciblyEnable(false); // a full disk here is no reason to delete
        config.setFileReservedTime(1_000_000);
        BrokerConfig broker = new BrokerConfig();
        BrokerStatsManager stats = null;
        for (Constructor<?> made : BrokerStatsManager.class.getConstructors()) {
            Class<?>[] types = made.getParameterTypes();
            if (types.length == 1 && types[0] == String.class) {
                stats = (BrokerStatsManager) made.newInstance("bench");
            } else if (types.length == 2 && types[0] == String.class) {
                stats = (BrokerStatsManager) made.newInstance("bench", false);
            }
        }
        MessageArrivingListener listener = (topic, queue, offset, tags, time, bits, properties) -> { };
        for (Constructor<?> made : DefaultMessageStore.class.getConstructors()) {
            if (made.getParameterCount() == 4) {
                return (DefaultMessageStore) made.newInstance(config, stats, listener, broker);
            }
            if (made.getParameterCount() == 5) {
                return (DefaultMessageStore) made.newInstance(
                    config, stats, listener, broker, new ConcurrentHashMap<String, Object>());
            }
        }
        throw new IllegalStateException("this store cannot be made");
    }
}
