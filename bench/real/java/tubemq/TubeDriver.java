import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.inlong.tubemq.corebase.Message;
import org.apache.inlong.tubemq.corebase.protobuf.generated.ClientBroker.TransferedMessage;
import org.apache.inlong.tubemq.corebase.utils.CheckSum;
import org.apache.inlong.tubemq.corebase.utils.DataConverterUtil;
import org.apache.inlong.tubemq.server.broker.msgstore.disk.GetMessageResult;
import org.apache.inlong.tubemq.server.common.utils.AppendResult;

/**
 * What TubeMQ's own classes make of a directory.
 *
 * <pre>
 * read ROOT [TOPIC...]                                   every store, every partition; opening may change files
 * open ROOT TOPIC STOREID                                open and close
 * append ROOT TOPIC STOREID N [--partitions=P] [--close=0]
 * bench-append ROOT N BODYSIZE PARTITIONS [--payload=FILE]
 * bench-read ROOT TOPIC STOREID PARTITIONS [--seconds=S]
 * </pre>
 */
public final class TubeDriver {
    private static final long FIRST_TIME = 1_700_000_000_000L;
    private static final int LOOPBACK = 0x7f000001;

    private TubeDriver() {
    }

    public static void main(String[] args) {
        Call.main(args, call -> {
            Path root = Path.of(call.operand(0));
            TubeStore.Setup setup = new TubeStore.Setup(call.settings);
            switch (call.command) {
                case "read" -> read(call, setup, root);
                case "open" -> open(call, setup, root);
                case "append" -> append(call, setup, root);
                case "bench-append" -> TubeBench.append(call, setup, root);
                case "bench-read" -> TubeBench.read(call, setup, root);
                default -> throw new IllegalArgumentException("no command " + call.command);
            }
        });
    }

    private static void read(Call call, TubeStore.Setup setup, Path root) throws IOException {
        List<String> topics = call.operandsFrom(1);
        for (String name : storesIn(root)) {
            if (topics.isEmpty() || topics.contains(topicOf(name))) {
                readStore(call, setup, root, name);
            }
        }
    }

    private static List<String> storesIn(Path root) throws IOException {
        try (Stream<Path> paths = Files.list(root)) {
            return paths.filter(Files::isDirectory).map(path -> path.getFileName().toString())
                    .filter(name -> name.matches(".+-(0|[1-9]\\d{0,8})"))
                    .sorted(Comparator.comparing(TubeDriver::topicOf).thenComparing(TubeDriver::storeIdOf))
                    .collect(Collectors.toCollection(ArrayList::new));
        }
    }

    private static String topicOf(String name) {
        return name.substring(0, name.lastIndexOf('-'));
    }

    private static int storeIdOf(String name) {
        return Integer.parseInt(name.substring(name.lastIndexOf('-') + 1));
    }

    private static void readStore(Call call, TubeStore.Setup setup, Path root, String name) throws IOException {
        TubeStore store;
        try {
            store = setup.open(root, topicOf(name), storeIdOf(name), false);
        } catch (IOException | RuntimeException refused) {
            call.row(
                    "kind", "store", "store", name, "topic", topicOf(name),
                    "storeId", storeIdOf(name), "opened", false, "error", refused.toString());
            return;
        }
        try (store) {
            Map<Integer, List<TubeStore.Entry>> entries = store.entries();
            call.row(ranges(store, name));
            for (Map.Entry<Integer, List<TubeStore.Entry>> partition : entries.entrySet()) {
                readPartition(call, store, name, partition.getKey(), partition.getValue());
            }
        }
    }

    private static Map<String, Object> ranges(TubeStore store, String name) {
        long min = store.store.getIndexMinOffset();
        long max = store.store.getIndexMaxOffset();
        return Json.object(
                "kind", "store", "store", name, "topic", topicOf(name), "storeId", storeIdOf(name),
                "opened", true, "indexMin", min, "indexMax", max,
                "dataMin", store.store.getDataMinOffset(), "dataMax", store.store.getDataMaxOffset(),
                "entries", (max - min) / TubeStore.ENTRY_BYTES);
    }

    /** Reads a partition as a consumer does, from its first offset until the store says that it is at the end. */
    private static void readPartition(Call call, TubeStore store, String name, int partition,
            List<TubeStore.Entry> entries) {
        Iterator<TubeStore.Entry> left = entries.iterator();
        long at = store.store.getIndexMinOffset();
        int count = 0;
        String end = null;
        while (end == null) {
            try {
                GetMessageResult result = store.read(partition, at);
                if (result.transferedMessageList != null) {
                    for (TransferedMessage message : result.transferedMessageList) {
                        call.row(explain(call, store, name, left, message));
                        count++;
                    }
                }
                at = result.reqOffset + result.lastReadOffset;
                if (!result.isSuccess) {
                    end = Integer.toString(result.retCode);
                } else if (result.lastReadOffset == 0) {
                    end = "stuck";
                }
            } catch (IOException | RuntimeException failed) {
                end = failed.toString();
            }
        }
        left.forEachRemaining(entry -> call.row(about("unreturned", name, entry)));
        call.row(
                "kind", "partition", "store", name, "partitionId", partition, "count", count,
                "endOffset", at, "end", end);
    }

    /**
     * The read path answers with id, checksum, flag and payload only. Its messages come in index order, so the entry of
     * each is the next one whose record has that id and checksum; entries passed over were not returned.
     */
    private static Map<String, Object> explain(Call call, TubeStore store, String name, Iterator<TubeStore.Entry> left,
            TransferedMessage message) throws IOException {
        while (left.hasNext()) {
            TubeStore.Entry entry = left.next();
            ByteBuffer header = store.header(entry);
            if (header != null && header.getLong(40) == message.getMessageId()
                    && header.getInt(8) == message.getCheckSum()) {
                return describe(about("message", name, entry), header, message);
            }
            call.row(about("unreturned", name, entry));
        }
        return Json.object("kind", "unexplained", "store", name, "msgId", message.getMessageId());
    }

    private static Map<String, Object> about(String kind, String name, TubeStore.Entry entry) {
        return Json.object(
                "kind", kind, "store", name, "indexOffset", entry.indexOffset(),
                "dataOffset", entry.dataOffset(), "size", entry.size(),
                "partitionId", entry.partition(), "keyCode", entry.keyCode(),
                "timeRecv", entry.time());
    }

    private static Map<String, Object> describe(Map<String, Object> row, ByteBuffer header, TransferedMessage message) {
        byte[] payload = message.getPayLoadData().toByteArray();
        row.put("queueLogicOffset", header.getLong(16));
        row.put("receivedTime", header.getLong(24));
        row.put("reportAddr", header.getInt(32));
        row.put("msgId", message.getMessageId());
        row.put("flag", message.getFlag());
        row.put("checksum", message.getCheckSum());
        row.put("crcOk", CheckSum.crc32(payload) == message.getCheckSum());
        Call.payload(row, "payload", payload);
        if ((message.getFlag() & 1) == 1) {
            row.put("client", decoded(message));
        }
        return row;
    }

    /** What a consumer's client makes of a payload with attributes; null where it drops the message. */
    private static Map<String, Object> decoded(TransferedMessage message) {
        List<Message> messages;
        try {
            messages = DataConverterUtil.convertMessage("topic", List.of(message));
        } catch (RuntimeException garbage) {
            return Json.object("error", garbage.toString());
        }
        if (messages.isEmpty()) {
            return null;
        }
        Message first = messages.get(0);
        Map<String, Object> row = Json.object(
                "attribute", first.getAttribute(), "msgType", first.getMsgType(),
                "msgTime", first.getMsgTime());
        Call.payload(row, "data", first.getData());
        return row;
    }

    private static void open(Call call, TubeStore.Setup setup, Path root) throws IOException {
        String topic = call.operand(1);
        int storeId = call.number(2);
        try (TubeStore store = setup.open(root, topic, storeId, true)) {
            call.row(ranges(store, topic + "-" + storeId));
        }
        call.row("kind", "closed");
    }

    /** Appends messages that depend on nothing but their place in the store and the time of the last one before. */
    private static void append(Call call, TubeStore.Setup setup, Path root) throws IOException {
        String topic = call.operand(1);
        int storeId = call.number(2);
        int partitions = call.option("partitions", 10);
        try (TubeStore store = setup.open(root, topic, storeId, true)) {
            long first = store.store.getIndexMaxOffset() / TubeStore.ENTRY_BYTES;
            long time = Math.max(FIRST_TIME, lastTime(store) + 1);
            for (long k = first; k < first + call.number(3); k++) {
                int partition = storeId * 10_000 + (int) (k % partitions);
                call.row(appendOne(store, topic + "-" + storeId, partition, k, time++));
            }
            if (call.option("close", 1) == 0) {
                call.crash();
            }
            call.row(ranges(store, topic + "-" + storeId));
        }
        call.row("kind", "closed");
    }

    private static long lastTime(TubeStore store) throws IOException {
        return store.entries().values().stream().mapToLong(entries -> entries.get(entries.size() - 1).time()).max()
                .orElse(0);
    }

    private static Map<String, Object> appendOne(TubeStore store, String name, int partition, long k, long time)
            throws IOException {
        byte[] payload = ("interop message " + k).getBytes(StandardCharsets.UTF_8);
        int keyCode = k % 3 == 0 ? -1 : ("item" + k % 3).hashCode();
        AppendResult result = new AppendResult();
        store.nextId(k + 1);
        store.append(result, partition, payload, keyCode, LOOPBACK, time);
        Map<String, Object> row = Json.object(
                "kind", "append", "store", name, "indexOffset", result.getAppendIndexOffset(),
                "dataOffset", result.getAppendDataOffset(),
                "size", TubeStore.HEADER_BYTES + payload.length, "partitionId", partition,
                "keyCode", keyCode, "timeRecv", time, "reportAddr", LOOPBACK,
                "msgId", result.getMsgId(), "flag", 0, "checksum", CheckSum.crc32(payload));
        Call.payload(row, "payload", payload);
        return row;
    }
}
