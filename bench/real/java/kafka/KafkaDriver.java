import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.zip.CRC32;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.RecordBatch;

/** Kafka's log, without a broker around it. */
public final class KafkaDriver {
    private KafkaDriver() {
    }

    public static void main(String[] args) {
        Call.main(args, KafkaDriver::run);
    }

    private static void run(Call call) throws Throwable {
        Path root = Path.of(call.operand(0));
        switch (call.command) {
            case "dump" -> dump(call, root);
            case "read" -> read(call, root);
            case "append-bench" -> KafkaBench.append(call, root);
            case "read-bench" -> KafkaBench.read(call, root);
            default -> throw new IllegalArgumentException("no such command: " + call.command);
        }
    }

    /** What DumpLogSegments prints of files, as one row. */
    private static void dump(Call call, Path root) {
        List<String> files = new ArrayList<>();
        for (String name : call.operandsFrom(1)) {
            files.add(root.resolve(name).toString());
        }
        ByteArrayOutputStream text = new ByteArrayOutputStream();
        PrintStream errors = System.err;
        System.setOut(new PrintStream(text, true, StandardCharsets.UTF_8));
        System.setErr(System.out); // mismatches are printed there
        List<String> arguments = new ArrayList<>(List.of("--files", String.join(",", files)));
        arguments.add(call.option("verify", 0) == 1 ? "--verify-index-only" : "--print-data-log");
        kafka.tools.DumpLogSegments.main(arguments.toArray(new String[0]));
        System.setErr(errors);
        System.setOut(errors);
        call.row("kind", "dump", "text", text.toString(StandardCharsets.UTF_8));
    }

    /** Opens the log of each partition, as after a kill, and reads it: a row a message. */
    private static void read(Call call, Path root) throws Exception {
        try (KafkaLogs logs = new KafkaLogs(root, call.number(1), call.number(2))) {
            for (int place = 0; place < logs.count(); place++) {
                for (RecordBatch batch : logs.batches(place, 0)) {
                    batch.ensureValid();
                    for (Record record : batch) {
                        byte[] value = new byte[record.valueSize()];
                        record.value().get(value);
                        Map<String, Object> row = Json.object(
                                "kind", "message", "topic", place / call.number(2),
                                "partition", place % call.number(2), "offset", record.offset(),
                                "timestamp", record.timestamp());
                        Call.payload(row, "value", value);
                        call.row(row);
                    }
                }
            }
        }
    }

    static long crc(byte[] value) {
        CRC32 crc = new CRC32();
        crc.update(value);
        return crc.getValue();
    }
}
