import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import kafka.log.UnifiedLog;
import kafka.server.BrokerTopicStats;
import kafka.server.RequestLocal;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.RecordBatch;
import org.apache.kafka.common.record.SimpleRecord;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.common.MetadataVersion;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.FetchIsolation;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogOffsetsListener;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.VerificationGuard;
import scala.Option;

/** The logs of topics × partitions below one directory, with a broker's defaults. */
final class KafkaLogs implements AutoCloseable {
    private static final int FETCH_BYTES = 1 << 20;
    private final List<UnifiedLog> logs = new ArrayList<>();
    private final KafkaScheduler scheduler = new KafkaScheduler(1);
    private final RequestLocal local = RequestLocal.NoCaching();

    KafkaLogs(Path root, int topics, int partitions) throws IOException {
        Files.createDirectories(root);
        scheduler.startup();
        LogConfig config = new LogConfig(new HashMap<String, Object>());
        BrokerTopicStats stats = new BrokerTopicStats(false);
        LogDirFailureChannel failures = new LogDirFailureChannel(1);
        for (int place = 0; place < topics * partitions; place++) {
            File directory = root.resolve(
                    String.format("topic%05d-%d", place / partitions, place % partitions)).toFile();
            logs.add(UnifiedLog.apply(directory, config, 0L, 0L, scheduler, stats, Time.SYSTEM,
                    300_000, new ProducerStateManagerConfig(86_400_000, false), 600_000, failures,
                    false, Option.empty(), false, new ConcurrentHashMap<>(), false,
                    LogOffsetsListener.NO_OP_OFFSETS_LISTENER));
        }
    }

    int count() {
        return logs.size();
    }

    void append(int place, SimpleRecord[] records, boolean sync) {
        UnifiedLog log = logs.get(place);
        MemoryRecords batch = MemoryRecords.withRecords(Compression.NONE, records);
        log.appendAsLeader(batch, 0, AppendOrigin.CLIENT, MetadataVersion.LATEST_PRODUCTION, local,
                VerificationGuard.SENTINEL);
        if (sync) {
            log.flush(false);
        }
    }

    /** The batches of one fetch, from an offset on; none at the end. */
    Iterable<? extends RecordBatch> fetch(int place, long offset) throws IOException {
        UnifiedLog log = logs.get(place);
        if (offset >= log.logEndOffset()) {
            return List.of();
        }
        var records = log.read(offset, FETCH_BYTES, FetchIsolation.LOG_END, true).records;
        // A consumer gets bytes: the file's part is read, not mapped.
        var buffer = java.nio.ByteBuffer.allocate(records.sizeInBytes());
        if (records instanceof org.apache.kafka.common.record.FileRecords file) {
            file.readInto(buffer, 0);
            return MemoryRecords.readableRecords(buffer).batches();
        }
        return records.batches();
    }

    /** All batches from an offset on, fetch by fetch. */
    List<RecordBatch> batches(int place, long offset) throws IOException {
        List<RecordBatch> all = new ArrayList<>();
        long at = offset;
        while (true) {
            boolean any = false;
            for (RecordBatch batch : fetch(place, at)) {
                all.add(batch);
                at = batch.nextOffset();
                any = true;
            }
            if (!any) {
                return all;
            }
        }
    }

    @Override
    public void close() throws InterruptedException {
        for (UnifiedLog log : logs) {
            log.close();
        }
        scheduler.shutdown();
    }
}
