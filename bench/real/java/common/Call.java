import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedOutputStream;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.stream.Stream;

/**
 * One call of a driver: COMMAND OPERAND... [-c name=value] [--name=value].
 *
 * The answer goes to the real standard output as JSON lines; whatever the library prints goes to standard error.
 * The process ends by itself: by halt when the command is done (the libraries leave threads behind) and by the watchdog
 * when it is not, so that no store stays open behind a test that was killed.
 */
final class Call {
    /** Payloads up to this size are given in full, larger ones by digest and length. */
    static final int INLINE_BYTES = 32 * 1024;

    /** What a driver does with a call. */
    interface Body {
        void run(Call call) throws Throwable;
    }

    final String command;
    /** Settings of the store, under the names that the real configuration classes use. */
    final Map<String, String> settings = new LinkedHashMap<>();
    private final List<String> operands = new ArrayList<>();
    private final Map<String, String> options = new LinkedHashMap<>();
    private final PrintStream out;

    private Call(String[] args, PrintStream out) {
        this.out = out;
        for (int i = 0; i < args.length; i++) {
            if (args[i].equals("-c")) {
                put(settings, args[++i]);
            } else if (args[i].startsWith("--")) {
                put(options, args[i].substring(2));
            } else {
                operands.add(args[i]);
            }
        }
        command = operands.isEmpty() ? "" : operands.remove(0);
    }

    /** Runs a driver to its end; does not return. */
    static void main(String[] args, Body body) {
        OutputStream stdout = new BufferedOutputStream(new FileOutputStream(FileDescriptor.out), 1 << 16);
        PrintStream out = new PrintStream(stdout, false, StandardCharsets.US_ASCII);
        System.setOut(System.err);
        watch(Long.getLong("interop.seconds", 120), Thread.currentThread());
        int status = 0;
        try {
            body.run(new Call(args, out));
        } catch (Throwable problem) {
            problem.printStackTrace();
            status = 1;
        }
        out.flush();
        System.err.flush();
        Runtime.getRuntime().halt(status);
    }

    private static void watch(long seconds, Thread worker) {
        Thread watchdog = new Thread(() -> {
            pause(seconds * 1000);
            System.err.println("watchdog: not done after " + seconds + " s; the command was at");
            for (StackTraceElement frame : worker.getStackTrace()) {
                System.err.println("\tat " + frame);
            }
            System.err.flush();
            Runtime.getRuntime().halt(3);
        });
        watchdog.setDaemon(true);
        watchdog.start();
    }

    private static void put(Map<String, String> into, String pair) {
        int equals = pair.indexOf('=');
        if (equals < 1) {
            throw new IllegalArgumentException("name=value expected, got " + pair);
        }
        into.put(pair.substring(0, equals), pair.substring(equals + 1));
    }

    String operand(int i) {
        if (i >= operands.size()) {
            throw new IllegalArgumentException(command + ": operand " + (i + 1) + " is missing");
        }
        return operands.get(i);
    }

    List<String> operandsFrom(int i) {
        return operands.subList(Math.min(i, operands.size()), operands.size());
    }

    int number(int i) {
        return Integer.parseInt(operand(i));
    }

    int option(String name, int otherwise) {
        return Integer.parseInt(options.getOrDefault(name, Integer.toString(otherwise)));
    }

    /** Bodies of a size, cut from the file of the option "payload"; without it one of random bytes. */
    byte[][] bodies(int size) throws IOException {
        if (!options.containsKey("payload")) {
            byte[] body = new byte[size];
            new Random(1).nextBytes(body);
            return new byte[][] {body};
        }
        byte[] text = Files.readAllBytes(Path.of(options.get("payload")));
        byte[][] bodies = new byte[text.length / size][];
        for (int i = 0; i < bodies.length; i++) {
            bodies[i] = Arrays.copyOfRange(text, i * size, (i + 1) * size);
        }
        return bodies;
    }

    void row(Object... pairs) {
        row(Json.object(pairs));
    }

    void row(Map<String, Object> row) {
        out.print(Json.text(row));
        out.print('\n');
    }

    /** Delivers the answer so far to a caller that waits for it. */
    void flush() {
        out.flush();
    }

    /** Ends the process as kill -9 would, except that the answer so far is delivered. */
    void crash() {
        out.flush();
        Runtime.getRuntime().halt(0);
    }

    /** Puts a payload into a row: NAME in base64, or NAMESha256 where it is large; NAMESize always. */
    static void payload(Map<String, Object> row, String name, byte[] payload) {
        row.put(name + "Size", payload.length);
        if (payload.length <= INLINE_BYTES) {
            row.put(name, payload);
        } else {
            row.put(name + "Sha256", sha256(payload));
        }
    }

    private static String sha256(byte[] bytes) {
        try {
            return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(bytes));
        } catch (NoSuchAlgorithmException absent) {
            throw new AssertionError(absent);
        }
    }

    static void pause(long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException asked) {
            Thread.currentThread().interrupt();
        }
    }

    static double seconds(long sinceNanos) {
        return (System.nanoTime() - sinceNanos) / 1e9;
    }

    /** Processor time of all threads of this process so far. */
    static double cpuSeconds() {
        OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        return system.getProcessCpuTime() / 1e9;
    }

    /** Resident memory of this process that no file stands behind; 0 where the system does not say. */
    static long residentKb() throws IOException {
        return statusKb("RssAnon:");
    }

    /** The most memory that was resident; 0 where the system has no record of it. */
    static long peakKb() throws IOException {
        return statusKb("VmHWM:");
    }

    private static long statusKb(String name) throws IOException {
        Path status = Path.of("/proc/self/status");
        if (!Files.exists(status)) {
            return 0;
        }
        for (String line : Files.readAllLines(status)) {
            if (line.startsWith(name)) {
                return Long.parseLong(line.replaceAll("[^0-9]", ""));
            }
        }
        return 0;
    }

    /** Removes a tree that the driver itself made (the store of a warm-up). */
    static void remove(Path tree) throws IOException {
        if (Files.exists(tree)) {
            try (Stream<Path> paths = Files.walk(tree)) {
                paths.sorted(Comparator.reverseOrder()).forEach(path -> path.toFile().delete());
            }
        }
    }
}
