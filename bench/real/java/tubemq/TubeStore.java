import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.locks.ReentrantLock;
import org.apache.inlong.tubemq.corebase.utils.CheckSum;
import org.apache.inlong.tubemq.server.broker.BrokerConfig;
import org.apache.inlong.tubemq.server.broker.metadata.BrokerDefMetadata;
import org.apache.inlong.tubemq.server.broker.metadata.TopicMetadata;
import org.apache.inlong.tubemq.server.broker.msgstore.MessageStore;
import org.apache.inlong.tubemq.server.broker.msgstore.disk.GetMessageResult;
import org.apache.inlong.tubemq.server.broker.msgstore.disk.MsgFileStore;
import org.apache.inlong.tubemq.server.broker.msgstore.disk.Segment;
import org.apache.inlong.tubemq.server.broker.msgstore.disk.SegmentList;
import org.apache.inlong.tubemq.server.broker.nodeinfo.ConsumerNodeInfo;
import org.apache.inlong.tubemq.server.common.utils.AppendResult;
import org.apache.inlong.tubemq.server.common.utils.IdWorker;

/** The published MessageStore without a broker around it. Only this file touches how it is made and ended. */
final class TubeStore implements AutoCloseable {
    static final int ENTRY_BYTES = 28;
    static final int HEADER_BYTES = 52;
    /** A broker's default size of a read's answer. */
    private static final int TRANSFER_BYTES = 512 * 1024;
    private static final int FILES_ONLY = 101;

    /** One entry of the index. */
    record Entry(long indexOffset, long dataOffset, int size, int partition, int keyCode, long time) {
    }

    /** Message ids that repeat from run to run: the caller says which. */
    private static final class GivenId extends IdWorker {
        private long id;

        GivenId() {
            super(0L);
        }

        @Override
        public synchronized long nextId() {
            return id;
        }
    }

    final MessageStore store;
    private final GivenId ids = new GivenId();

    private TubeStore(MessageStore store) {
        this.store = store;
    }

    /** What a broker takes from its ini file and from the master; its defaults where nothing else is asked. */
    static final class Setup {
        private final BrokerConfig broker = new BrokerConfig();
        private final BrokerDefMetadata topics = new BrokerDefMetadata();

        Setup(Map<String, String> settings) {
            topics.setUnflushThreshold(1000);
            topics.setUnflushInterval(10_000);
            topics.setMemCacheMsgSize(1_572_864);
            topics.setMemCacheMsgCnt(5120);
            topics.setNumPartitions(10);
            topics.setDeletePolicy("delete,168h");
            settings.forEach((name, text) ->
                    Reflect.setText(Reflect.hasField(BrokerConfig.class, name) ? broker : topics, name, text));
        }

        /**
         * Opens a store where it lies. A broker keeps messages in two caches of direct memory, which this JDK does not
         * give back; so whoever only reads opens without them (CACHED false), which changes nothing in the files.
         */
        TubeStore open(Path root, String topic, int storeId, boolean cached) throws IOException {
            Reflect.set(broker, "primaryPath", root.toString());
            Reflect.set(broker, "enableMemStore", cached);
            TopicMetadata metadata = new TopicMetadata(topics, topic, storeId + 1, topics.getNumPartitions());
            return new TubeStore(new MessageStore(null, metadata, storeId, broker, 0L, TRANSFER_BYTES));
        }
    }

    /** Gives the message that is appended next an id, instead of one that has the clock in it. */
    void nextId(long id) {
        if (ids.id == 0) {
            Reflect.set(store, "idWorker", ids);
        }
        ids.id = id;
    }

    /** All entries by partition, in index order, read through the real segments. */
    Map<Integer, List<Entry>> entries() throws IOException {
        Map<Integer, List<Entry>> entries = new TreeMap<>();
        for (Segment segment : segments("indexSegments").getView()) {
            if (segment.isExpired()) {
                continue;
            }
            ByteBuffer all = read(segment, segment.getStart(), (int) (segment.getLast() - segment.getStart()));
            for (int at = 0; at + ENTRY_BYTES <= all.limit(); at += ENTRY_BYTES) {
                Entry entry = new Entry(segment.getStart() + at, all.getLong(at + 4), all.getInt(at + 12),
                        all.getInt(at), all.getInt(at + 16), all.getLong(at + 20));
                entries.computeIfAbsent(entry.partition, key -> new ArrayList<>()).add(entry);
            }
        }
        return entries;
    }

    /** The record's header that an entry points to, or null where there is none. */
    ByteBuffer header(Entry entry) throws IOException {
        SegmentList data = segments("dataSegments");
        if (entry.size < HEADER_BYTES || entry.dataOffset < data.getMinOffset()
                || entry.dataOffset + HEADER_BYTES > data.getMaxOffset()) {
            return null;
        }
        Segment segment = data.getRecordSeg(entry.dataOffset);
        ByteBuffer header = segment == null ? null : read(segment, entry.dataOffset, HEADER_BYTES);
        return header == null || header.limit() < HEADER_BYTES ? null : header;
    }

    private SegmentList segments(String which) {
        return Reflect.get(Reflect.<MsgFileStore>get(store, "msgFileStore"), which);
    }

    private static ByteBuffer read(Segment segment, long offset, int length) throws IOException {
        ByteBuffer buffer = ByteBuffer.allocate(length);
        segment.read(buffer, offset);
        buffer.flip();
        return buffer;
    }

    /** One call of the read path, as a broker makes it for a consumer that takes files only. */
    GetMessageResult read(int partition, long indexOffset) throws IOException {
        ConsumerNodeInfo consumer = new ConsumerNodeInfo(null, "c_1-2-3", null, "", 0L, "");
        return store.getMessages(FILES_ONLY, indexOffset, partition, consumer, "interop", TRANSFER_BYTES, 0L);
    }

    /** Appends, waiting while both caches are full; returns how often the store refused. */
    int append(AppendResult result, int partition, byte[] payload, int keyCode, int address, long time)
            throws IOException {
        int length = payload.length;
        int checksum = CheckSum.crc32(payload);
        int refused = 0;
        while (!store.appendMsg2(result, length, checksum, payload, keyCode, 0, partition, address, time, 3, 1)) {
            if (++refused > 10_000) {
                throw new IOException("the store takes no message");
            }
        }
        return refused;
    }

    /** Writes both caches to the files and waits for it. */
    void flush() throws Exception {
        settle();
        var flush = MessageStore.class.getDeclaredMethod("flush", long.class, StringBuilder.class);
        flush.setAccessible(true);
        flush.invoke(store, System.currentTimeMillis(), new StringBuilder());
        settle();
    }

    /** Waits until no flush is asked for and none is under way. */
    private void settle() {
        AtomicBoolean asked = Reflect.get(store, "hasFlushBeenTriggered");
        AtomicBoolean busy = Reflect.get(store, "isFlushOngoing");
        ReentrantLock mutex = Reflect.get(store, "flushMutex");
        while (asked.get() || busy.get() || mutex.isLocked()) {
            Call.pause(1);
        }
    }

    /**
     * Closes. The jar was built for JDK 8: freeing the caches fails on newer ones with an Error, after everything is
     * written; what close() had left to do is done here.
     */
    @Override
    public void close() throws IOException {
        settle();
        try {
            store.close();
        } catch (NoSuchMethodError | IllegalAccessError cachesNotFreed) {
            Reflect.<ExecutorService>get(store, "executor").shutdown();
            Reflect.<MsgFileStore>get(store, "msgFileStore").close();
        }
    }
}
