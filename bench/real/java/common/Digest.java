import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.zip.CRC32;

/** How many messages were read, and a digest of them: for a caller that knows what was stored. */
final class Digest {
    private final Map<String, CRC32> places = new HashMap<>();
    private long messages;

    /** Adds the next message of a place: messages of one place have an order, places have none. */
    void add(String place, byte[] body) {
        places.computeIfAbsent(place, Digest::begun).update(body);
        messages++;
    }

    private static CRC32 begun(String place) {
        CRC32 crc = new CRC32();
        crc.update(place.getBytes(StandardCharsets.UTF_8));
        return crc;
    }

    Map<String, Object> into(Map<String, Object> row) {
        row.put("readBack", messages);
        row.put("digest", places.values().stream().mapToLong(CRC32::getValue).sum());
        return row;
    }
}
