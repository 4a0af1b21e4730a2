import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;

/** Writes and reads again by the official client of any age: `address compressions acks [name=value ...]`; prints "good COUNT" at the end. */
public class KafkaRoundTrip {
    static final int COUNT = 60;

    public static void main(String[] args) throws Exception {
        Properties base = new Properties();
        base.put("bootstrap.servers", args[0]);
        String prefix = args[1];
        boolean transactions = false;
        for (int i = 4; i < args.length; i++) {
            String[] pair = args[i].split("=", 2);
            if (pair[0].equals("transactions")) transactions = true;
            else base.put(pair[0], pair[1]);
        }
        int rounds = 0;
        for (String compression : args[2].split(",")) {
            for (String acks : args[3].split(",")) {
                round(base, prefix + "-" + compression + "-" + acks, compression, acks);
                rounds++;
            }
        }
        if (transactions) {
            transaction(base, prefix + "-transactions");
            rounds++;
        }
        System.out.println("good " + rounds);
    }

    static KafkaProducer<String, String> producer(Properties base, String compression, String acks) {
        Properties own = new Properties();
        own.putAll(base);
        own.put("acks", acks);
        own.put("compression.type", compression);
        own.put("linger.ms", "20");
        own.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        own.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        return new KafkaProducer<>(own);
    }

    static KafkaConsumer<String, String> consumer(Properties base, String group) {
        Properties own = new Properties();
        own.putAll(base);
        own.remove("transactional.id");
        own.remove("enable.idempotence");
        own.put("group.id", group);
        own.put("auto.offset.reset", "earliest");
        own.put("enable.auto.commit", "false");
        own.put("isolation.level", "read_committed");
        own.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        own.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        return new KafkaConsumer<>(own);
    }

    static void round(Properties base, String topic, String compression, String acks) throws Exception {
        KafkaProducer<String, String> made = producer(base, compression, acks);
        long before = System.currentTimeMillis();
        for (int i = 0; i < COUNT; i++) {
            made.send(new ProducerRecord<>(topic, "k" + i, i % 7 == 3 ? null : "v" + i));
        }
        made.flush();
        made.close();
        KafkaConsumer<String, String> reader = consumer(base, "g-" + topic);
        reader.subscribe(Collections.singletonList(topic));
        List<ConsumerRecord<String, String>> found = take(reader, COUNT);
        for (int i = 0; i < COUNT; i++) {
            ConsumerRecord<String, String> record = found.get(i);
            if (record.offset() != i || !("k" + i).equals(record.key()) || !Objects.equals(record.value(), i % 7 == 3 ? null : "v" + i)) {
                throw new AssertionError(topic + ": " + record);
            }
            if (record.timestamp() < before - 5000) throw new AssertionError("time " + record.timestamp());
        }
        reader.commitSync();
        if (committed(reader, new TopicPartition(topic, 0)) != COUNT) throw new AssertionError("not committed");
        reader.close();
    }

    static void transaction(Properties base, String topic) throws Exception {
        Properties own = new Properties();
        own.putAll(base);
        own.put("transactional.id", topic);
        KafkaProducer<String, String> made = producer(own, "none", "all");
        call(made, "initTransactions");
        for (boolean commit : new boolean[] {false, true}) {
            call(made, "beginTransaction");
            for (int i = 0; i < COUNT; i++) made.send(new ProducerRecord<>(topic, "k" + i, commit + "-" + i));
            if (commit) call(made, "commitTransaction");
            else {
                made.flush();
                call(made, "abortTransaction");
            }
        }
        made.close();
        KafkaConsumer<String, String> reader = consumer(base, "g-" + topic);
        reader.subscribe(Collections.singletonList(topic));
        List<ConsumerRecord<String, String>> found = take(reader, COUNT);
        for (int i = 0; i < COUNT; i++) {
            if (!found.get(i).value().equals("true-" + i)) throw new AssertionError(topic + ": " + found.get(i));
        }
        reader.close();
    }

    /** Clients before 0.11 do not have these. */
    static void call(KafkaProducer<String, String> made, String method) throws Exception {
        KafkaProducer.class.getMethod(method).invoke(made);
    }

    /** `committed(TopicPartition)` before 4.0, `committed(Set)` since 2.4. */
    @SuppressWarnings("unchecked")
    static long committed(KafkaConsumer<String, String> reader, TopicPartition part) throws Exception {
        try {
            return ((OffsetAndMetadata) KafkaConsumer.class.getMethod("committed", TopicPartition.class).invoke(reader, part)).offset();
        } catch (NoSuchMethodException error) {
            Object all = KafkaConsumer.class.getMethod("committed", Set.class).invoke(reader, Collections.singleton(part));
            return ((Map<TopicPartition, OffsetAndMetadata>) all).get(part).offset();
        }
    }

    /** `poll(long)` before 4.0, `poll(Duration)` since 2.0. */
    @SuppressWarnings("unchecked")
    static List<ConsumerRecord<String, String>> take(KafkaConsumer<String, String> reader, int count) throws Exception {
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        long end = System.currentTimeMillis() + 120_000;
        while (found.size() < count && System.currentTimeMillis() < end) {
            ConsumerRecords<String, String> some;
            try {
                some = (ConsumerRecords<String, String>) KafkaConsumer.class.getMethod("poll", Duration.class).invoke(reader, Duration.ofMillis(500));
            } catch (NoSuchMethodException error) {
                some = (ConsumerRecords<String, String>) KafkaConsumer.class.getMethod("poll", long.class).invoke(reader, 500L);
            }
            for (ConsumerRecord<String, String> record : some) found.add(record);
        }
        if (found.size() != count) throw new AssertionError(found.size() + " of " + count + " came");
        return found;
    }
}
