import static java.lang.invoke.MethodType.methodType;

import java.io.IOException;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.lang.reflect.Constructor;
import java.lang.reflect.Proxy;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Stream;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageArrivingListener;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.BrokerRole;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** The published DefaultMessageStore without a broker around it. Only this file knows how the versions differ. */
final class RocketStore implements AutoCloseable {
    /** A setting of ours, not of MessageStoreConfig. */
    private static final String BATCH_TOPICS = "batchTopics";
    private static final long DISPATCH_MILLIS = 600_000; // the watchdog is earlier
    private static final Class<?> INNER_MESSAGE = Reflect.classOf(
            "org.apache.rocketmq.common.message.MessageExtBrokerInner", // 5.x
            "org.apache.rocketmq.store.MessageExtBrokerInner");
    // Constants, so that a put through a handle costs no more than a plain call.
    private static final MethodHandle NEW_MESSAGE;
    private static final MethodHandle SET_PROPERTIES;
    private static final MethodHandle SET_TAGS_CODE;
    private static final MethodHandle TAGS_CODE;
    private static final MethodHandle PUT;

    static {
        try {
            MethodHandles.Lookup lookup = MethodHandles.lookup();
            NEW_MESSAGE = lookup.findConstructor(INNER_MESSAGE, methodType(void.class))
                    .asType(methodType(MessageExt.class));
            SET_PROPERTIES = lookup
                    .findVirtual(INNER_MESSAGE, "setPropertiesString", methodType(void.class, String.class))
                    .asType(methodType(void.class, MessageExt.class, String.class));
            SET_TAGS_CODE = lookup.findVirtual(INNER_MESSAGE, "setTagsCode", methodType(void.class, long.class))
                    .asType(methodType(void.class, MessageExt.class, long.class));
            TAGS_CODE = lookup.findStatic(INNER_MESSAGE, "tagsString2tagsCode", methodType(long.class, String.class));
            MethodType putType = methodType(PutMessageResult.class, INNER_MESSAGE);
            PUT = lookup.findVirtual(DefaultMessageStore.class, "putMessage", putType)
                    .asType(methodType(PutMessageResult.class, DefaultMessageStore.class, MessageExt.class));
        } catch (ReflectiveOperationException changed) {
            throw new ExceptionInInitializerError(changed);
        }
    }

    final DefaultMessageStore store;
    private final Path root;

    RocketStore(Path root, Map<String, String> settings) throws Exception {
        this(root, settings, false, null);
    }

    RocketStore(Path root, Map<String, String> settings, boolean replicates) throws Exception {
        this(root, settings, replicates, null);
    }

    /** Opens a store that replicates, on the loopback, or one that keeps to itself; a listener may be null. */
    RocketStore(Path root, Map<String, String> settings, boolean replicates, MessageArrivingListener listener)
            throws Exception {
        this.root = root;
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(root.toString());
        config.setStorePathCommitLog(root.resolve("commitlog").toString());
        config.setFileReservedTime(24 * 365 * 100); // what is looked at must not be deleted for its age
        for (Map.Entry<String, String> setting : settings.entrySet()) {
            if (!setting.getKey().equals(BATCH_TOPICS)) {
                Reflect.setProperty(config, setting.getKey(), setting.getValue());
            }
        }
        Files.createDirectories(root);
        store = construct(config, settings.getOrDefault(BATCH_TOPICS, ""), listener);
        if (replicates) {
            RocketHa.listenOnLoopback(store, config.getHaListenPort());
        }
        keepToItself(replicates);
    }

    private static DefaultMessageStore construct(
            MessageStoreConfig config, String batchTopics, MessageArrivingListener listener)
            throws ReflectiveOperationException {
        BrokerConfig broker = new BrokerConfig();
        if (config.getBrokerRole() == BrokerRole.SLAVE) {
            broker.setBrokerId(1); // id 0 skips to the next file where a record is not whole yet
        }
        BrokerStatsManager statistics = new BrokerStatsManager("interop", false);
        Constructor<?> constructor = DefaultMessageStore.class.getConstructors()[0];
        Object[] arguments = {config, statistics, listener, broker};
        if (constructor.getParameterCount() == 5) { // 5.x: and the topics' settings
            arguments = new Object[] {config, statistics, listener, broker, ofBatches(batchTopics)};
        }
        return (DefaultMessageStore) constructor.newInstance(arguments);
    }

    /** Topics, separated by commas, whose queues are of inner batches. */
    private static Map<String, TopicConfig> ofBatches(String names) throws ReflectiveOperationException {
        Map<String, TopicConfig> topics = new ConcurrentHashMap<>();
        for (String name : names.isEmpty() ? new String[0] : names.split(",")) {
            TopicConfig topic = new TopicConfig(name);
            TopicConfig.class.getMethod("setAttributes", Map.class).invoke(topic, Map.of("queue.type", "BatchCQ"));
            topics.put(name, topic);
        }
        return topics;
    }

    /** No replication port on any outer interface, and no service that writes into a store that is only looked at. */
    private void keepToItself(boolean replicates) {
        Class<?> type = Reflect.field(DefaultMessageStore.class, "haService").getType();
        if (!replicates && type.isInterface()) { // 5.x: one that does nothing
            Class<?>[] types = {type};
            Reflect.set(store, "haService", Proxy.newProxyInstance(type.getClassLoader(), types,
                    (proxy, method, arguments) -> nothing(method.getReturnType())));
        } else if (!replicates) { // 4.9: start() needs the real one, so it gets a free port of the loopback
            Object acceptor = Reflect.get(Reflect.get(store, "haService"), "acceptSocketService");
            Reflect.set(acceptor, "socketAddressListen", new InetSocketAddress(InetAddress.getLoopbackAddress(), 0));
        }
        if (Reflect.hasField(DefaultMessageStore.class, "scheduleMessageService")) { // 4.9: delivers delayed messages
            Reflect.<AtomicBoolean>get(Reflect.get(store, "scheduleMessageService"), "started").set(true);
        }
    }

    private static Object nothing(Class<?> type) {
        if (type == boolean.class) {
            return false;
        } else if (type == int.class) {
            return 0;
        } else if (type == long.class) {
            return 0L;
        }
        return type == AtomicLong.class ? new AtomicLong() : null;
    }

    /** Starts the background services and waits until everything in the log is in the queues and the index. */
    boolean startAndDispatch() throws Exception {
        store.start();
        return dispatched();
    }

    /** Waits until nothing is left to dispatch; seen three times, as a position moves before its entry is written. */
    boolean dispatched() {
        long end = System.currentTimeMillis() + DISPATCH_MILLIS;
        int quiet = 0;
        while (quiet < 3 && System.currentTimeMillis() < end) {
            quiet = store.dispatchBehindBytes() <= 0 ? quiet + 1 : 0;
            Call.pause(1);
        }
        return quiet == 3;
    }

    /** Queues that have files: 4.9 also keeps some in memory that were never written. */
    boolean onDisk(String topic, int queueId) {
        Path queue = Path.of(topic).resolve(Integer.toString(queueId));
        return Files.isDirectory(root.resolve("consumequeue").resolve(queue))
                || Files.isDirectory(root.resolve("batchconsumequeue").resolve(queue));
    }

    static MessageExt newMessage() throws Throwable {
        return (MessageExt) NEW_MESSAGE.invokeExact();
    }

    static void setProperties(MessageExt message, String properties) throws Throwable {
        SET_PROPERTIES.invokeExact(message, properties);
    }

    static void setTag(MessageExt message, String tag) throws Throwable {
        SET_TAGS_CODE.invokeExact(message, (long) TAGS_CODE.invokeExact(tag));
    }

    PutMessageResult put(MessageExt message) throws Throwable {
        return (PutMessageResult) PUT.invokeExact(store, message);
    }

    /**
     * Waits, some seconds at most, until the log's next file has its length: it is made ahead, in the background. A
     * store that is killed in between has a file of no bytes, which 4.9.8 does not load.
     */
    void nextFileMade() throws Exception {
        long deadline = System.nanoTime() + 5_000_000_000L;
        while (!hasNextFile() && System.nanoTime() < deadline) {
            Thread.sleep(5);
        }
    }

    private boolean hasNextFile() throws IOException {
        long end = store.getMaxPhyOffset();
        try (Stream<Path> files = Files.list(root.resolve("commitlog"))) {
            return files.anyMatch(file ->
                    Long.parseLong(file.getFileName().toString()) >= end && file.toFile().length() > 0);
        }
    }

    @Override
    public void close() {
        store.shutdown();
    }
}
