// go-nsq as the benchmarks run it, pinned. Built by benchmarks/peers.py.
module gonsq

go 1.24

require github.com/nsqio/go-nsq v1.1.0

require github.com/golang/snappy v0.0.4 // indirect
