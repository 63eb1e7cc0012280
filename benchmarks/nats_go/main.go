// The contender nats.go of the benchmarks: it speaks the protocol of benchmarks/worker.py.
// `python -m benchmarks --go PROGRAM` starts it.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/synadia-io/orbit.go/jetstreamext"
)

type job struct {
	Row, Stream, Subject, Consumer string
	Count, Size, Window, Batch     int
	Options                        map[string]any
}

type sample struct {
	Count   int      `json:"count"`
	Seconds float64  `json:"seconds"`
	CPU     float64  `json:"cpu"`
	Server  *float64 `json:"server"`
	P50     *float64 `json:"p50"`
	P99     *float64 `json:"p99"`
	P999    *float64 `json:"p999"`
}

var ctx = context.Background()

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func cpu() float64 {
	var u syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return float64(u.Utime.Sec+u.Stime.Sec) + float64(u.Utime.Usec+u.Stime.Usec)/1e6
}

func server() *float64 {
	files, _ := filepath.Glob("/proc/" + os.Getenv("BENCHMARKS_SERVER_PID") + "/task/*/schedstat")
	if len(files) == 0 {
		return nil
	}
	sum := 0.0
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err == nil {
			n, _ := strconv.ParseFloat(strings.Fields(string(b))[0], 64)
			sum += n / 1e9
		}
	}
	return &sum
}

func measured(count int, work func()) sample {
	runtime.GC()
	s0, c0, t := server(), cpu(), time.Now()
	work()
	out := sample{Count: count, Seconds: time.Since(t).Seconds(), CPU: cpu() - c0}
	if s0 != nil {
		d := *server() - *s0
		out.Server = &d
	}
	return out
}

func (s *sample) latencies(times []time.Duration) {
	sort.Slice(times, func(i, k int) bool { return times[i] < times[k] })
	for _, each := range []struct {
		rank, calls int
		to          **float64
	}{{500, 1, &s.P50}, {990, 100, &s.P99}, {999, 1000, &s.P999}} {
		if len(times) >= each.calls {
			v := times[len(times)*each.rank/1000].Seconds()
			*each.to = &v
		}
	}
}

func timed(n int, f func(int)) sample {
	times := make([]time.Duration, n)
	s := measured(n, func() {
		for i := range times {
			t := time.Now()
			f(i)
			times[i] = time.Since(t)
		}
	})
	s.latencies(times)
	return s
}

func do(nc *nats.Conn, j job) sample {
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(j.Window))
	check(err)
	payload := []byte(strings.Repeat("0123456789abcdef", j.Size/16+1)[:j.Size])
	key := func(i int) string { return "k" + strconv.Itoa(i) }
	consumer := func() jetstream.Consumer {
		c, err := js.Consumer(ctx, j.Stream, j.Consumer)
		check(err)
		return c
	}
	switch j.Row {
	case "publish":
		return timed(j.Count, func(int) { _, err := js.Publish(ctx, j.Subject, payload); check(err) })
	case "publish_many", "publisher":
		return measured(j.Count, func() {
			acks := make([]jetstream.PubAckFuture, 0, j.Count)
			for i := 0; i < j.Count; i++ {
				a, err := js.PublishAsync(j.Subject, payload, jetstream.WithStallWait(30*time.Second))
				check(err)
				acks = append(acks, a)
			}
			<-js.PublishAsyncComplete()
			for _, a := range acks {
				select {
				case <-a.Ok():
				case err := <-a.Err():
					check(err)
				}
			}
		})
	case "atomic":
		return measured(j.Count, func() {
			for left := j.Count; left > 0; {
				size := min(j.Batch, left)
				b, err := jetstreamext.NewBatchPublisher(js)
				check(err)
				for i := 0; i < size-1; i++ {
					check(b.Add(j.Subject, payload))
				}
				_, err = b.Commit(ctx, j.Subject, payload)
				check(err)
				left -= size
			}
		})
	case "fast_ingest":
		return measured(j.Count, func() {
			f, err := jetstreamext.NewFastPublisher(js, jetstreamext.FastPublishFlowControl{Flow: 500, MaxOutstandingAcks: 2, AckTimeout: 5 * time.Second})
			check(err)
			for i := 0; i < j.Count-1; i++ {
				_, err := f.Add(j.Subject, payload)
				check(err)
			}
			_, err = f.Commit(ctx, j.Subject, payload)
			check(err)
		})
	case "fetch", "fetch_ack":
		c := consumer()
		return measured(j.Count, func() {
			for got := 0; got < j.Count; {
				b, err := c.Fetch(min(j.Batch, j.Count-got), jetstream.FetchMaxWait(30*time.Second))
				check(err)
				for m := range b.Messages() {
					got++
					if j.Row == "fetch_ack" {
						check(m.Ack())
					}
				}
				check(b.Error())
			}
			check(nc.Flush())
		})
	case "consume", "consume_ack":
		c := consumer()
		return measured(j.Count, func() {
			it, err := c.Messages(jetstream.PullMaxMessages(j.Batch))
			check(err)
			for got := 0; got < j.Count; got++ {
				m, err := it.Next()
				check(err)
				if j.Row == "consume_ack" {
					check(m.Ack())
				}
			}
			it.Stop()
			check(nc.Flush())
		})
	case "ordered":
		return measured(j.Count, func() {
			c, err := js.OrderedConsumer(ctx, j.Stream, jetstream.OrderedConsumerConfig{})
			check(err)
			it, err := c.Messages()
			check(err)
			for got := 0; got < j.Count; got++ {
				_, err := it.Next()
				check(err)
			}
			it.Stop()
		})
	case "scan":
		return measured(j.Count, func() {
			for got, seq := 0, uint64(1); got < j.Count; {
				msgs, err := jetstreamext.GetBatch(ctx, js, j.Stream, min(j.Batch, j.Count-got), jetstreamext.GetBatchSeq(seq))
				check(err)
				for m, err := range msgs {
					check(err)
					got++
					seq = m.Sequence + 1
				}
			}
		})
	case "get_last":
		s, err := js.Stream(ctx, j.Stream)
		check(err)
		return timed(j.Count, func(int) { _, err := s.GetLastMsgForSubject(ctx, j.Subject); check(err) })
	case "kv_put", "kv_get":
		kv, err := js.KeyValue(ctx, "BENCH")
		check(err)
		put := func(i int) { _, err := kv.Put(ctx, key(i), payload); check(err) }
		if j.Row == "kv_put" {
			return timed(j.Count, put)
		}
		for i := 0; i < j.Count; i++ {
			put(i)
		}
		return timed(j.Count, func(i int) { _, err := kv.Get(ctx, key(i)); check(err) })
	case "object_put", "object_get":
		store, err := js.CreateOrUpdateObjectStore(ctx, jetstream.ObjectStoreConfig{Bucket: "st"})
		check(err)
		put := func(int) { _, err := store.PutBytes(ctx, "a", payload); check(err) }
		put(0)
		if j.Row == "object_put" {
			return timed(j.Count, put)
		}
		return timed(j.Count, func(int) { _, err := store.GetBytes(ctx, "a"); check(err) })
	case "concurrent":
		call := func() { _, err := js.Publish(ctx, j.Subject, payload); check(err) }
		if j.Options["call"] == "get_last" {
			s, err := js.Stream(ctx, j.Stream)
			check(err)
			call = func() { _, err := s.GetLastMsgForSubject(ctx, j.Subject); check(err) }
		}
		callers := int(j.Options["callers"].(float64))
		found := make([][]time.Duration, callers)
		s := measured(j.Count, func() {
			var all sync.WaitGroup
			for n := range found {
				all.Add(1)
				go func() {
					defer all.Done()
					share := j.Count / callers
					if n < j.Count%callers {
						share++
					}
					begin := time.Now()
					end := begin.Add(1500 * time.Millisecond)
					for i := 0; i < share && begin.Before(end); i++ {
						call()
						after := time.Now()
						found[n] = append(found[n], after.Sub(begin))
						begin = after
					}
				}()
			}
			all.Wait()
		})
		var times []time.Duration
		for _, each := range found {
			times = append(times, each...)
		}
		s.Count = len(times)
		s.latencies(times)
		return s
	}
	panic("no such row")
}

func main() {
	nc, err := nats.Connect(os.Args[2])
	check(err)
	defer nc.Close()
	answer := func(what any) {
		b, err := json.Marshal(what)
		check(err)
		fmt.Println(string(b))
	}
	answer(map[string]any{"rows": strings.Fields("publish publish_many publisher atomic fast_ingest fetch fetch_ack consume consume_ack ordered scan get_last kv_put kv_get concurrent")})
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var j job
		check(json.Unmarshal(lines.Bytes(), &j))
		func() {
			defer func() {
				if e := recover(); e != nil {
					answer(map[string]any{"failed": fmt.Sprint(e)})
				}
			}()
			answer(do(nc, j))
		}()
	}
}
