// go-nsq, as its documentation shows. A job and an nsqd's address are its arguments.
package main

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"os"
	"strconv"
	"time"

	nsq "github.com/nsqio/go-nsq"
)

const topic = "bench#ephemeral"

var body = bytes.Repeat([]byte("x"), 200)

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func consume(address string) {
	config := nsq.NewConfig()
	config.MaxInFlight = 2500
	consumer, err := nsq.NewConsumer("bench", "bench", config)
	check(err)
	consumer.SetLoggerLevel(nsq.LogLevelError)
	consumer.AddConcurrentHandlers(nsq.HandlerFunc(func(*nsq.Message) error { return nil }), 100)
	check(consumer.ConnectToNSQD(address))
	<-consumer.StopChan
}

func latency(address string) {
	config := nsq.NewConfig()
	config.MaxInFlight = 100
	consumer, err := nsq.NewConsumer("bench", "bench", config)
	check(err)
	consumer.SetLoggerLevel(nsq.LogLevelError)
	consumer.AddHandler(nsq.HandlerFunc(func(message *nsq.Message) error {
		sent, err := strconv.ParseInt(string(message.Body), 10, 64)
		check(err)
		fmt.Println(float64(time.Now().UnixNano()-sent) / 1e6)
		return nil
	}))
	check(consumer.ConnectToNSQD(address))
	<-consumer.StopChan
}

func producer(address string) *nsq.Producer {
	made, err := nsq.NewProducer(address, nsq.NewConfig())
	check(err)
	made.SetLogger(log.New(io.Discard, "", 0), nsq.LogLevelError)
	return made
}

func sync(address string) {
	to := producer(address)
	for {
		check(to.Publish(topic, body))
	}
}

// One goroutine, 100 answers awaited at a time.
func pipelined(address string) {
	to := producer(address)
	done := make(chan *nsq.ProducerTransaction, 100)
	for i := 0; i < 100; i++ {
		check(to.PublishAsync(topic, body, done))
	}
	for answer := range done {
		check(answer.Error)
		check(to.PublishAsync(topic, body, done))
	}
}

func mpub(address string) {
	to := producer(address)
	bodies := make([][]byte, 500)
	for i := range bodies {
		bodies[i] = body
	}
	for {
		check(to.MultiPublish(topic, bodies))
	}
}

func main() {
	jobs := map[string]func(string){"consume": consume, "latency": latency, "sync": sync, "pipelined": pipelined, "mpub": mpub}
	jobs[os.Args[1]](os.Args[2])
}
