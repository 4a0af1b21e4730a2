import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;

/** Reads one command a line, and answers each with one line: "ok ..." or "error CLASS text". The official client's transactions, for a test to drive. */
public class TransactionShell {
    private static final Map<String, Transaction> TXNS = new LinkedHashMap<>();
    private static final Map<String, Producer<String>> PRODUCERS = new LinkedHashMap<>();
    private static final Map<String, Consumer<String>> CONSUMERS = new LinkedHashMap<>();
    private static final Map<String, Message<String>> MESSAGES = new LinkedHashMap<>();
    private static final Map<String, List<CompletableFuture<?>>> WAITING = new LinkedHashMap<>();

    public static void main(String[] args) throws Exception {
        PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).enableTransaction(true).operationTimeout(60, TimeUnit.SECONDS).build();
        System.out.println("ok ready");
        java.io.BufferedReader in = new java.io.BufferedReader(new java.io.InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            try {
                System.out.println("ok " + run(client, line.split(" ")));
            } catch (Throwable error) {
                Throwable cause = error;
                while (cause.getCause() != null && (cause instanceof java.util.concurrent.ExecutionException || cause instanceof java.util.concurrent.CompletionException)) {
                    cause = cause.getCause();
                }
                System.out.println("error " + cause.getClass().getSimpleName() + " " + String.valueOf(cause.getMessage()).replace('\n', ' '));
            }
        }
        client.close();
    }

    private static Producer<String> producer(PulsarClient client, String topic) throws Exception {
        if (!PRODUCERS.containsKey(topic)) {
            PRODUCERS.put(topic, client.newProducer(Schema.STRING).topic(topic).sendTimeout(0, TimeUnit.SECONDS)
                .enableBatching(!topic.contains("single")).batchingMaxPublishDelay(1, TimeUnit.MILLISECONDS).create());
        }
        return PRODUCERS.get(topic);
    }

    private static String run(PulsarClient client, String[] words) throws Exception {
        switch (words[0]) {
            case "begin": { // begin NAME TTL_MS
                Transaction txn = client.newTransaction().withTransactionTimeout(Long.parseLong(words[2]), TimeUnit.MILLISECONDS).build().get();
                TXNS.put(words[1], txn);
                return txn.getTxnID().getMostSigBits() + " " + txn.getTxnID().getLeastSigBits();
            }
            case "send": { // send NAME|- TOPIC TEXT...
                List<CompletableFuture<?>> sent = new ArrayList<>();
                for (int i = 3; i < words.length; i++) {
                    Producer<String> producer = producer(client, words[2]);
                    sent.add((words[1].equals("-") ? producer.newMessage() : producer.newMessage(TXNS.get(words[1]))).value(words[i]).sendAsync());
                    if (sent.size() == 1) {
                        // The client asks for the topic to be added to the transaction first, and sends what waited for that the last one first.
                        sent.get(0).get(90, TimeUnit.SECONDS);
                    }
                }
                CompletableFuture.allOf(sent.toArray(new CompletableFuture[0])).get(90, TimeUnit.SECONDS);
                return sent.size() + " " + sent.get(sent.size() - 1).get();
            }
            case "commit":
                TXNS.get(words[1]).commit().get(90, TimeUnit.SECONDS);
                return "";
            case "abort":
                TXNS.get(words[1]).abort().get(90, TimeUnit.SECONDS);
                return "";
            case "subscribe": // subscribe TOPIC SUBSCRIPTION TYPE
                CONSUMERS.put(words[1] + " " + words[2], client.newConsumer(Schema.STRING).topic(words[1]).subscriptionName(words[2])
                    .subscriptionType(SubscriptionType.valueOf(words[3])).enableBatchIndexAcknowledgment(true).isAckReceiptEnabled(true)
                    .acknowledgmentGroupTime(0, TimeUnit.MILLISECONDS).subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe());
                return "";
            case "receive": { // receive TOPIC SUBSCRIPTION COUNT WAIT_MS
                Consumer<String> consumer = CONSUMERS.get(words[1] + " " + words[2]);
                StringBuilder got = new StringBuilder();
                for (int i = 0; i < Integer.parseInt(words[3]); i++) {
                    Message<String> message = consumer.receive(Integer.parseInt(words[4]), TimeUnit.MILLISECONDS);
                    if (message == null) {
                        break;
                    }
                    MESSAGES.put(message.getValue(), message);
                    got.append(message.getValue()).append(' ');
                }
                return got.toString().trim();
            }
            case "ack": // ack NAME|- TOPIC SUBSCRIPTION TEXT...
                for (int i = 4; i < words.length; i++) {
                    Consumer<String> consumer = CONSUMERS.get(words[2] + " " + words[3]);
                    MessageId id = MESSAGES.get(words[i]).getMessageId();
                    (words[1].equals("-") ? consumer.acknowledgeAsync(id) : consumer.acknowledgeAsync(id, TXNS.get(words[1]))).get(90, TimeUnit.SECONDS);
                }
                return "";
            case "ack-upto": { // ack-upto NAME TOPIC SUBSCRIPTION TEXT
                Consumer<String> consumer = CONSUMERS.get(words[2] + " " + words[3]);
                consumer.acknowledgeCumulativeAsync(MESSAGES.get(words[4]).getMessageId(), TXNS.get(words[1])).get(90, TimeUnit.SECONDS);
                return "";
            }
            case "close": // close TOPIC SUBSCRIPTION
                CONSUMERS.remove(words[1] + " " + words[2]).close();
                return "";
            case "state":
                return TXNS.get(words[1]).getState().toString();
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }
}
