// A user's program: `publisher URL TOPIC [NAME]` publishes numbers, one after the other, until it reads a line. It
// prints how often it had to ask for its producer, how many messages are confirmed, and, at its end, how many it sent.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	client, err := pulsar.NewClient(pulsar.ClientOptions{URL: os.Args[1]})
	must(err)
	options := pulsar.ProducerOptions{Topic: os.Args[2], SendTimeout: -1}
	if len(os.Args) > 3 {
		options.Name = os.Args[3]
	}
	producer, err := client.CreateProducer(options)
	tries := 1
	for ; err != nil && tries < 10; tries++ {
		producer, err = client.CreateProducer(options)
	}
	must(err)
	fmt.Println("tries", tries)
	told := make(chan bool)
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		close(told)
	}()
	for n := 0; ; n++ {
		select {
		case <-told:
			fmt.Println("sent", n)
			producer.Close()
			client.Close()
			return
		case <-time.After(5 * time.Millisecond):
		}
		_, err := producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: []byte(strconv.Itoa(n))})
		must(err)
		fmt.Println(n + 1)
	}
}
