import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.broker.offset.ConsumerOffsetManager;
import org.apache.rocketmq.broker.subscription.SubscriptionGroupManager;
import org.apache.rocketmq.broker.topic.TopicConfigManager;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.expression.MQFilterException;
import org.apache.rocketmq.filter.parser.SelectorParser;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;

/**
 * Parts of RocketMQ 5.3's broker that need no network: the tables of its managers, its SQL92 filters.
 *
 * <pre>
 * tables ROOT     loads topics.json, consumerOffset.json and subscriptionGroup.json; a row for each entry
 * change ROOT     as tables, adds an entry to each, and writes the files
 * filter FILE     a case a line: EXPRESSION, tab, NAME=VALUE pairs separated by tabs; a row for each
 * </pre>
 */
public final class BrokerDriver {
    private BrokerDriver() {
    }

    public static void main(String[] args) {
        Call.main(args, call -> {
            Path path = Path.of(call.operand(0)).toAbsolutePath();
            switch (call.command) {
                case "tables" -> tables(call, path, false);
                case "change" -> tables(call, path, true);
                case "filter" -> {
                    for (String line : Files.readAllLines(path, StandardCharsets.UTF_8)) {
                        filter(call, line.split("\t", -1));
                    }
                }
                default -> throw new IllegalArgumentException("no command " + call.command);
            }
        });
    }

    private static void tables(Call call, Path root, boolean change) {
        Path config = root.resolve("config");
        TopicConfigManager topics = new TopicConfigManager() {
            @Override
            public String configFilePath() {
                return config.resolve("topics.json").toString();
            }
        };
        SubscriptionGroupManager groups = new SubscriptionGroupManager() {
            @Override
            public String configFilePath() {
                return config.resolve("subscriptionGroup.json").toString();
            }
        };
        ConsumerOffsetManager offsets = new ConsumerOffsetManager() {
            @Override
            public String configFilePath() {
                return config.resolve("consumerOffset.json").toString();
            }
        };
        call.row("kind", "loaded", "topics", topics.load(), "groups", groups.load(), "offsets", offsets.load());
        if (change) {
            topics.getTopicConfigTable().put("added", new TopicConfig("added", 3, 5, 6));
            topics.getDataVersion().nextVersion();
            topics.persist();
            SubscriptionGroupConfig group = new SubscriptionGroupConfig();
            group.setGroupName("broker-group");
            group.setRetryMaxTimes(3);
            groups.getSubscriptionGroupTable().put("broker-group", group);
            groups.getDataVersion().nextVersion();
            groups.persist();
            offsets.getOffsetTable().put("added@broker-group", new ConcurrentHashMap<>(Map.of(2, 77L)));
            offsets.persist();
        }
        new TreeMap<>(topics.getTopicConfigTable()).forEach((name, topic) -> call.row(
                "kind", "topic", "name", name, "read", topic.getReadQueueNums(), "write", topic.getWriteQueueNums(),
                "perm", topic.getPerm(), "order", topic.isOrder(), "attributes", topic.getAttributes()));
        new TreeMap<>(groups.getSubscriptionGroupTable()).forEach((name, group) -> call.row(
                "kind", "group", "name", name, "retryMaxTimes", group.getRetryMaxTimes(),
                "retryQueueNums", group.getRetryQueueNums(), "consumeEnable", group.isConsumeEnable()));
        new TreeMap<>(offsets.getOffsetTable()).forEach((place, queues) -> call.row(
                "kind", "offsets", "place", place, "queues", new TreeMap<>(queues)));
    }

    private static void filter(Call call, String[] fields) throws Exception {
        Map<String, String> properties = new HashMap<>();
        for (String pair : List.of(fields).subList(1, fields.length)) {
            if (pair.isEmpty()) {
                continue; // no property
            }
            int equals = pair.indexOf('=');
            properties.put(pair.substring(0, equals), pair.substring(equals + 1));
        }
        Expression expression;
        try {
            expression = SelectorParser.parse(fields[0]);
        } catch (MQFilterException refused) {
            call.row("kind", "refused");
            return;
        }
        Object found;
        try {
            found = expression.evaluate(new EvaluationContext() {
                @Override
                public Object get(String name) {
                    return properties.get(name);
                }

                @Override
                public Map<String, Object> keyValues() {
                    return new HashMap<>(properties);
                }
            });
        } catch (Throwable failed) {
            call.row("kind", "failed", "error", failed.getClass().getSimpleName());
            return;
        }
        call.row("kind", "filtered", "value", found == null ? "null" : found.toString());
    }
}
