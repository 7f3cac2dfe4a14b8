import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.zip.Deflater;
import org.HdrHistogram.ConcurrentHistogram;
import org.HdrHistogram.Histogram;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.RecordBatch;
import org.apache.kafka.common.record.SimpleRecord;

/** Rates of Kafka's log, warm; what was appended is read back, and its digest is in the row. */
final class KafkaBench {
    private static final int WARM_UP = 100_000;
    private static final long HIGHEST = 600_000_000_000L;

    private final byte[][] bodies;
    private final int topics;
    private final int partitions;
    private final int batch;
    private final boolean sync;
    private final int threads;

    private KafkaBench(Call call) throws IOException {
        int size = call.number(2);
        topics = call.number(3);
        partitions = call.number(4);
        batch = call.number(5);
        sync = call.option("sync", 0) == 1;
        threads = call.option("threads", 1);
        bodies = call.bodies(size);
    }

    static void append(Call call, Path root) throws Throwable {
        KafkaBench bench = new KafkaBench(call);
        int warm = Math.min(WARM_UP, bench.sync ? 500 : call.number(1));
        try (KafkaLogs logs = new KafkaLogs(root.resolve("warm-up"), 1, bench.partitions)) {
            bench.fill(logs, warm, new Histogram(HIGHEST, 3), 1);
        }
        Call.remove(root.resolve("warm-up"));
        try (KafkaLogs logs = new KafkaLogs(root.resolve("store"), bench.topics, bench.partitions)) {
            Histogram times = new ConcurrentHistogram(HIGHEST, 3);
            double cpu = Call.cpuSeconds();
            long start = System.nanoTime();
            int done = bench.fill(logs, call.number(1), times, bench.threads);
            double seconds = Call.seconds(start);
            Map<String, Object> row = Json.object(
                    "kind", "bench", "bench", "kafka-append", "messages", done, "seconds", seconds,
                    "cpuSeconds", Call.cpuSeconds() - cpu, "calls", times.getTotalCount(),
                    "hdr", encoded(times), "peakKb", Call.peakKb());
            bench.digest(logs, row);
            call.row(row);
        }
    }

    /** A call spreads the rows of a batch evenly: so many to a place, and to the places behind it. */
    private int fill(KafkaLogs logs, int messages, Histogram times, int workers) throws Throwable {
        int places = Math.min(batch, logs.count());
        int each = Math.max(1, batch / places);
        int calls = Math.max(1, messages / batch);
        AtomicInteger turns = new AtomicInteger();
        AtomicReference<Throwable> failed = new AtomicReference<>();
        Runnable work = () -> {
            try {
                for (int turn = turns.getAndIncrement(); turn < calls; turn = turns.getAndIncrement()) {
                    long begin = System.nanoTime();
                    long now = System.currentTimeMillis();
                    int number = turn * each * places;
                    for (int i = 0; i < places; i++) {
                        SimpleRecord[] records = new SimpleRecord[each];
                        for (int j = 0; j < each; j++) {
                            records[j] = new SimpleRecord(now, bodies[(number + i * each + j) % bodies.length]);
                        }
                        logs.append(place(turn * places + i, logs.count()), records, sync);
                    }
                    times.recordValue(System.nanoTime() - begin);
                }
            } catch (Throwable problem) {
                failed.set(problem);
            }
        };
        List<Thread> others = new ArrayList<>();
        for (int i = 1; i < workers; i++) {
            others.add(new Thread(work));
            others.get(i - 1).start();
        }
        work.run();
        for (Thread other : others) {
            other.join();
        }
        if (failed.get() != null) {
            throw failed.get();
        }
        return calls * each * places;
    }

    /** As the other contenders: topic by topic, then the next partition. */
    private int place(int turn, int count) {
        int number = turn % count;
        int all = count / partitions;
        return number % all * partitions + number / all;
    }

    private void digest(KafkaLogs logs, Map<String, Object> row) throws IOException {
        long messages = 0;
        long sum = 0;
        for (int place = 0; place < logs.count(); place++) {
            long at = 0;
            boolean any = true;
            while (any) {
                any = false;
                for (RecordBatch found : logs.fetch(place, at)) {
                    found.ensureValid();
                    for (Record record : found) {
                        byte[] value = new byte[record.valueSize()];
                        record.value().get(value);
                        sum += KafkaDriver.crc(value);
                        messages++;
                    }
                    at = found.nextOffset();
                    any = true;
                }
            }
        }
        row.put("readBack", messages);
        row.put("digest", sum);
    }

    /** Reads place after place in a random order, 1 MiB a fetch, checksums compared. */
    static void read(Call call, Path root) throws Throwable {
        KafkaBench bench = new KafkaBench(call);
        int wanted = call.option("wanted", call.number(1));
        try (KafkaLogs logs = new KafkaLogs(root.resolve("store"), bench.topics, bench.partitions)) {
            int stored = bench.fill(logs, call.number(1), new Histogram(HIGHEST, 3), 1);
            List<Integer> order = new ArrayList<>();
            for (int place = 0; place < logs.count(); place++) {
                order.add(place);
            }
            Collections.shuffle(order, new Random(1));
            readAll(logs, order, Math.max(stored, WARM_UP), new Histogram(HIGHEST, 3));
            Histogram times = new Histogram(HIGHEST, 3);
            double cpu = Call.cpuSeconds();
            long start = System.nanoTime();
            long done = readAll(logs, order, wanted, times);
            double seconds = Call.seconds(start);
            Map<String, Object> row = Json.object(
                    "kind", "bench", "bench", "kafka-read", "messages", done, "seconds", seconds,
                    "cpuSeconds", Call.cpuSeconds() - cpu, "calls", times.getTotalCount(),
                    "hdr", encoded(times), "peakKb", Call.peakKb(), "stored", stored);
            bench.digest(logs, row);
            call.row(row);
        }
    }

    private static long readAll(KafkaLogs logs, List<Integer> order, long wanted, Histogram times)
            throws IOException {
        long done = 0;
        long touched = 0;
        for (int turn = 0; done < wanted; turn++) {
            int place = order.get(turn % order.size());
            long at = 0;
            boolean any = true;
            while (any && done < wanted) {
                any = false;
                long begin = System.nanoTime();
                for (RecordBatch batch : logs.fetch(place, at)) {
                    batch.ensureValid();
                    for (Record record : batch) {
                        touched += record.value().get(0);
                        done++;
                    }
                    at = batch.nextOffset();
                    any = true;
                }
                times.recordValue(System.nanoTime() - begin);
            }
            if (done == 0 && turn >= order.size()) {
                throw new IllegalStateException("the logs are empty: " + touched);
            }
        }
        return done;
    }

    private static String encoded(Histogram times) {
        ByteBuffer buffer = ByteBuffer.allocate(times.getNeededByteBufferCapacity());
        int length = times.encodeIntoCompressedByteBuffer(buffer, Deflater.BEST_COMPRESSION);
        return Base64.getEncoder().encodeToString(Arrays.copyOf(buffer.array(), length));
    }
}
