import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** RocketMQ's own client, told by lines on stdin what to do; it says on stdout what came of it. */
public class Peer {
    private final String nameServer;
    private final DefaultMQProducer producer;

    public static void main(String[] arguments) throws Exception {
        Peer peer = new Peer(arguments[0]);
        say("ready");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "send" -> peer.send(words[1], Integer.parseInt(words[2]), Integer.parseInt(words[3]));
                case "batch" -> peer.batch(words[1], Integer.parseInt(words[2]));
                case "consume" -> peer.consume(words[1], words[2]);
                default -> throw new IllegalArgumentException(line);
            }
        }
        System.exit(0);
    }

    private Peer(String nameServer) throws Exception {
        this.nameServer = nameServer;
        producer = new DefaultMQProducer("peers");
        producer.setNamesrvAddr(nameServer);
        producer.setVipChannelEnabled(false);
        producer.start();
    }

    /** Bodies of a size: those over 4,096 bytes are compressed by the client. */
    private void send(String topic, int count, int size) throws Exception {
        for (int number = 0; number < count; number++) {
            say("sent " + producer.send(message(topic, number, size)).getMsgId());
        }
    }

    private void batch(String topic, int count) throws Exception {
        List<Message> all = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            all.add(message(topic, number, 0));
        }
        say("sent " + producer.send(all).getMsgId());
    }

    private static Message message(String topic, int number, int size) {
        String body = number + "-grüße-" + "x".repeat(size);
        Message made = new Message(topic, "tag" + number % 2, "key" + number, body.getBytes(StandardCharsets.UTF_8));
        made.putUserProperty("city", "Łódź " + number);
        return made;
    }

    private void consume(String topic, String group) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setVipChannelEnabled(false);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt one : messages) {
                say("got " + one.getMsgId() + " " + one.getTags() + " " + one.getKeys() + " " + hex(one.getBody()) + " "
                        + hex(String.valueOf(one.getUserProperty("city")).getBytes(StandardCharsets.UTF_8)));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        say("consuming");
    }

    private static String hex(byte[] bytes) {
        return HexFormat.of().formatHex(bytes);
    }

    private static synchronized void say(String words) {
        System.out.println(words);
        System.out.flush();
    }
}
