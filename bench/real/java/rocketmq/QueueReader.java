import java.nio.ByteBuffer;
import java.util.Map;
import java.util.TreeSet;
import org.apache.rocketmq.store.GetMessageResult;

/** Reads queues to their end through getMessage, page by page, whatever limits the store puts on a page. */
final class QueueReader {
    /** What a consumer asks for at once by default. */
    private static final int PAGE = 32;

    private final Call call;
    private final RocketStore store;
    private final String topic;
    private final int queueId;

    private QueueReader(Call call, RocketStore store, String topic, int queueId) {
        this.call = call;
        this.store = store;
        this.topic = topic;
        this.queueId = queueId;
    }

    static void readAll(Call call, RocketStore store) throws Exception {
        Map<String, ? extends Map<Integer, ?>> queues = store.store.getConsumeQueueTable();
        for (String topic : new TreeSet<>(queues.keySet())) {
            for (int queueId : new TreeSet<>(queues.get(topic).keySet())) {
                if (store.onDisk(topic, queueId)) {
                    call.row(ranges(store, topic, queueId));
                    new QueueReader(call, store, topic, queueId).read();
                }
            }
        }
    }

    static Map<String, Object> ranges(RocketStore store, String topic, int queueId) throws Exception {
        return Json.object(
                "kind", "queue", "topic", topic, "queueId", queueId,
                "minOffset", store.store.getMinOffsetInQueue(topic, queueId),
                "maxOffset", store.store.getMaxOffsetInQueue(topic, queueId));
    }

    private void read() throws Exception {
        long at = Math.max(0, store.store.getMinOffsetInQueue(topic, queueId));
        long end = store.store.getMaxOffsetInQueue(topic, queueId);
        while (at < end) {
            long next = page(at, PAGE);
            if (next == at) {
                call.row("kind", "stuck", "topic", topic, "queueId", queueId, "offset", at);
                return;
            }
            at = next;
        }
    }

    /** Emits one answer and returns where the next begins. */
    private long page(long at, int max) {
        GetMessageResult result = store.store.getMessage("interop", topic, queueId, at, max, null);
        try {
            long next = result.getNextBeginOffset();
            int count = result.getMessageCount();
            if (count > 0 && max > 1 && next - at != count) {
                return page(at, 1); // some were passed over; one at a time shows which
            }
            long index = next - count; // a record of several messages counts as so many
            if (index > at) {
                call.row(
                        "kind", "gap", "topic", topic, "queueId", queueId, "from", at, "to", index,
                        "status", result.getStatus());
            }
            for (ByteBuffer buffer : result.getMessageBufferList()) {
                call.row(Records.describe(Json.object("kind", "message", "index", index++), buffer));
            }
            return Math.max(next, at);
        } finally {
            result.release();
        }
    }
}
