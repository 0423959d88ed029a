package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
)

// raw is a codec that hands bytes on as they are.
type raw struct{}

// Marshal is encoding.CodecV2's.
func (raw) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

// Unmarshal is encoding.CodecV2's. The buffers are the receiver's to free.
func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	data.Ref()
	*v.(*mem.BufferSlice) = data
	return nil
}

// Name is encoding.CodecV2's.
func (raw) Name() string { return "raw" }

const (
	service = "reads.Blocks"
	method  = "/" + service + "/Read"
	// askSize of a read: where, and how many bytes.
	askSize = 16
	// window of flow control: 32 blocks in flight and more.
	window = 64 << 20
	// buffers of a connection, at each end.
	buffers = 64 << 10
	// most bytes of a message: a block, and some.
	most = blockSize + 1<<10
)

// server holds the blocks.
type server struct{ memory []byte }

func serve(ctx context.Context, address string, w work) error {
	held := &server{make([]byte, blocks*blockSize)}
	_, _ = rand.Read(held.memory) // does not fail
	options := []grpc.ServerOption{grpc.ForceServerCodecV2(raw{}), grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(window),
		grpc.ReadBufferSize(buffers), grpc.WriteBufferSize(buffers), grpc.MaxRecvMsgSize(most), grpc.MaxSendMsgSize(most)}
	if w.TLS {
		own, err := configuration()
		if err != nil {
			return err
		}
		options = append(options, grpc.Creds(credentials.NewTLS(own)))
	}
	s := grpc.NewServer(options...)
	s.RegisterService(&grpc.ServiceDesc{ServiceName: service, HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: "Read", Handler: answer, ServerStreams: true, ClientStreams: true}}}, held)
	l, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	defer context.AfterFunc(ctx, s.Stop)()
	fmt.Println("ready", l.Addr())
	return s.Serve(l)
}

// answer answers a stream's reads in order.
func answer(held any, stream grpc.ServerStream) error {
	memory := held.(*server).memory
	var question [askSize]byte
	for {
		var m mem.BufferSlice
		if err := stream.RecvMsg(&m); err != nil {
			return err
		}
		n := m.CopyTo(question[:])
		m.Free()
		at, size := binary.LittleEndian.Uint64(question[:]), binary.LittleEndian.Uint64(question[8:])
		if n != askSize || size > blockSize || at > uint64(len(memory))-size {
			return fmt.Errorf("asked for %d bytes from %d on", size, at)
		}
		if err := stream.SendMsg(memory[at : at+size]); err != nil {
			return err
		}
	}
}

// reader has a stream of each read in flight, or, in order, of each connection.
type reader struct {
	conns    []*grpc.ClientConn
	streams  []grpc.ClientStream
	size     int
	inFlight int // of a stream
	end      context.CancelFunc
}

func open(ctx context.Context, address string, w work) (*reader, error) {
	safe := insecure.NewCredentials()
	if w.TLS {
		own, err := configuration()
		if err != nil {
			return nil, err
		}
		safe = credentials.NewTLS(own)
	}
	ctx, cancel := context.WithCancel(ctx)
	streams := w.InFlight
	if w.InOrder {
		streams = w.Connections
	}
	r := &reader{size: w.Size, inFlight: w.InFlight / streams, end: cancel}
	for range w.Connections {
		conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(safe),
			grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window), grpc.WithReadBufferSize(buffers), grpc.WithWriteBufferSize(buffers),
			grpc.WithDefaultCallOptions(grpc.ForceCodecV2(raw{}), grpc.MaxCallRecvMsgSize(most), grpc.MaxCallSendMsgSize(most)))
		if err != nil {
			r.close()
			return nil, err
		}
		r.conns = append(r.conns, conn)
	}
	for i := range streams {
		stream, err := r.conns[i%len(r.conns)].NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
		if err != nil {
			r.close()
			return nil, err
		}
		r.streams = append(r.streams, stream)
	}
	return r, nil
}

// read shares the places out to the streams, in turn.
func (r *reader) read(places []int64, took []time.Duration) error {
	var streams sync.WaitGroup
	failed := make([]error, len(r.streams))
	for i := range r.streams {
		streams.Go(func() { failed[i] = r.pass(i, places, took) })
	}
	streams.Wait()
	return errors.Join(failed...)
}

// pass keeps as many reads in flight as the stream has. Answers come in order.
func (r *reader) pass(first int, places []int64, took []time.Duration) error {
	stream, step := r.streams[first], len(r.streams)
	asked := make([]time.Time, r.inFlight) // of each read in flight, around
	ask := func(i int) error {
		asked[i/step%r.inFlight] = time.Now()
		var question [askSize]byte
		binary.LittleEndian.PutUint64(question[:], uint64(places[i]))
		binary.LittleEndian.PutUint64(question[8:], uint64(r.size))
		return stream.SendMsg(question[:])
	}
	next := first
	for ; next < len(places) && next/step < r.inFlight; next += step {
		if err := ask(next); err != nil {
			return err
		}
	}
	for i := first; i < len(places); i += step {
		var m mem.BufferSlice
		if err := stream.RecvMsg(&m); err != nil {
			return fmt.Errorf("read %d: %w", i, err)
		}
		if m.Len() != r.size {
			return fmt.Errorf("read %d: %d bytes of %d", i, m.Len(), r.size)
		}
		if took != nil {
			took[i] = time.Since(asked[i/step%r.inFlight])
		}
		m.Free()
		if next < len(places) {
			if err := ask(next); err != nil {
				return err
			}
			next += step
		}
	}
	return nil
}

func (r *reader) close() {
	r.end()
	for _, c := range r.conns {
		_ = c.Close()
	}
}
