import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.apache.inlong.tubemq.corebase.protobuf.generated.ClientBroker.TransferedMessage;
import org.apache.inlong.tubemq.server.broker.msgstore.disk.GetMessageResult;
import org.apache.inlong.tubemq.server.common.utils.AppendResult;

/** Rates of the real store, warm: the first 200,000 messages are not counted. */
final class TubeBench {
    private static final int WARM_UP = 200_000;
    private static final int LOOPBACK = 0x7f000001;

    private TubeBench() {
    }

    /** Gets what a call has read. */
    private interface Seen {
        void page(int partition, List<TransferedMessage> found);
    }

    /** Appends to a new store; the warm-up has a store of its own, removed before the clock starts. */
    static void append(Call call, TubeStore.Setup setup, Path root) throws Exception {
        int messages = call.number(1);
        int bodySize = call.number(2);
        int partitions = call.number(3);
        byte[][] bodies = call.bodies(bodySize);
        Path warmRoot = root.resolve("warm-up");
        appendAll(setup, warmRoot, WARM_UP, bodies, partitions);
        Call.remove(warmRoot);
        Map<String, Object> row = Json.object(
                "kind", "bench", "bench", "tubemq-append", "bodySize", bodySize,
                "partitions", partitions);
        row.putAll(appendAll(setup, root, messages, bodies, partitions));
        call.row(row);
    }

    /** As a broker does it, with the checksum; until the last message is accepted, then until all are in the files. */
    private static Map<String, Object> appendAll(TubeStore.Setup setup, Path root, int messages, byte[][] bodies,
            int partitions) throws Exception {
        AppendResult result = new AppendResult();
        long refused = 0;
        try (TubeStore store = setup.open(root, "bench", 0, true)) {
            long start = System.nanoTime();
            for (int i = 0; i < messages; i++) {
                byte[] body = bodies[i % bodies.length];
                refused += store.append(result, i % partitions, body, -1, LOOPBACK, System.currentTimeMillis());
            }
            double accepted = Call.seconds(start);
            store.flush();
            double flushed = Call.seconds(start);
            return Json.object(
                    "messages", messages, "refused", refused, "seconds", accepted,
                    "rate", messages / accepted, "flushedSeconds", flushed, "peakKb", Call.peakKb(),
                    "flushedRate", messages / flushed);
        }
    }

    /** Reads everything for its digest; then partition after partition to its end, as long as there is time. */
    static void read(Call call, TubeStore.Setup setup, Path root) throws Exception {
        String topic = call.operand(1);
        int storeId = call.number(2);
        int partitions = call.number(3);
        int limit = call.option("seconds", 30);
        try (TubeStore store = setup.open(root, topic, storeId, false)) {
            Digest digest = new Digest();
            readAll(store, storeId, partitions, Long.MAX_VALUE, Integer.MAX_VALUE,
                    (partition, found) -> found.forEach(message ->
                            digest.add(topic + "-" + partition, message.getPayLoadData().toByteArray())));
            Seen nothing = (partition, found) -> { };
            readAll(store, storeId, partitions, WARM_UP, limit, nothing);
            Map<String, Object> row = Json.object("kind", "bench", "bench", "tubemq-read");
            row.putAll(readAll(store, storeId, partitions, Long.MAX_VALUE, limit, nothing));
            call.row(digest.into(row));
        }
    }

    private static Map<String, Object> readAll(TubeStore store, int storeId, int partitions, long wanted,
            int limitSeconds, Seen seen) throws Exception {
        long messages = 0;
        long bytes = 0;
        int done = 0;
        long start = System.nanoTime();
        for (; done < partitions && messages < wanted && Call.seconds(start) < limitSeconds; done++) {
            long at = store.store.getIndexMinOffset();
            while (messages < wanted && Call.seconds(start) < limitSeconds) {
                GetMessageResult result = store.read(storeId * 10_000 + done, at);
                if (!result.isSuccess || result.lastReadOffset == 0) {
                    break;
                }
                seen.page(done, result.transferedMessageList);
                messages += result.transferedMessageList.size();
                bytes += result.totalMsgSize;
                at = result.reqOffset + result.lastReadOffset;
            }
        }
        double seconds = Call.seconds(start);
        return Json.object(
                "messages", messages, "bytes", bytes, "partitions", done, "seconds", seconds,
                "rate", messages / seconds);
    }
}
