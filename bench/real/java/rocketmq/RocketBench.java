import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.atomic.LongAdder;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.store.PutMessageResult;

/** Rates of the real store, warm: the first messages (--warm, usually 200,000) are not counted. */
final class RocketBench {
    private static final int WARM_UP = 200_000;

    private RocketBench() {
    }

    /** Puts into a new store; the warm-up has a store of its own, removed before the clock starts. */
    static void put(Call call, Path root) throws Throwable {
        Path warmRoot = root.resolve("warm-up");
        putAll(call, warmRoot, call.option("warm", WARM_UP), 1);
        Call.remove(warmRoot);
        call.row(putAll(call, root, call.number(1), call.number(3)));
    }

    private static Map<String, Object> putAll(Call call, Path root, int messages, int topics) throws Throwable {
        int queues = call.number(4);
        int batch = call.number(5);
        byte[][] bodies = call.bodies(call.number(2));
        byte[][] encoded = batch == 1 ? null : encodeBatches(bodies, batch);
        try (RocketStore store = new RocketStore(root, call.settings)) {
            if (!store.store.load()) {
                throw new IllegalStateException("the store does not load");
            }
            store.startAndDispatch();
            LongAdder refused = new LongAdder();
            AtomicInteger turns = new AtomicInteger();
            int calls = (messages + batch - 1) / batch;
            int done = calls * batch;
            double cpu = Call.cpuSeconds();
            long start = System.nanoTime();
            inThreads(call.option("threads", 1), () -> {
                for (int turn = turns.getAndIncrement(); turn < calls; turn = turns.getAndIncrement()) {
                    String topic = "bench" + turn % topics;
                    int queueId = turn / topics % queues;
                    refused.add(batch == 1
                            ? putOne(store, topic, queueId, bodies[turn % bodies.length])
                            : putBatch(store, topic, queueId, encoded[turn % encoded.length]));
                }
            });
            double accepted = Call.seconds(start);
            boolean dispatched = store.dispatched();
            double readable = Call.seconds(start);
            return Json.object(
                    "kind", "bench", "bench", "rocketmq-put", "bodySize", call.number(2),
                    "topics", topics, "queues", queues, "batch", batch, "messages", done,
                    "refused", refused.sum(), "dispatched", dispatched, "seconds", accepted,
                    "cpuSeconds", Call.cpuSeconds() - cpu, "peakKb", Call.peakKb(),
                    "rate", done / accepted, "dispatchedSeconds", readable,
                    "dispatchedRate", done / readable);
        }
    }

    private interface Work {
        void run() throws Throwable;
    }

    /** Does the same work in some threads; this one is the first of them. */
    private static void inThreads(int count, Work work) throws Throwable {
        AtomicReference<Throwable> failed = new AtomicReference<>();
        List<Thread> others = new ArrayList<>();
        for (int i = 1; i < count; i++) {
            Thread other = new Thread(() -> {
                try {
                    work.run();
                } catch (Throwable problem) {
                    failed.set(problem);
                }
            });
            other.start();
            others.add(other);
        }
        work.run();
        for (Thread other : others) {
            other.join();
        }
        if (failed.get() != null) {
            throw failed.get();
        }
    }

    /** What a producer sends for batches, one after the other: made once, as the producer's work is not the store's. */
    private static byte[][] encodeBatches(byte[][] bodies, int batch) {
        byte[][] encoded = new byte[Math.max(1, bodies.length / batch)][];
        for (int number = 0; number < encoded.length; number++) {
            List<Message> messages = new ArrayList<>();
            for (int i = 0; i < batch; i++) {
                messages.add(new Message("bench", bodies[(number * batch + i) % bodies.length]));
            }
            encoded[number] = MessageDecoder.encodeMessages(messages);
        }
        return encoded;
    }

    private static int putOne(RocketStore store, String topic, int queueId, byte[] body) throws Throwable {
        return attempt(() -> store.put(RocketDriver.newMessage(topic, queueId, body, "")));
    }

    private static int putBatch(RocketStore store, String topic, int queueId, byte[] encoded) throws Throwable {
        return attempt(() -> {
            MessageExtBatch message = new MessageExtBatch();
            RocketDriver.address(message, topic, queueId);
            message.setBody(encoded);
            return store.store.putMessages(message);
        });
    }

    private interface Put {
        PutMessageResult run() throws Throwable;
    }

    /** Puts until the store takes it; returns how often it did not. */
    private static int attempt(Put put) throws Throwable {
        int refused = 0;
        while (true) {
            PutMessageResult result = put.run();
            if (result.isOk()) {
                return refused;
            }
            if (++refused > 10_000) {
                throw new IllegalStateException("the store refuses messages: " + result.getPutMessageStatus());
            }
            Call.pause(1);
        }
    }
}
