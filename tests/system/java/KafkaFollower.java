// A consumer that prints the value of each record, and at which leader epoch, until its input ends:
// KafkaFollower ADDRESSES TOPIC PARTITIONS [GROUP]. Without a group it reads the partitions from their beginning.
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

public class KafkaFollower {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("auto.commit.interval.ms", "500");
        settings.put("request.timeout.ms", "15000");
        settings.put("default.api.timeout.ms", "120000");
        settings.put("enable.auto.commit", arguments.length > 3 ? "true" : "false");
        if (arguments.length > 3) {
            settings.put("group.id", arguments[3]);
        }
        AtomicBoolean over = new AtomicBoolean();
        Thread input = new Thread(() -> {
            try {
                while (System.in.read() >= 0) { }
            } catch (java.io.IOException gone) { }
            over.set(true);
        });
        input.setDaemon(true);
        input.start();
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            if (arguments.length > 3) {
                consumer.subscribe(List.of(arguments[1]));
            } else {
                List<TopicPartition> parts = new ArrayList<>();
                for (int index = 0; index < Integer.parseInt(arguments[2]); index++) {
                    parts.add(new TopicPartition(arguments[1], index));
                }
                consumer.assign(parts);
                consumer.seekToBeginning(parts);
            }
            while (!over.get()) {
                StringBuilder said = new StringBuilder();
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    said.append(record.value()).append(' ').append(record.leaderEpoch().orElse(-1)).append('\n');
                }
                System.out.print(said);
                System.out.flush();
            }
        } catch (Exception error) {
            System.out.println("failed " + error);
        }
    }
}
