import com.google.gson.Gson;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.api.*;
import org.apache.pulsar.client.api.schema.GenericRecord;

/** Scripts by the official Java client; what each saw, as plain values, is one line of JSON: {case: result or "error: class"}. */
public class ClientCases {
    interface Case {
        Object run(PulsarClient client, PulsarAdmin admin) throws Exception;
    }

    public static class Point {
        public int x;
        public String name;
    }

    static final int PATIENCE_S = 60;  // for what must come, from either server, on a machine that does other things too

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String text(Message<byte[]> message) {
        return new String(message.getData(), StandardCharsets.UTF_8);
    }

    static List<String> drain(Consumer<byte[]> consumer, int count) throws Exception {
        List<String> out = new ArrayList<>();
        while (out.size() < count) {
            Message<byte[]> message = consumer.receive(PATIENCE_S, TimeUnit.SECONDS);
            if (message == null) {
                out.add("nothing came");
                return out;
            }
            out.add(text(message));
            consumer.acknowledge(message);
        }
        return out;
    }

    interface Fact {
        boolean holds() throws Exception;
    }

    /** Waits until it holds; false: it never did. */
    static boolean until(Fact fact) throws Exception {
        for (long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S); !fact.holds(); Thread.sleep(50)) {
            if (System.nanoTime() > deadline) {
                return false;
            }
        }
        return true;
    }

    /** What each of them gets of so many messages. */
    static List<List<String>> shares(List<Consumer<byte[]>> consumers, int count) throws Exception {
        List<List<String>> out = new ArrayList<>();
        consumers.forEach(consumer -> out.add(new ArrayList<>()));
        until(() -> {
            for (int i = 0; i < consumers.size(); i++) {
                for (Message<byte[]> m; (m = consumers.get(i).receive(50, TimeUnit.MILLISECONDS)) != null; ) {
                    out.get(i).add(text(m) + "/" + m.getRedeliveryCount());
                    consumers.get(i).acknowledge(m);
                }
            }
            return out.stream().mapToInt(List::size).sum() >= count;
        });
        out.forEach(Collections::sort);
        return out;
    }

    static String failure(Throwable error) {
        while (error.getCause() != null && !(error instanceof PulsarClientException)) {
            error = error.getCause();
        }
        return error.getClass().getSimpleName();
    }

    static Object refused(java.util.concurrent.Callable<?> call) {
        try {
            call.call();
            return "none";
        } catch (Exception error) {
            return failure(error);
        }
    }

    static final Map<String, Case> CASES = new TreeMap<>();

    static {
        CASES.put("batches and receipts", (client, admin) -> {
            Producer<byte[]> producer = client.newProducer().topic("j-batch").enableBatching(true).batchingMaxPublishDelay(50, TimeUnit.MILLISECONDS).create();
            Consumer<byte[]> consumer = client.newConsumer().topic("j-batch").subscriptionName("s").isAckReceiptEnabled(true)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).enableBatchIndexAcknowledgment(true).subscribe();
            List<CompletableFuture<MessageId>> sent = new ArrayList<>();
            for (int i = 0; i < 10; i++) {
                sent.add(producer.newMessage().key("k" + i % 3).property("n", "" + i).value(bytes("m" + i)).sendAsync());
            }
            producer.flush();
            List<String> first = new ArrayList<>();
            for (int i = 0; i < 10; i++) {
                Message<byte[]> message = consumer.receive(PATIENCE_S, TimeUnit.SECONDS);
                first.add(text(message) + message.getKey() + message.getProperty("n"));
                if (i % 2 == 0) {
                    consumer.acknowledgeAsync(message).get(PATIENCE_S, TimeUnit.SECONDS);
                }
            }
            consumer.close();
            consumer = client.newConsumer().topic("j-batch").subscriptionName("s").enableBatchIndexAcknowledgment(true).subscribe();
            return Arrays.asList(first, drain(consumer, 5));
        });
        CASES.put("chunks", (client, admin) -> {
            Producer<byte[]> producer = client.newProducer().topic("j-chunk").enableBatching(false).enableChunking(true).chunkMaxMessageSize(10_000).create();
            Consumer<byte[]> consumer = client.newConsumer().topic("j-chunk").subscriptionName("s").subscribe();
            byte[] large = new byte[123_456];
            Arrays.fill(large, (byte) 'c');
            producer.send(large);
            producer.send(bytes("small"));
            Message<byte[]> message = consumer.receive(PATIENCE_S, TimeUnit.SECONDS);
            consumer.acknowledge(message);
            return Arrays.asList(message.getData().length, drain(consumer, 1));
        });
        CASES.put("compressions", (client, admin) -> {
            List<Object> out = new ArrayList<>();
            Consumer<byte[]> consumer = client.newConsumer().topic("j-zip").subscriptionName("s").subscribe();
            for (CompressionType kind : CompressionType.values()) {
                Producer<byte[]> producer = client.newProducer().topic("j-zip").compressionType(kind).create();
                producer.send(bytes("zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz" + kind));
                producer.close();
                out.addAll(drain(consumer, 1));
            }
            return out;
        });
        CASES.put("dead letters", (client, admin) -> {
            Consumer<byte[]> consumer = client.newConsumer().topic("j-dead").subscriptionName("s").subscriptionType(SubscriptionType.Shared)
                .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS)
                .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(2).deadLetterTopic("j-dead-dlq").initialSubscriptionName("held").build()).subscribe();
            Producer<byte[]> producer = client.newProducer().topic("j-dead").enableBatching(false).create();
            producer.send(bytes("bad"));
            List<Integer> counts = new ArrayList<>();
            for (int i = 0; i < 3; i++) {
                Message<byte[]> message = consumer.receive(PATIENCE_S, TimeUnit.SECONDS);
                counts.add(message.getRedeliveryCount());
                consumer.negativeAcknowledge(message);
            }
            Message<byte[]> none = consumer.receive(1, TimeUnit.SECONDS);
            Consumer<byte[]> dead = client.newConsumer().topic("j-dead-dlq").subscriptionName("held").subscribe();
            return Arrays.asList(counts, none == null, drain(dead, 1));
        });
        CASES.put("delayed", (client, admin) -> {
            Consumer<byte[]> consumer = client.newConsumer().topic("j-late").subscriptionName("s").subscriptionType(SubscriptionType.Shared).subscribe();
            Producer<byte[]> producer = client.newProducer().topic("j-late").create();
            List<String> seen = List.of();
            // Where the delay was over before the other message was there, nothing is shown: again, with a longer one.
            for (int seconds : new int[] {3, 15, 50}) {
                producer.newMessage().value(bytes("late")).deliverAfter(seconds, TimeUnit.SECONDS).send();
                producer.newMessage().value(bytes("now")).send();
                seen = drain(consumer, 2);
                if (seen.get(0).equals("now")) {
                    break;
                }
            }
            return seen;
        });
        CASES.put("exclusive producers", (client, admin) -> {
            Producer<byte[]> first = client.newProducer().topic("j-excl").accessMode(ProducerAccessMode.Exclusive).create();
            List<Object> out = new ArrayList<>();
            out.add(first.getClass().getSimpleName());
            for (ProducerAccessMode mode : List.of(ProducerAccessMode.Shared, ProducerAccessMode.Exclusive)) {
                out.add(refused(() -> client.newProducer().topic("j-excl").accessMode(mode).create()));
            }
            CompletableFuture<Producer<byte[]>> waits = client.newProducer().topic("j-excl").accessMode(ProducerAccessMode.WaitForExclusive).sendTimeout(10, TimeUnit.SECONDS).createAsync();
            out.add(waits.isDone());
            first.close();
            Producer<byte[]> second = waits.get(PATIENCE_S, TimeUnit.SECONDS);
            second.send(bytes("x"));
            Producer<byte[]> third = client.newProducer().topic("j-excl").accessMode(ProducerAccessMode.ExclusiveWithFencing).create();
            out.add(!refused(() -> second.send(bytes("y"))).equals("none"));  // Pulsar lets it wait for its time-out
            third.send(bytes("z"));
            return out;
        });
        CASES.put("failover", (client, admin) -> {
            ConcurrentLinkedQueue<String> news = new ConcurrentLinkedQueue<>();
            ConsumerEventListener listener = new ConsumerEventListener() {
                public void becameActive(Consumer<?> consumer, int partition) {
                    news.add(consumer.getConsumerName() + " active");
                }

                public void becameInactive(Consumer<?> consumer, int partition) {
                    news.add(consumer.getConsumerName() + " inactive");
                }
            };
            admin.topics().createPartitionedTopic("public/default/j-fail", 1);
            List<Consumer<byte[]>> consumers = new ArrayList<>();
            for (String name : List.of("a", "b")) {
                consumers.add(client.newConsumer().topic("j-fail").subscriptionName("s").consumerName(name).consumerEventListener(listener)
                    .subscriptionType(SubscriptionType.Failover).subscribe());
            }
            Producer<byte[]> producer = client.newProducer().topic("j-fail").create();
            producer.send(bytes("one"));
            List<String> one = drain(consumers.get(0), 1);
            consumers.get(0).close();
            producer.send(bytes("two"));
            List<String> two = drain(consumers.get(1), 1);
            return Arrays.asList(one, two, until(() -> news.contains("b active")));
        });
        CASES.put("key shared", (client, admin) -> {
            List<Consumer<byte[]>> consumers = new ArrayList<>();
            for (int i = 0; i < 2; i++) {
                consumers.add(client.newConsumer().topic("j-keys").subscriptionName("s").subscriptionType(SubscriptionType.Key_Shared)
                    .keySharedPolicy(KeySharedPolicy.stickyHashRange().ranges(Range.of(i * 32768, i * 32768 + 32767))).subscribe());
            }
            Producer<byte[]> producer = client.newProducer().topic("j-keys").batcherBuilder(BatcherBuilder.KEY_BASED).create();
            for (int i = 0; i < 40; i++) {
                producer.newMessage().key("key" + i % 8).value(bytes("v" + i)).sendAsync();
            }
            producer.flush();
            return shares(consumers, 40);
        });
        CASES.put("last message ids and seek", (client, admin) -> {
            admin.topics().createPartitionedTopic("public/default/j-seek", 2);
            Producer<byte[]> producer = client.newProducer().topic("j-seek").messageRoutingMode(MessageRoutingMode.SinglePartition).enableBatching(false).create();
            Consumer<byte[]> consumer = client.newConsumer().topic("j-seek").subscriptionName("s").subscribe();
            long between = 0;
            for (int i = 0; i < 6; i++) {
                if (i == 3) {
                    Thread.sleep(20);
                    between = System.currentTimeMillis();
                    Thread.sleep(20);
                }
                producer.send(bytes("m" + i));
            }
            List<String> first = drain(consumer, 6);
            consumer.seek(between);
            List<String> again = drain(consumer, 3);
            consumer.seek(MessageId.earliest);
            return Arrays.asList(first, again, drain(consumer, 6), consumer.getLastMessageIds().size());
        });
        CASES.put("partitions grow", (client, admin) -> {
            admin.topics().createPartitionedTopic("public/default/j-grow", 1);
            Consumer<byte[]> consumer = client.newConsumer().topic("j-grow").subscriptionName("s").autoUpdatePartitionsInterval(1, TimeUnit.SECONDS).subscribe();
            Producer<byte[]> producer = client.newProducer().topic("j-grow").autoUpdatePartitionsInterval(1, TimeUnit.SECONDS).enableBatching(false).create();
            admin.topics().updatePartitionedTopic("public/default/j-grow", 3);
            TreeSet<String> topics = new TreeSet<>();
            until(() -> {
                producer.send(bytes("x"));
                topics.add(consumer.receive(PATIENCE_S, TimeUnit.SECONDS).getTopicName());
                return topics.size() == 3;
            });
            return topics;
        });
        CASES.put("patterns", (client, admin) -> {
            Consumer<byte[]> consumer = client.newConsumer().topicsPattern(Pattern.compile("public/default/j-pat-.*")).subscriptionName("s")
                .patternAutoDiscoveryPeriod(1, TimeUnit.SECONDS).subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
            for (String name : List.of("a", "b")) {
                client.newProducer().topic("j-pat-" + name).create().send(bytes(name));
            }
            List<String> out = drain(consumer, 2);
            Collections.sort(out);
            return out;
        });
        CASES.put("reader", (client, admin) -> {
            Producer<byte[]> producer = client.newProducer().topic("j-read").enableBatching(true).create();
            List<MessageId> ids = new ArrayList<>();
            for (int i = 0; i < 5; i++) {
                ids.add(producer.send(bytes("r" + i)));
            }
            List<Object> out = new ArrayList<>();
            for (boolean inclusive : new boolean[] {false, true}) {
                ReaderBuilder<byte[]> builder = client.newReader().topic("j-read").startMessageId(ids.get(2));
                Reader<byte[]> reader = (inclusive ? builder.startMessageIdInclusive() : builder).create();
                List<String> seen = new ArrayList<>();
                while (reader.hasMessageAvailable()) {
                    seen.add(text(reader.readNext(PATIENCE_S, TimeUnit.SECONDS)));
                }
                out.add(seen);
                reader.close();
            }
            out.add(client.newReader().topic("j-read").startMessageId(MessageId.latest).create().hasMessageAvailable());
            return out;
        });
        CASES.put("retry letters", (client, admin) -> {
            Consumer<byte[]> consumer = client.newConsumer().topic("j-retry").subscriptionName("s").subscriptionType(SubscriptionType.Shared).enableRetry(true)
                .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(2).build()).subscribe();
            client.newProducer().topic("j-retry").create().send(bytes("again"));
            List<String> out = new ArrayList<>();
            for (int i = 0; i < 3; i++) {
                Message<byte[]> message = consumer.receive(PATIENCE_S, TimeUnit.SECONDS);
                out.add(text(message) + message.getProperty("RECONSUMETIMES"));
                consumer.reconsumeLater(message, 100, TimeUnit.MILLISECONDS);
            }
            Consumer<byte[]> dead = client.newConsumer().topic("j-retry-s-DLQ").subscriptionName("d")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
            out.addAll(drain(dead, 1));
            return out;
        });
        CASES.put("schemas", (client, admin) -> {
            List<Object> out = new ArrayList<>();
            for (Schema<Point> schema : List.of(Schema.AVRO(Point.class), Schema.JSON(Point.class))) {
                String topic = "j-schema-" + schema.getSchemaInfo().getType();
                Producer<Point> producer = client.newProducer(schema).topic(topic).create();
                Consumer<GenericRecord> any = client.newConsumer(Schema.AUTO_CONSUME()).topic(topic).subscriptionName("any").subscribe();
                Consumer<Point> typed = client.newConsumer(schema).topic(topic).subscriptionName("typed").subscribe();
                Point point = new Point();
                point.x = 7;
                point.name = "seven";
                producer.send(point);
                GenericRecord record = any.receive(PATIENCE_S, TimeUnit.SECONDS).getValue();
                out.add(record.getField("x") + " " + record.getField("name"));
                out.add(typed.receive(PATIENCE_S, TimeUnit.SECONDS).getValue().name);
                out.add(refused(() -> client.newProducer(Schema.STRING).topic(topic).create()));
                out.add(admin.schemas().getSchemaInfo("public/default/" + topic).getType().name());
            }
            return out;
        });
        CASES.put("table view", (client, admin) -> {
            Producer<byte[]> producer = client.newProducer().topic("j-table").create();
            for (String pair : List.of("a=1", "b=2", "a=3")) {
                producer.newMessage().key(pair.substring(0, 1)).value(bytes(pair)).send();
            }
            TableView<byte[]> view = client.newTableView().topic("j-table").create();
            TreeMap<String, String> out = new TreeMap<>();
            // The view may be given out before it has read what was there: seen to be empty, or without the last value, on a busy machine.
            until(() -> {
                view.forEach((key, value) -> out.put(key, new String(value, StandardCharsets.UTF_8)));
                return out.size() == 2 && "a=3".equals(out.get("a"));
            });
            return out;
        });
        CASES.put("terminated", (client, admin) -> {
            Producer<byte[]> producer = client.newProducer().topic("j-end").create();
            CompletableFuture<Boolean> ended = new CompletableFuture<>();
            Consumer<byte[]> consumer = client.newConsumer().topic("j-end").subscriptionName("s").subscribe();
            producer.send(bytes("last"));
            admin.topics().terminateTopic("public/default/j-end");
            Object error = refused(() -> producer.send(bytes("more")));
            List<String> seen = drain(consumer, 1);
            return Arrays.asList(error, seen, until(consumer::hasReachedEndOfTopic));
        });
        CASES.put("unload under load", (client, admin) -> {
            Producer<byte[]> producer = client.newProducer().topic("j-move").enableBatching(false).maxPendingMessages(2000).sendTimeout(PATIENCE_S, TimeUnit.SECONDS).create();
            Consumer<byte[]> consumer = client.newConsumer().topic("j-move").subscriptionName("s").subscribe();
            List<CompletableFuture<MessageId>> sent = new ArrayList<>();
            for (int i = 0; i < 1000; i++) {
                sent.add(producer.sendAsync(bytes("" + i)));
                if (i % 250 == 100) {
                    admin.topics().unload("public/default/j-move");
                }
            }
            for (CompletableFuture<MessageId> one : sent) {
                one.get(PATIENCE_S, TimeUnit.SECONDS);
            }
            TreeSet<Integer> seen = new TreeSet<>();
            while (seen.size() < 1000) {
                Message<byte[]> message = consumer.receive(PATIENCE_S, TimeUnit.SECONDS);
                if (message == null) {
                    break;
                }
                seen.add(Integer.parseInt(text(message)));
                consumer.acknowledge(message);
            }
            return seen.size();
        });
        CASES.put("unacked", (client, admin) -> {
            Consumer<byte[]> consumer = client.newConsumer().topic("j-ack").subscriptionName("s").subscriptionType(SubscriptionType.Shared)
                .ackTimeout(1, TimeUnit.SECONDS).subscribe();
            client.newProducer().topic("j-ack").create().send(bytes("slow"));
            Message<byte[]> first = consumer.receive(PATIENCE_S, TimeUnit.SECONDS);
            Message<byte[]> second = consumer.receive(PATIENCE_S, TimeUnit.SECONDS);
            consumer.acknowledge(second);
            return Arrays.asList(first.getRedeliveryCount(), second.getRedeliveryCount() > 0);
        });
    }

    public static void main(String[] arguments) throws Exception {
        TreeMap<String, Object> out = new TreeMap<>();
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).operationTimeout(PATIENCE_S, TimeUnit.SECONDS).build();
            PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(arguments[1]).build()) {
            for (Map.Entry<String, Case> one : CASES.entrySet()) {
                try {
                    out.put(one.getKey(), one.getValue().run(client, admin));
                } catch (Throwable error) {
                    out.put(one.getKey(), "error: " + error);
                }
            }
        }
        System.out.println(new Gson().toJson(out));
        System.exit(0);
    }
}
