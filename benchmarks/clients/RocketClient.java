import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Semaphore;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** RocketMQ's own client, as its documentation shows it. */
public class RocketClient {
    private static final byte[] BODY = "x".repeat(200).getBytes();

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[2];
        if (arguments[0].equals("pull")) {
            consume(arguments[1], topic);
            return;
        }
        DefaultMQProducer producer = new DefaultMQProducer("bench");
        producer.setNamesrvAddr(arguments[1]);
        producer.setVipChannelEnabled(false);
        producer.start();
        switch (arguments[0]) {
            case "one" -> {
                while (true) {
                    producer.send(new Message(topic, BODY));
                }
            }
            case "many" -> many(producer, topic);
            case "batch" -> {
                while (true) {
                    List<Message> all = new ArrayList<>();
                    for (int number = 0; number < 100; number++) {
                        all.add(new Message(topic, BODY));
                    }
                    producer.send(all);
                }
            }
            default -> throw new IllegalArgumentException(arguments[0]);
        }
    }

    private static void many(DefaultMQProducer producer, String topic) throws Exception {
        Semaphore free = new Semaphore(64);
        while (true) {
            free.acquire();
            producer.send(new Message(topic, BODY), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    free.release();
                }

                @Override
                public void onException(Throwable error) {
                    error.printStackTrace();
                    System.exit(1);
                }
            });
        }
    }

    private static void consume(String nameServer, String topic) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(topic + "|bench");
        consumer.setNamesrvAddr(nameServer);
        consumer.setVipChannelEnabled(false);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPersistConsumerOffsetInterval(50);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        consumer.start();
    }
}
