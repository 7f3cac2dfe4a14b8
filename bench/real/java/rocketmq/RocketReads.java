import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Consumer;
import java.util.function.LongSupplier;
import java.util.function.ToLongFunction;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.MessageArrivingListener;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;

/**
 * Rates of the real store's reads over a store that is there, warm: the first rounds are not counted. One of them gives
 * the digest of what was read.
 */
final class RocketReads {
    private static final int MAGIC_BLANK = 0xCBD43194;
    private static final int PAGE = 1000;
    private static final int CHECKED_KEYS = 1000;

    private RocketReads() {
    }

    /** Decodes every record of the log with its body; the decoder checks no checksum. */
    static void scan(Call call, RocketStore store) {
        call.row(twice("rocketmq-scan", seen -> scanOnce(store, seen)));
    }

    /** Reads and decodes queue after queue of TOPIC through getMessage. */
    static void queues(Call call, RocketStore store) {
        String topic = call.operand(1);
        int queues = call.number(2);
        call.row(twice("rocketmq-read", seen -> {
            long count = 0;
            for (int queueId = 0; queueId < queues; queueId++) {
                count += readQueue(store, topic, queueId, seen);
            }
            return count;
        }));
    }

    /** Looks up random keys "kN", N below the operand KEYS, each found once; gives the percentiles, too. */
    static void keys(Call call, RocketStore store) {
        String topic = call.operand(1);
        int keys = call.number(2);
        int asked = call.number(3);
        Random random = new Random(1);
        long[] nanos = new long[asked];
        Digest digest = new Digest();
        for (int number = 0; number < Math.min(keys, CHECKED_KEYS); number++) {
            addFound(store, topic, "k" + number, digest);
        }
        Map<String, Object> row = timed("rocketmq-query", () -> {
            for (int i = 0; i < asked; i++) {
                String key = "k" + random.nextInt(keys);
                long start = System.nanoTime();
                QueryMessageResult result = store.store.queryMessage(topic, key, 32, 0, Long.MAX_VALUE);
                nanos[i] = System.nanoTime() - start;
                if (result.getMessageBufferList().isEmpty()) {
                    throw new IllegalStateException("not found: " + key);
                }
                result.release();
            }
            return asked;
        });
        Arrays.sort(nanos);
        row.put("p50", nanos[asked / 2] / 1e3);
        row.put("p99", nanos[(int) (asked * 0.99)] / 1e3);
        call.row(digest.into(row));
    }

    /** Adds the messages of a key; the index knows hashes alone, so a client compares the keys. */
    private static void addFound(RocketStore store, String topic, String key, Digest digest) {
        QueryMessageResult result = store.store.queryMessage(topic, key, 32, 0, Long.MAX_VALUE);
        for (ByteBuffer buffer : result.getMessageBufferList()) {
            MessageExt message = MessageDecoder.decode(buffer, true, false);
            if (key.equals(message.getKeys())) {
                digest.add(key, message.getBody());
            }
        }
        result.release();
    }

    /** Puts N messages at RATE a second, and pulls each as soon as the arrival listener reports it; warm. */
    static void delays(Call call, Path root) throws Throwable {
        delaysOf(call, root.resolve("warm-up"), Math.max(2000, call.number(1) / 4));
        Map<String, Object> row = delaysOf(call, root.resolve("store"), call.number(1));
        call.row(row);
    }

    private static Map<String, Object> delaysOf(Call call, Path root, int messages) throws Throwable {
        String topic = "topic00000";
        long pause = 1_000_000_000L / call.number(2);
        Semaphore arrived = new Semaphore(0);
        MessageArrivingListener listener = (name, queue, offset, tags, time, bits, properties) -> arrived.release();
        try (RocketStore store = new RocketStore(root, call.settings, false, listener)) {
            if (!store.store.load()) {
                throw new IllegalStateException("the store does not load");
            }
            store.startAndDispatch();
            long[] nanos = new long[messages];
            long start = System.nanoTime();
            double cpu = Call.cpuSeconds();
            Thread writer = new Thread(() -> {
                for (int i = 0; i < messages; i++) {
                    LockSupport.parkNanos(pause);
                    byte[] body = ByteBuffer.allocate(8).putLong(System.nanoTime()).array();
                    try {
                        store.put(RocketDriver.newMessage(topic, 0, body, ""));
                    } catch (Throwable failed) {
                        throw new IllegalStateException(failed);
                    }
                }
            });
            writer.setDaemon(true);
            writer.start();
            int count = 0;
            while (count < messages) {
                GetMessageResult result = store.store.getMessage("bench", topic, 0, count, 32, null);
                int found = 0;
                for (ByteBuffer buffer : result.getMessageBufferList()) {
                    byte[] body = MessageDecoder.decode(buffer, true, false).getBody();
                    nanos[count + found++] = System.nanoTime() - ByteBuffer.wrap(body).getLong();
                }
                result.release();
                count += found;
                if (found == 0) {
                    arrived.tryAcquire(5, TimeUnit.SECONDS);
                    arrived.drainPermits();
                }
            }
            writer.join();
            double seconds = Call.seconds(start);
            Arrays.sort(nanos);
            return Json.object(
                    "kind", "bench", "bench", "rocketmq-delay", "messages", (long) messages, "seconds", seconds,
                    "cpuSeconds", Call.cpuSeconds() - cpu, "p50", nanos[messages / 2] / 1e3,
                    "p99", nanos[(int) (messages * 0.99)] / 1e3);
        }
    }

    /** Does the work for its digest, and then with the clock. */
    private static Map<String, Object> twice(String name, ToLongFunction<Consumer<MessageExt>> work) {
        Digest digest = new Digest();
        work.applyAsLong(message ->
                digest.add(message.getTopic() + "-" + message.getQueueId(), message.getBody()));
        return digest.into(timed(name, () -> work.applyAsLong(message -> { })));
    }

    private static Map<String, Object> timed(String name, LongSupplier work) {
        work.getAsLong();
        long start = System.nanoTime();
        double cpu = Call.cpuSeconds();
        long count = work.getAsLong();
        double seconds = Call.seconds(start);
        return Json.object(
                "kind", "bench", "bench", name, "messages", count, "seconds", seconds,
                "cpuSeconds", Call.cpuSeconds() - cpu, "rate", count / seconds);
    }

    private static long scanOnce(RocketStore store, Consumer<MessageExt> seen) {
        long at = store.store.getMinPhyOffset();
        long end = store.store.getMaxPhyOffset();
        long count = 0;
        while (at < end) {
            SelectMappedBufferResult piece = store.store.getCommitLogData(at);
            ByteBuffer buffer = piece.getByteBuffer();
            int start = 0;
            while (start + 8 <= piece.getSize()) {
                int size = buffer.getInt(start);
                if (size <= 0) {
                    break;
                }
                if (buffer.getInt(start + 4) != MAGIC_BLANK) {
                    buffer.position(start);
                    MessageExt message = MessageDecoder.decode(buffer, true, false);
                    if (message == null) {
                        throw new IllegalStateException("not decodable: " + (at + start));
                    }
                    seen.accept(message);
                    count++;
                }
                start += size;
            }
            piece.release();
            if (start == 0) {
                break;
            }
            at += start;
        }
        return count;
    }

    private static long readQueue(RocketStore store, String topic, int queueId, Consumer<MessageExt> seen) {
        long at = 0;
        long count = 0;
        while (true) {
            GetMessageResult result = store.store.getMessage("bench", topic, queueId, at, PAGE, null);
            for (ByteBuffer buffer : result.getMessageBufferList()) {
                MessageExt message = MessageDecoder.decode(buffer, true, false);
                if (message != null) {
                    seen.accept(message);
                    count++;
                }
            }
            long next = result.getNextBeginOffset();
            boolean more = result.getMessageCount() > 0 && next > at && next < result.getMaxOffset();
            result.release();
            if (!more) {
                return count;
            }
            at = next;
        }
    }

    /** Opens a store with everything that a start does, until all of the log is dispatched. */
    static void open(Call call, Path root) throws Exception {
        long start = System.nanoTime();
        RocketStore store = new RocketStore(root, call.settings);
        if (!store.store.load()) {
            throw new IllegalStateException("the store does not load");
        }
        double loaded = Call.seconds(start);
        boolean dispatched = store.startAndDispatch();
        call.row(Json.object(
                "kind", "bench", "bench", "rocketmq-open", "loadSeconds", loaded, "dispatched", dispatched,
                "seconds", Call.seconds(start), "cpuSeconds", Call.cpuSeconds(),
                "residentKb", Call.residentKb(), "maxPhyOffset", store.store.getMaxPhyOffset()));
        store.nextFileMade();
        call.crash();
    }
}
