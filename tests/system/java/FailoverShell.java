import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.*;
import org.apache.pulsar.client.impl.AutoClusterFailover;

/**
 * A producer of the official Java client that sends numbers until its input ends, and prints each that is confirmed.
 * Arguments: topic, producer's name, service URL, and for the client's own failover a second service URL.
 */
public class FailoverShell {
    public static void main(String[] arguments) throws Exception {
        ClientBuilder builder = PulsarClient.builder().connectionTimeout(3, TimeUnit.SECONDS).operationTimeout(10, TimeUnit.SECONDS)
                .keepAliveInterval(5, TimeUnit.SECONDS);
        if (arguments.length > 3) {
            builder.serviceUrlProvider(AutoClusterFailover.builder()
                    .primary(arguments[2])
                    .secondary(Arrays.asList(arguments[3]))
                    .failoverDelay(1, TimeUnit.SECONDS)
                    .switchBackDelay(2, TimeUnit.SECONDS)
                    .checkInterval(500, TimeUnit.MILLISECONDS)
                    .build());
        } else {
            builder.serviceUrl(arguments[2]);
        }
        PulsarClient client = builder.build();
        Producer<byte[]> producer = client.newProducer()
                .topic(arguments[0])
                .producerName(arguments[1])
                .sendTimeout(0, TimeUnit.SECONDS)
                .enableBatching(false)
                .blockIfQueueFull(true)
                .create();
        for (int number = 0; System.in.available() == 0; number++) {
            int sent = number;
            producer.sendAsync(Integer.toString(number).getBytes(StandardCharsets.UTF_8)).thenAccept(id -> {
                synchronized (System.out) {
                    System.out.println(sent);
                    System.out.flush();
                }
            });
            Thread.sleep(20);
        }
        producer.flush();
        System.out.println("end");
        client.close();
        System.exit(0);
    }
}
