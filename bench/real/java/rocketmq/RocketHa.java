import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DefaultMessageStore;

/**
 * A real master or slave that runs until its input ends. Each line of input is a command, and each is answered by a
 * row: {@code put N SIZE}, {@code state}, {@code follow HOST:PORT}.
 */
final class RocketHa {
    private RocketHa() {
    }

    static void run(Call call, Path root) throws Throwable {
        Map<String, String> settings = new HashMap<>(call.settings);
        settings.putIfAbsent("brokerRole", "ASYNC_MASTER");
        try (RocketStore store = new RocketStore(root, settings, true)) {
            if (!store.store.load()) {
                call.row("kind", "load", "result", false);
                return;
            }
            store.startAndDispatch();
            state(call, store, "started");
            BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                String[] words = line.trim().split(" ");
                switch (words[0]) {
                    case "put" -> put(call, store, Integer.parseInt(words[1]), Integer.parseInt(words[2]));
                    case "follow" -> {
                        store.store.updateHaMasterAddress(words[1]);
                        state(call, store, "follows");
                    }
                    case "state" -> {
                        store.dispatched();
                        state(call, store, "state");
                    }
                    default -> throw new IllegalArgumentException(line);
                }
            }
        }
        call.row("kind", "closed");
    }

    private static void put(Call call, RocketStore store, int count, int size) throws Throwable {
        Map<String, Object> statuses = new TreeMap<>();
        byte[] body = new byte[size];
        for (int i = 0; i < count; i++) {
            long k = store.store.getMaxPhyOffset();
            java.util.Arrays.fill(body, (byte) ('a' + k % 26));
            MessageExt message = RocketDriver.newMessage("HaTopic", i % 4, body, "KEYS\u0001ha" + k);
            message.setBornTimestamp(1_700_000_000_000L + k);
            statuses.merge(store.put(message).getPutMessageStatus().toString(), 1L, (a, b) -> (Long) a + (Long) b);
        }
        call.row("kind", "put", "statuses", statuses, "maxPhyOffset", store.store.getMaxPhyOffset());
        call.flush();
    }

    private static void state(Call call, RocketStore store, String kind) throws Throwable {
        Object service = Reflect.get(store.store, "haService");
        Map<String, Object> row = Json.object(
                "kind", kind, "minPhyOffset", store.store.getMinPhyOffset(),
                "maxPhyOffset", store.store.getMaxPhyOffset(),
                "connections", number(service, "getConnectionCount"),
                "push2SlaveMaxOffset", number(service, "getPush2SlaveMaxOffset"));
        for (int queueId = 0; queueId < 4; queueId++) {
            row.put("queue" + queueId, store.store.getMinOffsetInQueue("HaTopic", queueId) + "-"
                    + store.store.getMaxOffsetInQueue("HaTopic", queueId));
        }
        call.row(row);
        call.flush();
    }

    /** The value of a getter that is an int, a long or an atomic one. */
    private static long number(Object service, String getter) throws Throwable {
        Method method = service.getClass().getMethod(getter);
        method.setAccessible(true);
        return ((Number) method.invoke(service)).longValue();
    }

    /** Lets a master of either version listen on the loopback. */
    static void listenOnLoopback(DefaultMessageStore store, int port) {
        Object service = Reflect.get(store, "haService");
        Class<?> type = Reflect.field(DefaultMessageStore.class, "haService").getType();
        if (!type.isInterface()) {
            listen(service, port);
            return;
        }
        Class<?>[] types = {type};
        Reflect.set(store, "haService", java.lang.reflect.Proxy.newProxyInstance(
                type.getClassLoader(), types, (proxy, method, arguments) -> {
                    try {
                        Object result = method.invoke(service, arguments);
                        if (method.getName().equals("init")) { // 5.x makes its acceptor then
                            listen(service, port);
                        }
                        return result;
                    } catch (InvocationTargetException failed) {
                        throw failed.getCause();
                    }
                }));
    }

    private static void listen(Object service, int port) {
        Object acceptor = Reflect.get(service, "acceptSocketService");
        if (acceptor != null) {
            Reflect.set(acceptor, "socketAddressListen",
                    new InetSocketAddress(InetAddress.getLoopbackAddress(), port));
        }
    }
}
