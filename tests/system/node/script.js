// A producer and two consumers of a client of Node.js that is JavaScript alone: publishing one by one and in batches, acknowledging, giving back, going on.
// Argument: host:port of a broker. What was seen is one line of JSON.
const { Producer, Consumer, logLevel } = require("pulsar-flex");

const topic = "persistent://public/default/node-" + process.argv[3];
const common = { topic, discoveryServers: [process.argv[2]], logLevel: logLevel.ERROR };

/** The messages that a consumer gets until `enough` says so. `act(context, seen)`: what it does with each. */
function consume(consumer, act, enough) {
  return new Promise((resolve, reject) => {
    const seen = [];
    const late = setTimeout(() => reject(new Error(`only ${JSON.stringify(seen)} came`)), 90000);
    consumer.run({
      autoAck: false,
      onMessage: async (context) => {
        seen.push({ text: context.message.toString(), properties: context.properties, redeliveries: context.redeliveryCount });
        await act(context, seen);
        if (enough(seen)) {
          clearTimeout(late);
          resolve(seen);
        }
      },
    }).catch(reject);
  });
}

async function main() {
  const out = {};
  const consumer = new Consumer({ ...common, subscription: "s", subType: Consumer.SUB_TYPES.SHARED, consumerName: "one" });
  await consumer.subscribe();
  const exclusive = { ...common, subscription: "e", subType: Consumer.SUB_TYPES.EXCLUSIVE, consumerName: "two" };
  const second = new Consumer(exclusive);
  await second.subscribe();
  const producer = new Producer({ ...common, producerAccessMode: Producer.ACCESS_MODES.SHARED });
  await producer.create();
  await producer.sendMessage({ payload: "alone", properties: { kind: "one" } });
  await producer.sendBatch({ messages: ["a", "b", "c"].map((payload) => ({ payload, properties: { kind: "batch" } })) });
  await producer.sendMessage({ payload: "last", properties: {} });
  out.first = await consume(consumer, ({ ack }, seen) => (seen.length === 1 ? ack() : undefined), (seen) => seen.length === 5);
  await consumer.unsubscribe();
  const cumulative = ({ ack }, seen) => (seen.length === 5 ? ack({ type: Consumer.ACK_TYPES.CUMULATIVE }) : undefined);
  out.second = (await consume(second, cumulative, (seen) => seen.length === 5)).map((one) => one.text);
  const refused = new Consumer({ ...exclusive, consumerName: "three" });
  out.refused = await refused.subscribe().then(() => "none", () => "refused");
  console.log(JSON.stringify(out));
  process.exit(0);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
