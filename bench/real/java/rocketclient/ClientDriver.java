import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.TreeMap;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.client.consumer.store.OffsetStore;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.client.impl.MQAdminImpl;
import org.apache.rocketmq.client.impl.consumer.DefaultMQPushConsumerImpl;
import org.apache.rocketmq.client.impl.consumer.ProcessQueue;
import org.apache.rocketmq.client.impl.consumer.RebalancePushImpl;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Rules of RocketMQ's consumers that need no network, asked of the real classes; 4.9 and 5.3 alike.
 *
 * A command reads a file with a case on each line, its fields separated by tabs, and answers a row for each:
 *
 * <pre>
 * allocate FILE        STRATEGY CLIENT CLIENTS QUEUES      lists by commas, a queue is TOPIC:BROKER:ID
 * hash FILE            KEY QUEUES                          the queue of a producer's key
 * from-where FILE      POLICY TOPIC STORED MAX FOUND       computePullFromWhere
 * process-queue FILE   OPERATION ARGUMENT                  one queue, line by line
 * unwrap FILE          QUEUE_OFFSET BODY                   an inner batch, its body in base64; 5.x only
 * </pre>
 */
public final class ClientDriver {
    private ClientDriver() {
    }

    public static void main(String[] args) {
        Call.main(args, call -> {
            List<String> lines = Files.readAllLines(Path.of(call.operand(0)));
            switch (call.command) {
                case "allocate" -> lines.forEach(line -> allocate(call, line.split("\t", -1)));
                case "hash" -> lines.forEach(line -> hash(call, line.split("\t", -1)));
                case "from-where" -> {
                    for (String line : lines) {
                        fromWhere(call, line.split("\t", -1));
                    }
                }
                case "process-queue" -> processQueue(call, lines);
                case "unwrap" -> {
                    for (String line : lines) {
                        unwrap(call, line.split("\t", -1));
                    }
                }
                default -> throw new IllegalArgumentException("no command " + call.command);
            }
        });
    }

    private static void allocate(Call call, String[] fields) {
        List<String> clients = new ArrayList<>();
        Collections.addAll(clients, fields[2].isEmpty() ? new String[0] : fields[2].split(","));
        List<MessageQueue> queues = new ArrayList<>();
        for (String text : fields[3].isEmpty() ? new String[0] : fields[3].split(",")) {
            queues.add(queue(text));
        }
        Collections.sort(clients);
        Collections.sort(queues);
        try {
            List<MessageQueue> share = strategy(fields[0], queues).allocate("group", fields[1], queues, clients);
            List<String> texts = new ArrayList<>();
            share.forEach(queue -> texts.add(
                    queue.getTopic() + ":" + queue.getBrokerName() + ":" + queue.getQueueId()));
            call.row("kind", "allocated", "queues", texts);
        } catch (IllegalArgumentException refused) {
            call.row("kind", "refused");
        }
    }

    private static AllocateMessageQueueStrategy strategy(String name, List<MessageQueue> queues) {
        String[] parts = name.split("/");
        switch (parts[0]) {
            case "average":
                return new AllocateMessageQueueAveragely();
            case "circle":
                return new AllocateMessageQueueAveragelyByCircle();
            case "by_configuration":
                AllocateMessageQueueByConfig byConfig = new AllocateMessageQueueByConfig();
                byConfig.setMessageQueueList(queues.subList(0, queues.size() / 2));
                return byConfig;
            case "by_machine_room":
                AllocateMessageQueueByMachineRoom byRoom = new AllocateMessageQueueByMachineRoom();
                byRoom.setConsumeridcs(Set.of(parts[1].split("\\+")));
                return byRoom;
            case "consistent_hash":
                return new AllocateMessageQueueConsistentHash(Integer.parseInt(parts[1]));
            case "machine_room_nearby":
                return new AllocateMachineRoomNearby(
                        new AllocateMessageQueueAveragely(), new AllocateMachineRoomNearby.MachineRoomResolver() {
                            @Override
                            public String brokerDeployIn(MessageQueue queue) {
                                return queue.getBrokerName().split("@")[0];
                            }

                            @Override
                            public String consumerDeployIn(String client) {
                                return client.split("-")[0];
                            }
                        });
            default:
                throw new IllegalStateException("no strategy " + name);
        }
    }

    private static MessageQueue queue(String text) {
        String[] parts = text.split(":");
        return new MessageQueue(parts[0], parts[1], Integer.parseInt(parts[2]));
    }

    private static void hash(Call call, String[] fields) {
        List<MessageQueue> queues = new ArrayList<>();
        for (int id = 0; id < Integer.parseInt(fields[1]); id++) {
            queues.add(new MessageQueue("topic", "broker", id));
        }
        call.row("kind", "hash", "queue", new SelectMessageQueueByHash().select(queues, null, fields[0]).getQueueId());
    }

    /** The messages of an inner batch, as a consumer of 5.x gets them. */
    private static void unwrap(Call call, String[] fields) throws Exception {
        MessageExt batch = new MessageExt();
        batch.setTopic("topic");
        batch.setQueueOffset(Long.parseLong(fields[0]));
        batch.setBody(Base64.getDecoder().decode(fields[1]));
        List<MessageExt> found = new ArrayList<>();
        MessageDecoder.class.getMethod("decodeMessage", MessageExt.class, List.class).invoke(null, batch, found);
        List<Object> messages = new ArrayList<>();
        for (MessageExt message : found) {
            messages.add(List.of(
                    message.getQueueOffset(), message.getFlag(),
                    Base64.getEncoder().encodeToString(message.getBody()), new TreeMap<>(message.getProperties())));
        }
        call.row("kind", "unwrapped", "messages", messages);
    }

    /** The stored offset is -1 where there is none, and -2 where the broker could not be asked. */
    private static void fromWhere(Call call, String[] fields) throws Exception {
        long stored = Long.parseLong(fields[2]);
        long max = Long.parseLong(fields[3]);
        long found = Long.parseLong(fields[4]);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("group");
        consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf(fields[0]));
        consumer.setConsumeTimestamp("20231114221320");
        DefaultMQPushConsumerImpl inner = consumer.getDefaultMQPushConsumerImpl();
        inner.setOffsetStore((OffsetStore) java.lang.reflect.Proxy.newProxyInstance(
                OffsetStore.class.getClassLoader(), new Class<?>[] {OffsetStore.class},
                (proxy, method, arguments) -> {
                    if (!method.getName().equals("readOffset") || arguments[1] != ReadOffsetType.READ_FROM_STORE) {
                        throw new IllegalStateException(method.getName());
                    }
                    return stored;
                }));
        MQAdminImpl admin = new MQAdminImpl(null) {
            @Override
            public long maxOffset(MessageQueue queue) {
                return max;
            }

            @Override
            public long searchOffset(MessageQueue queue, long timestamp) {
                return found;
            }
        };
        java.lang.reflect.Field unsafe = sun.misc.Unsafe.class.getDeclaredField("theUnsafe");
        unsafe.setAccessible(true);
        MQClientInstance client = (MQClientInstance) ((sun.misc.Unsafe) unsafe.get(null))
                .allocateInstance(MQClientInstance.class);
        Reflect.set(client, "mQAdminImpl", admin);
        RebalancePushImpl rebalance = new RebalancePushImpl("group", null, null, client, inner);
        long from = rebalance.computePullFromWhereWithException(new MessageQueue(fields[1], "broker", 0));
        call.row("kind", "from", "offset", from);
    }

    private static void processQueue(Call call, List<String> lines) {
        ProcessQueue queue = new ProcessQueue();
        for (String line : lines) {
            String[] fields = line.split("\t", -1);
            Object answer = null;
            switch (fields[0]) {
                case "put" -> answer = queue.putMessage(messages(fields[1]));
                case "remove" -> answer = queue.removeMessage(messages(fields[1]));
                case "take" -> answer = offsets(queue.takeMessages(Integer.parseInt(fields[1])));
                case "commit" -> {
                    try {
                        answer = queue.commit();
                    } catch (java.util.NoSuchElementException nothing) {
                        answer = -1; // nothing was taken
                    }
                }
                case "rollback" -> queue.rollback();
                case "again" -> queue.makeMessageToConsumeAgain(messages(fields[1]));
                case "clear" -> queue.clear();
                default -> throw new IllegalStateException("no operation " + fields[0]);
            }
            call.row("kind", "queue", "answer", answer, "count", queue.getMsgCount().get(),
                    "size", queue.getMsgSize().get(), "span", queue.getMaxSpan(),
                    "waiting", queue.hasTempMessage(), "offsets", new ArrayList<>(queue.getMsgTreeMap().keySet()));
        }
    }

    /** Messages by offset, each with a body of as many bytes as the last digit of its offset. */
    private static List<MessageExt> messages(String offsets) {
        List<MessageExt> found = new ArrayList<>();
        for (String text : offsets.isEmpty() ? new String[0] : offsets.split(",")) {
            MessageExt message = new MessageExt();
            message.setQueueOffset(Long.parseLong(text));
            message.setBody(new byte[(int) (Long.parseLong(text) % 10)]);
            found.add(message);
        }
        return found;
    }

    private static List<Long> offsets(List<MessageExt> messages) {
        List<Long> found = new ArrayList<>();
        messages.forEach(message -> found.add(message.getQueueOffset()));
        return found;
    }
}
