import java.net.Inet6Address;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;

/** A record of the commit log, as the real decoder reads it. */
final class Records {
    private static final int MAGIC_V2 = 0xDAA320AB;

    private Records() {
    }

    /** Adds a record's fields to a row; an "error" if it cannot be decoded. */
    static Map<String, Object> describe(Map<String, Object> row, ByteBuffer buffer) {
        try {
            ByteBuffer record = buffer.slice();
            MessageExt message = MessageDecoder.decode(record.duplicate(), true, false);
            if (message != null) {
                return describe(row, record, message);
            }
            row.put("error", "not decodable");
        } catch (RuntimeException | OutOfMemoryError garbage) { // a wild length makes the decoder allocate it
            row.put("error", garbage.toString());
        }
        return row;
    }

    private static Map<String, Object> describe(Map<String, Object> row, ByteBuffer record, MessageExt message) {
        byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
        row.putAll(Json.object(
                "topic", message.getTopic(), "queueId", message.getQueueId(),
                "queueOffset", message.getQueueOffset(),
                "physicalOffset", message.getCommitLogOffset(), "storeSize", message.getStoreSize(),
                "magic", String.format("%08x", record.getInt(4)), "flag", message.getFlag(),
                "sysFlag", message.getSysFlag(), "bornTimestamp", message.getBornTimestamp(),
                "storeTimestamp", message.getStoreTimestamp(),
                "bornHost", host(message.getBornHost()), "storeHost", host(message.getStoreHost()),
                "reconsumeTimes", message.getReconsumeTimes(),
                "preparedTransactionOffset", message.getPreparedTransactionOffset(),
                "bodyCRC", message.getBodyCRC(),
                "crcOk", UtilAll.crc32(body) == message.getBodyCRC(),
                "properties", message.getProperties() == null ? null : new TreeMap<>(message.getProperties()),
                "propertiesRaw", rawProperties(record),
                "msgId", MessageDecoder.createMessageId(message.getStoreHost(), message.getCommitLogOffset())));
        Call.payload(row, "body", body);
        return row;
    }

    private static String host(SocketAddress address) {
        InetSocketAddress host = (InetSocketAddress) address;
        String text = host.getAddress().getHostAddress();
        return (host.getAddress() instanceof Inet6Address ? "[" + text + "]" : text) + ":" + host.getPort();
    }

    /** The property bytes as stored: the decoder gives a map only, which forgets their order and form. */
    private static byte[] rawProperties(ByteBuffer record) {
        int sysFlag = record.getInt(36);
        int hosts = ((sysFlag & 0x10) == 0 ? 8 : 20) + ((sysFlag & 0x20) == 0 ? 8 : 20);
        int at = 68 + hosts; // the body's length
        at += 4 + record.getInt(at);
        at += record.getInt(4) == MAGIC_V2 ? 2 + record.getShort(at) : 1 + (record.get(at) & 255);
        byte[] properties = new byte[record.getShort(at) & 0xffff];
        record.get(at + 2, properties);
        return properties;
    }
}
