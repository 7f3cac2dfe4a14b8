import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.UnknownHostException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.AppendMessageResult;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.StoreCheckpoint;

/**
 * What RocketMQ's own classes make of a directory; 4.9 and 5.3 alike.
 *
 * <pre>
 * dump ROOT                          load, start, dispatch; then every queue through getMessage
 * query ROOT TOPIC KEY... [--max=N]  queryMessage over all time
 * append ROOT TOPIC QUEUES N [--close=0]
 * visit ROOT TOPIC QUEUES N [--close=0] [KEYTOPIC KEY]...   dump, query and append in one go
 * load ROOT                          load only
 * ha ROOT                            a master or slave (brokerRole) that answers lines of its input
 * put-bench ROOT N BODYSIZE TOPICS QUEUES BATCH [--threads=N] [--payload=FILE] [--warm=N]
 * open-bench ROOT                    load and start, as a broker does; ends as if killed
 * scan-bench ROOT, read-bench ROOT TOPIC QUEUES, query-bench ROOT TOPIC KEYS N
 * delay-bench ROOT N RATE            from a put until getMessage, woken by the arrival listener, has it
 * </pre>
 */
public final class RocketDriver {
    private static final long FIRST_TIME = 1_700_000_000_000L;
    private static final InetSocketAddress BORN = host(10, 1, 2, 3, 45678);
    private static final InetSocketAddress STORED = host(192, 168, 0, 9, 10911);

    private RocketDriver() {
    }

    public static void main(String[] args) {
        Call.main(args, call -> {
            Path root = Path.of(call.operand(0)).toAbsolutePath();
            switch (call.command) {
                case "dump" -> withStore(call, root, true, store -> QueueReader.readAll(call, store));
                case "query" -> withStore(call, root, true, store -> {
                    for (String key : call.operandsFrom(2)) {
                        query(call, store, call.operand(1), key);
                    }
                });
                case "visit" -> withStore(call, root, true, store -> visit(call, store));
                case "append" -> withStore(call, root, true, store -> append(call, store));
                case "load" -> withStore(call, root, false, store -> { });
                case "ha" -> RocketHa.run(call, root);
                case "put-bench" -> RocketBench.put(call, root);
                case "open-bench" -> RocketReads.open(call, root);
                case "scan-bench" -> withStore(call, root, true, store -> RocketReads.scan(call, store));
                case "read-bench" -> withStore(call, root, true, store -> RocketReads.queues(call, store));
                case "delay-bench" -> RocketReads.delays(call, root);
                case "query-bench" -> withStore(call, root, true, store -> RocketReads.keys(call, store));
                default -> throw new IllegalArgumentException("no command " + call.command);
            }
        });
    }

    private interface Work {
        void with(RocketStore store) throws Throwable;
    }

    /** Opens, works, closes; then says whether the next start will take this for a crash. */
    private static void withStore(Call call, Path root, boolean start, Work work) throws Throwable {
        try (RocketStore store = new RocketStore(root, call.settings)) {
            if (recovers(call, store, start)) {
                work.with(store);
            }
        }
        call.row("kind", "closed", "abortFileLeft", Files.exists(root.resolve("abort")));
    }

    /** Loads, reports what was recovered, and starts if asked. A refused load is an answer, not a failure. */
    private static boolean recovers(Call call, RocketStore store, boolean start) throws Exception {
        long begin = System.nanoTime();
        boolean loaded = store.store.load();
        Map<String, Object> row = Json.object("kind", "load", "result", loaded, "seconds", Call.seconds(begin));
        call.row(loaded ? positions(row, store) : row);
        if (loaded && start) {
            boolean dispatched = store.startAndDispatch();
            call.row(positions(Json.object(
                    "kind", "store", "dispatched", dispatched, "seconds", Call.seconds(begin)), store));
        }
        return loaded;
    }

    private static Map<String, Object> positions(Map<String, Object> row, RocketStore store) {
        row.put("minPhyOffset", store.store.getMinPhyOffset());
        row.put("maxPhyOffset", store.store.getMaxPhyOffset());
        row.put("dispatchBehindBytes", store.store.dispatchBehindBytes());
        StoreCheckpoint checkpoint = store.store.getStoreCheckpoint();
        row.put("checkpoint", Json.object(
                "physicMsgTimestamp", checkpoint.getPhysicMsgTimestamp(),
                "logicsMsgTimestamp", checkpoint.getLogicsMsgTimestamp(),
                "indexMsgTimestamp", checkpoint.getIndexMsgTimestamp()));
        return row;
    }

    private static void query(Call call, RocketStore store, String topic, String key) {
        int max = call.option("max", 64);
        QueryMessageResult result = store.store.queryMessage(topic, key, max, 0, Long.MAX_VALUE);
        List<Object> offsets = new ArrayList<>();
        List<Object> messages = new ArrayList<>();
        for (ByteBuffer buffer : result.getMessageBufferList()) {
            Map<String, Object> message = Records.describe(Json.object(), buffer);
            offsets.add(message.get("physicalOffset"));
            messages.add(message);
        }
        result.release();
        call.row(
                "kind", "query", "topic", topic, "key", key,
                "physicalOffsets", offsets, "messages", messages);
    }

    /** All that a broker does to a store on one day: each call is a virtual machine, and that is what takes time. */
    private static void visit(Call call, RocketStore store) throws Throwable {
        QueueReader.readAll(call, store);
        List<String> keys = call.operandsFrom(4);
        for (int i = 0; i + 1 < keys.size(); i += 2) {
            query(call, store, keys.get(i), keys.get(i + 1));
        }
        append(call, store);
    }

    /** Puts messages that depend on nothing but how many the topic has, turn by turn into its queues. */
    private static void append(Call call, RocketStore store) throws Throwable {
        String topic = call.operand(1);
        int queues = call.number(2);
        long first = 0;
        for (int queueId = 0; queueId < queues; queueId++) {
            first += Math.max(0, store.store.getMaxOffsetInQueue(topic, queueId));
        }
        for (long k = first; k < first + call.number(3); k++) {
            call.row(appendOne(store, topic, (int) (k % queues), k));
        }
        if (call.option("close", 1) == 0) {
            store.nextFileMade();
            call.crash();
        }
        boolean dispatched = store.dispatched();
        call.row(positions(Json.object("kind", "appended", "dispatched", dispatched), store));
        for (int queueId = 0; queueId < queues; queueId++) {
            call.row(QueueReader.ranges(store, topic, queueId));
        }
    }

    private static Map<String, Object> appendOne(RocketStore store, String topic, int queueId, long k)
            throws Throwable {
        String tag = "tag" + k % 4;
        String properties = "KEYS\u0001interop-" + k + " interop-all\u0002TAGS\u0001" + tag;
        byte[] body = ("interop message " + k).getBytes(StandardCharsets.UTF_8);
        MessageExt message = newMessage(topic, queueId, body, properties);
        message.setFlag((int) k);
        message.setBornTimestamp(FIRST_TIME + k);
        RocketStore.setTag(message, tag);
        PutMessageResult result = store.put(message);
        Map<String, Object> row = Json.object(
                "kind", "append", "topic", topic, "queueId", queueId,
                "status", result.getPutMessageStatus());
        AppendMessageResult written = result.getAppendMessageResult();
        if (written != null) {
            row.putAll(Json.object(
                    "queueOffset", written.getLogicsOffset(),
                    "physicalOffset", written.getWroteOffset(), "storeSize", written.getWroteBytes(),
                    "storeTimestamp", written.getStoreTimestamp(), "msgId", written.getMsgId()));
        }
        row.putAll(Json.object(
                "flag", k, "bornTimestamp", FIRST_TIME + k,
                "keys", List.of("interop-" + k, "interop-all"), "tag", tag));
        Call.payload(row, "body", body);
        return row;
    }

    static MessageExt newMessage(String topic, int queueId, byte[] body, String properties) throws Throwable {
        MessageExt message = RocketStore.newMessage();
        address(message, topic, queueId);
        message.setBody(body);
        MessageAccessor.setProperties(message, MessageDecoder.string2messageProperties(properties));
        RocketStore.setProperties(message, properties);
        return message;
    }

    static void address(MessageExt message, String topic, int queueId) {
        message.setTopic(topic);
        message.setQueueId(queueId);
        message.setBornHost(BORN);
        message.setStoreHost(STORED);
    }

    private static InetSocketAddress host(int a, int b, int c, int d, int port) {
        try {
            byte[] address = {(byte) a, (byte) b, (byte) c, (byte) d};
            return new InetSocketAddress(InetAddress.getByAddress(address), port);
        } catch (UnknownHostException never) {
            throw new AssertionError(never);
        }
    }
}
